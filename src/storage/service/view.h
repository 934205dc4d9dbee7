/* SPDX-License-Identifier: MIT
 * The own pages of files, as regions. A view is made at the first large read of a file, is shared
 * by all clients that have that file open, and is kept for some seconds after the last read: making
 * one costs the processor about a twentieth of what sending its bytes does. A file that was deleted
 * keeps its room on the disk as long. */
#ifndef HAUL_STORAGE_SERVICE_VIEW_H
#define HAUL_STORAGE_SERVICE_VIEW_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/list.h"
#include "haul/haul.h"
#include "storage/mapping.h"

#define VIEW_MIN ((uint64_t)128 << 10) /* bytes of a read: below, a copy costs less */

struct view {
  struct list link;
  haul_region *region;
  struct sigbus_watch watch;
  dev_t device;
  ino_t inode;
  /* The lock: */
  unsigned holders;
  int64_t left; /* when the last one went */
};

struct views {
  pthread_t thread;     /* takes mappings away, which takes 7 ms a GB: nobody waits for that */
  pthread_mutex_t lock; /* guards what follows, and no call that may block */
  pthread_cond_t changed;
  struct list all; /* those that nobody holds in the order in which they were left */
  unsigned count;
  bool stops;
  bool open; /* constant */
};

struct service;

/* 0 or a negative errno value. */
int views_open(struct views *views);
void views_close(struct views *views); /* nobody holds one; nothing where it was not opened */

/* Of an open file that may be read, up to `end` at least; NULL: there is none. Blocks for the file
 * system, as fstat(2) and mmap(2) do. */
struct view *view_take(struct service *service, int fd, uint64_t end);
void view_give(struct views *views, struct view *view); /* NULL: does nothing */
/* What was read from it may be something else than what the file had. */
bool view_is_spoiled(const struct view *view);
/* Has the disk bring them; false: they are not there. */
bool view_populate(const struct view *view, uint64_t offset, uint64_t length);

#endif
