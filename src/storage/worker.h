/* SPDX-License-Identifier: MIT
 * Threads that do what rings ask for, each with an io_uring. A ring belongs to one of them from
 * workers_add on; nobody else touches its intake.
 *
 * A worker that has something to do looks at its rings in every turn. One that has not says so and
 * sleeps in io_uring until a read or write is over, or workers_wake is called by who hears of new
 * submissions (doorbell.c). Both change `sleepers`, the worker before it looks at its rings once
 * more, and such changes have one order: either the waker's comes second and finds the sleeper, or
 * it comes first and the worker, whose change reads it, sees what the waker had heard of. */
#ifndef HAUL_STORAGE_WORKER_H
#define HAUL_STORAGE_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/list.h"
#include "storage/buffer.h"
#include "storage/files.h"
#include "storage/intake.h"

struct workers;
struct worker;

/* A ring and whose it is. Its owner has one hold, the worker another one. */
struct served {
  struct intake intake; /* the worker's */
  uid_t uid;
  enum file_way way;
  uint8_t priority; /* enum ring_priority */
  bool no_holes, durable;
  struct worker *worker;
  struct list link;  /* the worker's */
  _Atomic bool left; /* its owner has gone: nothing is taken any more */
  _Atomic unsigned holds;
};

struct workers_counters {
  _Atomic uint64_t operations, direct, refused;
  _Atomic uint64_t bytes, staged, far; /* in all; through staging buffers; of far files */
  /* Through the page cache, because the file system has no O_DIRECT, or of how it lay. */
  _Atomic uint64_t buffered_file, buffered_alignment;
  _Atomic uint64_t unpinned; /* on buffers that the kernel did not let us pin */
};

/* `count` threads, and `movers` for what blocks. */
int workers_open(struct files *files, struct buffers *buffers, unsigned count, unsigned movers,
                 struct workers **workers);
/* What is under way ends first; the rings stay their owners'. */
void workers_close(struct workers *workers);

/* Takes a hold. */
void workers_add(struct workers *workers, struct served *served);
/* Nothing more is taken from it. The worker drops its hold when what is under way has ended. */
void workers_remove(struct served *served);
void served_put(struct served *served);

/* Buffers have gone: workers let go of what they keep of them. */
void workers_tend(struct workers *workers);
/* Those that sleep look at their rings. False: none slept. */
bool workers_wake(struct workers *workers);
/* Changes, with a futex wake, when one goes to sleep; 0: none sleeps. */
_Atomic uint32_t *workers_sleepers(struct workers *workers);
const struct workers_counters *workers_counters(const struct workers *workers);

#endif
