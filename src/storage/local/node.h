/* SPDX-License-Identifier: MIT
 * The nodes of a local source that are known: by handle, and by what they are on this host. */
#ifndef HAUL_STORAGE_LOCAL_NODE_H
#define HAUL_STORAGE_LOCAL_NODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* While it lives its descriptor keeps the file, so no other file can have its numbers. */
struct node {
  struct node *next_by_handle, *next_by_file;
  uint64_t handle;
  dev_t device;
  ino_t number;     /* the host's */
  uint64_t inode;   /* what the source's users see */
  uint64_t lookups; /* given out and not forgotten */
  uint64_t holders; /* calls under way, open files */
  int fd;           /* O_PATH */
  mode_t type;      /* S_IFMT bits */
};

struct nodes {
  pthread_mutex_t lock; /* guards all of it, and each node's counts */
  struct node **by_handle, **by_file;
  size_t buckets, count; /* buckets: a power of two */
  size_t most;           /* nodes at a time; 0: any number */
  uint64_t last_handle, last_number;
  dev_t *devices; /* their places make inode numbers; the root's comes first */
  size_t device_count;
};

int nodes_open(struct nodes *nodes);
/* Frees every node, whoever may hold it. */
void nodes_close(struct nodes *nodes);

/* Takes `fd`, an O_PATH descriptor of what `stat` says, also on failure. Counts as a lookup; sets
 * *handle, and stat->st_ino to what users see. The first one ever is SOURCE_ROOT. ENOMEM, ENFILE.
 */
int nodes_admit(struct nodes *nodes, int fd, struct stat *stat, uint64_t *handle);
/* Held until nodes_put; NULL: there is none. */
struct node *nodes_get(struct nodes *nodes, uint64_t handle);
/* By the number that users see; counts as a lookup too. */
struct node *nodes_find(struct nodes *nodes, uint64_t inode);
void nodes_hold(struct nodes *nodes, struct node *node);
void nodes_put(struct nodes *nodes, struct node *node);
void nodes_forget(struct nodes *nodes, uint64_t handle, uint64_t count);

/* The number that users see of a file there, if that is known without a node; else 0. */
uint64_t nodes_number(struct nodes *nodes, dev_t device, ino_t number);

#endif
