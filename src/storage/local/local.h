/* SPDX-License-Identifier: MIT
 * What the parts of the local source share. Calls on nodes go through /proc/self/fd, which names an
 * O_PATH descriptor's file without a path that somebody could change. */
#ifndef HAUL_STORAGE_LOCAL_LOCAL_H
#define HAUL_STORAGE_LOCAL_LOCAL_H

#include "storage/local/node.h"
#include "storage/source.h"

struct local {
  struct source source;
  struct nodes nodes;
  bool read_only;
  _Atomic dev_t left_out; /* 0: none */
};

struct local_file {
  struct source_file file;
  struct node *node;    /* held */
  pthread_mutex_t lock; /* a folder's: guards the place where it is read */
};

#define PROC_ROOM 40

static inline struct local *local_of(struct source *source) {
  return (struct local *)(void *)source;
}

void local_proc_path(char path[PROC_ROOM], const struct node *node);
int local_stat(const struct node *node, struct stat *stat);
/* What is there under the name becomes a node. */
int local_admit(struct local *local, const struct node *folder, const char *name,
                struct source_entry *entry);
/* The same with an O_PATH descriptor, which it takes. */
int local_admit_fd(struct local *local, int fd, struct source_entry *entry);
/* Takes fd. */
int local_make_file(struct local *local, struct node *node, int fd, struct source_file **file);

/* names.c */
int local_mkdir(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, struct source_entry *entry);
int local_symlink(struct source *source, const struct source_caller *caller, uint64_t folder,
                  const char *name, const char *target, struct source_entry *entry);
int local_mknod(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, struct source_entry *entry);
int local_link(struct source *source, const struct source_caller *caller, uint64_t node,
               uint64_t folder, const char *name, struct source_entry *entry);
int local_unlink(struct source *source, uint64_t folder, const char *name);
int local_rmdir(struct source *source, uint64_t folder, const char *name);
int local_rename(struct source *source, uint64_t folder, const char *name, uint64_t new_folder,
                 const char *new_name, unsigned flags);
int local_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, int flags, struct source_entry *entry,
                 struct source_file **file);

/* attributes.c */
int local_getattr(struct source *source, uint64_t node, struct source_file *file,
                  struct stat *stat);
int local_setattr(struct source *source, uint64_t node, struct source_file *file,
                  const struct source_change *change, struct stat *stat);
ssize_t local_getxattr(struct source *source, uint64_t node, const char *name, void *value,
                       size_t size);
ssize_t local_listxattr(struct source *source, uint64_t node, char *list, size_t size);
int local_setxattr(struct source *source, uint64_t node, const char *name, const void *value,
                   size_t size, int flags);
int local_removexattr(struct source *source, uint64_t node, const char *name);

/* file.c */
int local_open_node(struct source *source, const struct source_caller *caller, uint64_t node,
                    int flags, struct source_file **file);
void local_release(struct source *source, struct source_file *file);
ssize_t local_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                   off_t offset);
ssize_t local_write(struct source *source, struct source_file *file, const void *bytes,
                    size_t length, off_t offset, int flags);
int local_flush(struct source *source, struct source_file *file);
int local_fsync(struct source *source, struct source_file *file, bool data_only);
int local_fallocate(struct source *source, struct source_file *file, int mode, off_t offset,
                    off_t length);
off_t local_lseek(struct source *source, struct source_file *file, off_t offset, int whence);
int local_opendir(struct source *source, uint64_t node, struct source_file **folder);
int local_readdir(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                  bool (*each)(void *user, const struct source_name *name), void *user);

#endif
