/* SPDX-License-Identifier: MIT
 * A folder of this host as a source.
 *
 * A known node is an O_PATH descriptor. Calls that need a path use /proc/self/fd, which names the
 * descriptor's file, so that no other file can take its place. */
#ifndef HAUL_STORAGE_LOCAL_LOCAL_H
#define HAUL_STORAGE_LOCAL_LOCAL_H

#include <pthread.h>

#include "storage/source.h"

/* Nodes: node.c */

/* Its descriptor keeps the file, so no other file can get its numbers. */
struct node {
  struct node *next_by_handle, *next_by_file;
  uint64_t handle;
  dev_t device;
  ino_t number;        /* of this host */
  uint64_t inode;      /* that the source's users see */
  uint64_t lookups;    /* returned and not forgotten */
  uint64_t references; /* calls in progress, open files */
  int fd;              /* O_PATH */
  mode_t type;         /* S_IFMT bits */
};

struct nodes {
  pthread_mutex_t lock; /* guards all of it, and the counts of each node */
  struct node **by_handle, **by_file;
  size_t buckets, count; /* buckets: a power of two */
  size_t most;           /* nodes at a time; 0: any number */
  uint64_t last_handle, last_number;
  dev_t *devices; /* a device's index is part of inode numbers; the root's is the first */
  size_t device_count;
};

int nodes_open(struct nodes *nodes);
/* Frees every node, whatever its counts. */
void nodes_close(struct nodes *nodes);

/* The node of an O_PATH descriptor, which it takes, also after a failure; counts as a lookup. Sets
 * *handle, and stat->st_ino to the number that users see. The first node ever is SOURCE_ROOT.
 * ENOMEM, ENFILE. */
int nodes_add(struct nodes *nodes, int fd, struct stat *stat, uint64_t *handle);
/* A reference to the node, or NULL. */
struct node *nodes_get(struct nodes *nodes, uint64_t handle);
/* The same by the inode number that users see; counts as a lookup, too. */
struct node *nodes_find(struct nodes *nodes, uint64_t inode);
void nodes_put(struct nodes *nodes, struct node *node);
void nodes_forget(struct nodes *nodes, uint64_t handle, uint64_t count);

/* The inode number that users see of a file, or 0 where only a lookup can tell. */
uint64_t nodes_number(struct nodes *nodes, dev_t device, ino_t number);

/* The source: local.c */

struct local {
  struct source source;
  struct nodes nodes;
  bool read_only;
  _Atomic dev_t left_out; /* 0: none */
};

#define PROC_ROOM 40

static inline struct local *local_of(struct source *source) {
  return (struct local *)(void *)source;
}

void local_proc_path(char path[PROC_ROOM], int fd);

/* Removing trees: remove.c */

int local_remove(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, bool recursive, const atomic_bool *stop);

/* A reference to a folder in which a name is about to change: local.c. */
int local_get_folder(struct source *source, uint64_t handle, const char *name,
                     struct node **folder);

/* Open files and folders: file.c */

/* Takes the descriptor and the reference to the node, also after a failure. */
int local_new_file(struct local *local, struct node *node, int fd, struct source_file **file);
int local_open(struct source *source, const struct source_caller *caller, uint64_t handle,
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
int local_opendir(struct source *source, uint64_t handle, struct source_file **folder);
int local_readdir(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                  source_each *each, void *user);

#endif
