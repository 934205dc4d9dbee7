/* SPDX-License-Identifier: MIT
 * A batch: works that wait for following works, to be sent at once. From any thread, without a
 * lock. */
#ifndef HAUL_FABRIC_WORK_BATCH_H
#define HAUL_FABRIC_WORK_BATCH_H

#include "fabric/transport.h"

/* Zeroed: empty. */
struct work_batch {
  _Atomic uint32_t works;
  _Atomic uint64_t bytes;
  _Atomic int64_t since; /* when the first of them was added */
};

/* Adds a work that has `more`; returns whether it may wait: until the batch has so many works, or
 * bytes. The first one wakes the loop, which sends the batch when it is old enough. */
static inline bool work_batch_add(struct work_batch *work_batch, const struct work *work,
                                  uint32_t works_max, uint64_t bytes_max, struct loop *loop,
                                  const struct poller *poller) {
  if (!work->more)
    return false;
  uint64_t bytes = atomic_fetch_add(&work_batch->bytes, work->bytes) + work->bytes;
  uint32_t before = atomic_fetch_add(&work_batch->works, 1);
  if (before + 1 >= works_max || bytes >= bytes_max)
    return false;
  if (before == 0) {
    atomic_store(&work_batch->since, clock_now());
    loop_poll(loop, poller);
  }
  return true;
}

static inline void work_batch_remove(struct work_batch *work_batch, const struct work *work) {
  if (!work->more)
    return;
  atomic_fetch_sub(&work_batch->works, 1);
  atomic_fetch_sub(&work_batch->bytes, work->bytes);
}

static inline bool work_batch_pending(const struct work_batch *work_batch) {
  return atomic_load(&work_batch->works) > 0;
}

/* Works wait, and may continue to. */
static inline bool work_batch_is_young(const struct work_batch *work_batch) {
  return work_batch_pending(work_batch) &&
         clock_now() - atomic_load(&work_batch->since) < WORK_BATCH_NS;
}

#endif
