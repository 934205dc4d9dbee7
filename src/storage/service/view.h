/* SPDX-License-Identifier: MIT
 * A view maps a file's own pages as a region. It is made by the first large read of a file, shared
 * by all clients, and kept for some seconds after the last read: making one costs about a twentieth
 * of the CPU time of sending its bytes. A deleted file keeps its blocks on the disk as long. */
#ifndef HAUL_STORAGE_SERVICE_VIEW_H
#define HAUL_STORAGE_SERVICE_VIEW_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/list.h"
#include "haul/haul.h"
#include "storage/mapping.h"

#define VIEW_MIN ((uint64_t)128 << 10) /* bytes; a shorter read is cheaper as a copy */

struct view {
  struct list link;
  haul_region *region;
  struct sigbus_watch watch;
  dev_t device;
  ino_t inode;
  /* With the lock: */
  unsigned users;
  int64_t unused_since; /* CLOCK_MONOTONIC, ns */
};

struct views {
  pthread_t thread;     /* unmaps views, which takes 7 ms per GB */
  pthread_mutex_t lock; /* guards the fields below; never held while blocking */
  pthread_cond_t changed;
  struct list all; /* unused ones in the order of `unused_since` */
  unsigned count;
  bool stops;
  bool open; /* constant */
};

struct service;

/* 0 or a negative errno value. */
int views_open(struct views *views);
/* No view may be in use. Does nothing for zeroed memory. */
void views_close(struct views *views);

/* A view of an open file, up to `end` at least. NULL: not readable, shorter, or a file system
 * without stable pages. Blocks for the file system, as fstat(2) and mmap(2) do. */
struct view *view_get(struct service *service, int fd, uint64_t end);
void view_put(struct views *views, struct view *view); /* safe on NULL */
/* Data read from it may differ from the file's. */
bool view_is_spoiled(const struct view *view);
/* Reads the pages from the disk; false: it failed. */
bool view_populate(const struct view *view, uint64_t offset, uint64_t length);

#endif
