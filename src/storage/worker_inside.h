/* SPDX-License-Identifier: MIT
 * What worker.c (rings and turns) and operation.c (reads and writes) share. All of it is one
 * thread's, but for what says otherwise. */
#ifndef HAUL_STORAGE_WORKER_INSIDE_H
#define HAUL_STORAGE_WORKER_INSIDE_H

#include <liburing.h>
#include <pthread.h>

#include "storage/fixed.h"
#include "storage/mover.h"
#include "storage/worker.h"

#define OPERATIONS   1024u             /* that a worker has under way, and as many parts */
#define BOUNCE_BYTES ((size_t)1 << 20) /* as libhaul's own */
#define STAGES       32u               /* of a worker: what its devices' operations share */

/* One read or write as it was asked for. It is done in parts: one of its own for memory of the
 * host, one for each staging buffer for a device's, and of that size for a far file. */
struct operation {
  struct list link; /* the free ones, or those that are not cut into parts yet */
  struct served *served;
  struct file *file;
  struct far *far; /* NULL: the file has descriptors */
  struct buffer *buffer;
  uint64_t userdata;
  uint64_t at, offset, length; /* in the buffer; in the file */
  uint64_t asked;              /* the length at first */
  uint64_t cut;                /* so much of it is in parts */
  uint64_t end;                /* where it ends in the file, by what has ended so far */
  int code;                    /* why there; 0: the file is that short, or all was done */
  uint32_t parts;              /* under way */
  int32_t index;
};

struct bounce {
  struct list link;
  haul_region *region;
  char *address;
};

struct part {
  struct list link; /* the free ones */
  struct operation *operation;
  struct bounce *stage; /* NULL: straight to and from memory of the host */
  uint64_t at, offset, left, done;
  bool direct;
  struct moving moving;
};

/* Of one priority, under way. */
struct share {
  unsigned operations;
  uint64_t bytes;
};

struct worker {
  struct workers *workers;
  pthread_t thread;
  struct io_uring uring;
  struct fixed fixed;
  int bell; /* eventfd: somebody wakes it */
  _Atomic bool asleep, stops;
  pthread_mutex_t lock;  /* guards the next two; nothing is taken after it */
  struct list arrived;   /* rings */
  struct list copied;    /* movings that have ended */
  _Atomic unsigned load; /* rings that it has */
  struct list rings[RING_PRIORITIES];
  struct list free, free_parts; /* operations, parts */
  struct list cutting;          /* operations that are not all in parts */
  struct list stages;           /* idle */
  struct share shares[RING_PRIORITIES];
  unsigned stage_count, under_way, turns;
  int64_t time; /* of this turn */
  struct operation *operations;
  struct part *parts;
};

struct workers {
  _Atomic int64_t began[RING_PRIORITIES]; /* when one of each did something, CLOCK_MONOTONIC */
  struct files *files;
  struct buffers *buffers;
  struct mover *mover;
  unsigned count;
  _Atomic uint32_t sleepers;
  struct workers_counters counters;
  struct worker each[];
};

static inline void worker_count(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* worker.c: room for one request, always. */
struct io_uring_sqe *worker_request(struct worker *worker);
/* worker.c: is there something to do for higher priorities, these days? */
bool worker_yields(const struct worker *worker, uint8_t priority);
/* worker.c, any thread. */
void worker_nudge(struct worker *worker);

/* ---- operation.c ---- */

int operations_open(struct worker *worker);
void operations_close(struct worker *worker);
/* There is a free one. */
void operation_begin(struct worker *worker, struct served *served,
                     const struct intake_entry *entry);
/* What io_uring says of a part. */
void part_proceed(struct worker *worker, struct part *part, int result);
/* Goes on with what waited for parts or buffers, and with what was copied; true: something was. */
bool operations_turn(struct worker *worker);

#endif
