/* SPDX-License-Identifier: MIT
 * The table of sources: where a tree of files is. A source is one const table; the file system
 * above asks it and knows nothing of folders or hosts.
 *
 * Words: a node is a file, folder or symlink, named by a handle that a lookup gave out and that
 * lives until it was forgotten as often as it was given; a file is a node that is open.
 *
 * All slots return 0, a count, or a negative errno value, may be called from any thread at once,
 * and may block as long as the disk or the network does. A handle that was never given, or was
 * forgotten, is -ESTALE and nothing worse: handles may come from other hosts. A name is one
 * component: "", ".", ".." and what has a '/' is -EINVAL, what is too long -ENAMETOOLONG. Nothing
 * is followed: a symlink is a node like any other, and no slot leaves the tree. An empty slot means
 * -EOPNOTSUPP. */
#ifndef HAUL_STORAGE_SOURCE_H
#define HAUL_STORAGE_SOURCE_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h> /* RWF_... */
#include <time.h>

#define SOURCE_ROOT 1u /* the root's handle: always there, never forgotten */
/* Handles are below this; whoever is above may use the rest for nodes of its own. */
#define SOURCE_HANDLES (UINT64_C(1) << 63)
/* So are inode numbers. */
#define SOURCE_INODES (UINT64_C(1) << 63)

struct source_ops;

/* A backend's own struct begins with it. */
struct source {
  const struct source_ops *ops;
};

/* For whom something is done: what is made will be his, and with `checked` false his rights alone
 * count. True: whoever asks has checked them, as the kernel does for a file system. -EPERM: this
 * process cannot act for him. */
struct source_caller {
  uid_t uid;
  gid_t gid;
  bool checked;
  const gid_t *groups; /* the supplementary ones; where `checked` is false */
  size_t group_count;
};

/* A node and what it is. `stat.st_ino` is one number for one file in the whole tree, also where
 * that spans devices, as long as the node is known. */
struct source_entry {
  uint64_t node;
  struct stat stat;
};

/* An open file or folder; a backend's own struct begins with it. */
struct source_file {
  uint64_t inode; /* as in stat.st_ino */
  int fd;         /* of this host, the file's own, not the caller's to close; -1: there is none */
  bool flushes;   /* closing it may tell of errors: ask `flush` first */
};

enum {
  SOURCE_MODE = 1,
  SOURCE_UID = 2,
  SOURCE_GID = 4,
  SOURCE_SIZE = 8,
  SOURCE_TIMES = 16,
};

struct source_change {
  unsigned which;
  mode_t mode;
  uid_t uid;
  gid_t gid;
  off_t size;
  struct timespec times[2]; /* as utimensat: access, modification; UTIME_NOW, UTIME_OMIT */
};

/* One name in a folder. `next`: where to go on behind it. */
struct source_name {
  const char *name;
  uint64_t inode; /* 0: not known without a lookup */
  mode_t type;    /* S_IFMT bits; 0: not known */
  off_t next;
};

/* -EINVAL, -ENAMETOOLONG. */
static inline int source_check_name(const char *name) {
  if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strchr(name, '/'))
    return -EINVAL;
  return strlen(name) > NAME_MAX ? -ENAMETOOLONG : 0;
}

struct source_ops {
  /* Every file has been released. Forgets all nodes. */
  void (*close)(struct source *source);

  /* Optional. Nothing of this device belongs to the tree from now on: -ELOOP. It is that of the
   * file system that shows the tree: asking it would mean to wait for oneself. */
  void (*leave_out)(struct source *source, dev_t device);

  /* Each success counts one for the node's handle. */
  int (*lookup)(struct source *source, uint64_t folder, const char *name,
                struct source_entry *entry);
  /* So many lookups less. A file that is open lives on. Does not block. */
  void (*forget)(struct source *source, uint64_t node, uint64_t count);
  /* The node that has this inode number, where it is known; counts as a lookup. -ESTALE. */
  int (*find)(struct source *source, uint64_t inode, struct source_entry *entry);

  /* `file`: open on this node, or NULL. */
  int (*getattr)(struct source *source, uint64_t node, struct source_file *file, struct stat *stat);
  /* In the order mode, owner, size, times; the first failure ends it, and what was done stays. */
  int (*setattr)(struct source *source, uint64_t node, struct source_file *file,
                 const struct source_change *change, struct stat *stat);
  /* The target's length, without a zero byte; -ENAMETOOLONG where it does not fit. */
  ssize_t (*readlink)(struct source *source, uint64_t node, char *target, size_t size);
  int (*statfs)(struct source *source, struct statvfs *stat);

  /* Those that make a name count one lookup for the node. */
  int (*mkdir)(struct source *source, const struct source_caller *caller, uint64_t folder,
               const char *name, mode_t mode, struct source_entry *entry);
  int (*symlink)(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, const char *target, struct source_entry *entry);
  /* A regular file; -EPERM for any other kind. */
  int (*mknod)(struct source *source, const struct source_caller *caller, uint64_t folder,
               const char *name, mode_t mode, struct source_entry *entry);
  int (*link)(struct source *source, const struct source_caller *caller, uint64_t node,
              uint64_t folder, const char *name, struct source_entry *entry);
  int (*unlink)(struct source *source, uint64_t folder, const char *name);
  int (*rmdir)(struct source *source, uint64_t folder, const char *name);
  /* `flags`: RENAME_NOREPLACE, RENAME_EXCHANGE. */
  int (*rename)(struct source *source, uint64_t folder, const char *name, uint64_t new_folder,
                const char *new_name, unsigned flags);

  /* `flags`: access mode and O_TRUNC; others are left out, since offsets, appending and durability
   * are asked for with each write. The file is for whoever asked, until release. -EISDIR for a
   * folder, -ELOOP for a symlink, -ENXIO for what is neither and no regular file. create makes a
   * new file or none: -EEXIST, since rights to a folder are no rights to what is in it. */
  int (*open)(struct source *source, const struct source_caller *caller, uint64_t node, int flags,
              struct source_file **file);
  int (*create)(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, int flags, struct source_entry *entry,
                struct source_file **file);
  void (*release)(struct source *source, struct source_file *file);

  /* Fewer bytes than asked for: the file's end, or no room left. `flags` of write: RWF_APPEND,
   * RWF_DSYNC, RWF_SYNC. */
  ssize_t (*read)(struct source *source, struct source_file *file, void *bytes, size_t length,
                  off_t offset);
  ssize_t (*write)(struct source *source, struct source_file *file, const void *bytes,
                   size_t length, off_t offset, int flags);
  /* Errors that the file system has kept for close(2). */
  int (*flush)(struct source *source, struct source_file *file);
  /* Also a folder's. */
  int (*fsync)(struct source *source, struct source_file *file, bool data_only);
  /* `mode` as fallocate(2). */
  int (*fallocate)(struct source *source, struct source_file *file, int mode, off_t offset,
                   off_t length);
  /* SEEK_DATA, SEEK_HOLE; -ENXIO beyond the last one. */
  off_t (*lseek)(struct source *source, struct source_file *file, off_t offset, int whence);

  /* A folder as a file, for the calls below, fsync and release. */
  int (*opendir)(struct source *source, uint64_t node, struct source_file **folder);
  /* Names from `offset` on, 0 or some `next`, "." and ".." with them, until `each` returns false:
   * it has not taken that one. `bytes` is about how much `each` takes. `each` may call lookup. */
  int (*readdir)(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                 bool (*each)(void *user, const struct source_name *name), void *user);

  /* Optional, all or none. As getxattr(2) and its like: a length, also for size 0; -ERANGE;
   * -ENODATA. */
  ssize_t (*getxattr)(struct source *source, uint64_t node, const char *name, void *value,
                      size_t size);
  ssize_t (*listxattr)(struct source *source, uint64_t node, char *list, size_t size);
  int (*setxattr)(struct source *source, uint64_t node, const char *name, const void *value,
                  size_t size, int flags);
  int (*removexattr)(struct source *source, uint64_t node, const char *name);
};

#endif
