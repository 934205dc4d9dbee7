/* SPDX-License-Identifier: MIT
 * A source is a tree of files: a local folder, or what another node serves. It is one const table
 * of operations; the file system above knows nothing of folders and hosts.
 *
 * A node is a file, folder or symlink. A lookup returns a handle for it, which is valid until it
 * was forgotten as often as it was returned. A file is an open node.
 *
 * All operations return 0, a count, or a negative errno value, may be called from any thread at
 * once, and block for as long as the disk or the network does. Handles may come from other hosts:
 * one that is unknown or forgotten is -ESTALE. A name is one component: "", ".", ".." and names
 * with '/' are -EINVAL, a name that is too long is -ENAMETOOLONG. No operation follows a symlink or
 * leaves the tree. */
#ifndef HAUL_STORAGE_SOURCE_H
#define HAUL_STORAGE_SOURCE_H

#include <errno.h>
#include <fcntl.h> /* AT_REMOVEDIR */
#include <haul/haul.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h> /* RWF_... */
#include <time.h>

#define SOURCE_ROOT 1u /* the root's handle: always valid, never forgotten */
/* Handles and inode numbers are below these; a user of the source may number nodes of its own from
 * there on. */
#define SOURCE_HANDLES (UINT64_C(1) << 63)
#define SOURCE_INODES  (UINT64_C(1) << 63)

struct source_ops;

/* A backend's own struct begins with it. */
struct source {
  const struct source_ops *ops;
};

/* The user for whom an operation runs, and owner of new files. `checked`: the user of
 * the source has checked the caller's rights, as the kernel does for a file system; else the
 * operation has the caller's rights alone. -EPERM: this process cannot act for the caller. */
struct source_caller {
  uid_t uid;
  gid_t gid;
  bool checked;
  const gid_t *groups; /* the supplementary groups, where not `checked` */
  size_t group_count;
};

/* A node and its attributes. `stat.st_ino` is unique in the tree, also where that spans devices,
 * for as long as the node is known. */
struct source_entry {
  uint64_t node;
  struct stat stat;
};

/* An open file or folder; a backend's own struct begins with it. */
struct source_file {
  uint64_t inode; /* as in stat.st_ino */
  int fd;         /* of this host, owned by the file; -1: the file is remote */
  bool flushes;   /* close(2) may report errors: `flush` does so first */
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

/* A name to create without opening it. */
enum source_kind { SOURCE_FOLDER, SOURCE_FILE, SOURCE_SYMLINK, SOURCE_LINK };

struct source_new {
  enum source_kind kind;
  mode_t mode;        /* of a folder or file */
  const char *target; /* of a symlink */
  uint64_t node;      /* that a hard link names */
};

/* One name in a folder. */
struct source_name {
  const char *name;
  uint64_t inode; /* 0: unknown without a lookup */
  mode_t type;    /* S_IFMT bits; 0: unknown */
  off_t next;     /* the offset behind it */
};

/* Receives one name of a folder; false: it has no room for this one. */
typedef bool source_each(void *user, const struct source_name *name);

/* Device memory as the place of file data. */
struct source_memory;

/* A read from a file into device memory, or a write from there. */
struct source_move {
  bool write;
  uint64_t at; /* in the memory */
  size_t length;
  off_t offset; /* in the file */
  int flags;    /* as of `write` */
  /* Filled: whether the bytes passed through host memory of this host; and whether the memory was
   * registered for it, at the server and at NICs, or had been before. */
  bool staged, registered, found;
};

/* -EINVAL, -ENAMETOOLONG. */
static inline int source_check_name(const char *name) {
  if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strchr(name, '/'))
    return -EINVAL;
  return strlen(name) > NAME_MAX ? -ENAMETOOLONG : 0;
}

struct source_ops {
  /* After all files were released. Forgets all nodes. */
  void (*close)(struct source *source);

  /* Optional. Lookups of nodes on this device are -ELOOP from now on. It is the device of the file
   * system that shows the tree, which would wait for itself. */
  void (*leave_out)(struct source *source, dev_t device);

  /* Each success counts one for the node's handle. */
  int (*lookup)(struct source *source, uint64_t folder, const char *name,
                struct source_entry *entry);
  /* Takes `count` lookups back. A file that is open stays usable. Does not block. */
  void (*forget)(struct source *source, uint64_t node, uint64_t count);
  /* The known node with this inode number; counts as a lookup. -ESTALE: none. */
  int (*find)(struct source *source, uint64_t inode, struct source_entry *entry);

  /* `file`: open on this node, or NULL. */
  int (*getattr)(struct source *source, uint64_t node, struct source_file *file, struct stat *stat);
  /* In the order owner, mode, size, times; stops at the first failure, and earlier changes stay. */
  int (*setattr)(struct source *source, uint64_t node, struct source_file *file,
                 const struct source_change *change, struct stat *stat);
  /* The target's length, without a zero byte; -ENAMETOOLONG where it does not fit. */
  ssize_t (*readlink)(struct source *source, uint64_t node, char *target, size_t size);
  int (*statfs)(struct source *source, struct statvfs *stat);

  /* make and create count one lookup for the node. A file is a regular one: -EPERM if its mode has
   * another type. For a caller that is not checked, the folder of `make` and the new folder of
   * `rename`, if it is another one, are taken as known by a number alone: -EACCES if that caller
   * may not search all folders from the root to it, -ESTALE if it is not in the tree. */
  int (*make)(struct source *source, const struct source_caller *caller, uint64_t folder,
              const char *name, const struct source_new *wanted, struct source_entry *entry);
  /* `flags` as unlinkat(2): AT_REMOVEDIR removes a folder, 0 anything else. */
  int (*unlink)(struct source *source, uint64_t folder, const char *name, int flags);
  /* `flags`: RENAME_NOREPLACE, RENAME_EXCHANGE. */
  int (*rename)(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, uint64_t new_folder, const char *new_name, unsigned flags);
  /* Removes anything with this name for a caller that is not checked; `recursive`: a folder with
   * all that it contains on its file system, else it must be empty. After an error a part may be
   * removed. -EBUSY: others keep adding names; -ESTALE: others moved a folder out; -ENAMETOOLONG:
   * more than 2048 folders are in each other; -ECANCELED: `stop` was set. NULL: remote, where no
   * such caller may change anything. */
  int (*remove)(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, bool recursive, const atomic_bool *stop);

  /* `flags`: the access mode and O_TRUNC; others are ignored, as each write says its offset,
   * appending and durability. -EISDIR for a folder, -ELOOP for a symlink, -ENXIO for other special
   * files. create never opens an existing file (-EEXIST): the right to write to a folder is no
   * right to its files. */
  int (*open)(struct source *source, const struct source_caller *caller, uint64_t node, int flags,
              struct source_file **file);
  int (*create)(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, int flags, struct source_entry *entry,
                struct source_file **file);
  void (*release)(struct source *source, struct source_file *file);

  /* Fewer bytes than asked for: the end of the file, or a full disk. `flags` of write: RWF_APPEND,
   * RWF_DSYNC, RWF_SYNC. */
  ssize_t (*read)(struct source *source, struct source_file *file, void *bytes, size_t length,
                  off_t offset);
  ssize_t (*write)(struct source *source, struct source_file *file, const void *bytes,
                   size_t length, off_t offset, int flags);
  /* Device memory, for sources of remote files; else all are NULL. `node`: of the regions. `attach`
   * takes none; `detach` comes before the region's release, and after the last move. Both do not
   * wait for the server. A move that failed leaves no access to the memory behind. */
  haul_node *(*node)(struct source *source);
  int (*attach)(struct source *source, haul_region *region, struct source_memory **memory);
  void (*detach)(struct source *source, struct source_memory *memory);
  ssize_t (*move)(struct source *source, struct source_file *file, struct source_memory *memory,
                  struct source_move *move);
  /* Errors that the file system would report at close(2). */
  int (*flush)(struct source *source, struct source_file *file);
  /* Also of a folder. */
  int (*fsync)(struct source *source, struct source_file *file, bool data_only);
  /* `mode` as fallocate(2). */
  int (*fallocate)(struct source *source, struct source_file *file, int mode, off_t offset,
                   off_t length);
  /* SEEK_DATA, SEEK_HOLE; -ENXIO where there is no more of it. */
  off_t (*lseek)(struct source *source, struct source_file *file, off_t offset, int whence);

  /* A folder as a file, for readdir, fsync and release. */
  int (*opendir)(struct source *source, uint64_t node, struct source_file **folder);
  /* The names from `offset` on, which is 0 or some `next`, with "." and "..", until `each` returns
   * false. `bytes` is about how much `each` has room for. `each` may call lookup. */
  int (*readdir)(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                 source_each *each, void *user);

  /* As getxattr(2) and its like: a length, also for size 0; -ERANGE; -ENODATA. getxattr with `name`
   * NULL: the list of names, as listxattr(2). */
  ssize_t (*getxattr)(struct source *source, uint64_t node, const char *name, void *value,
                      size_t size);
  int (*setxattr)(struct source *source, uint64_t node, const char *name, const void *value,
                  size_t size, int flags);
  int (*removexattr)(struct source *source, uint64_t node, const char *name);
};

/* A folder of this host. `read_only`: changes are -EROFS. Each known node and each open file is a
 * descriptor, so the process's limit bounds both. ENOENT, ENOTDIR, EACCES. */
int local_source_open(const char *path, bool read_only, struct source **source);
/* Limits the nodes that are known at a time, besides the root; more are -ENFILE. To be called
 * before the source is used. */
void local_source_limit(struct source *source, size_t nodes);

#endif
