/* SPDX-License-Identifier: MIT
 * Works that may wait for those that follow, so that all go out at once: WORK_BATCH of them or
 * WORK_BATCH_BYTES at the most. From any thread, without a lock. */
#ifndef HAUL_FABRIC_WORK_BATCH_H
#define HAUL_FABRIC_WORK_BATCH_H

#include "fabric/transport.h"

/* Zeroed: none waits. */
struct work_batch {
  _Atomic uint32_t works;
  _Atomic uint64_t bytes;
  _Atomic int64_t since; /* the first of them */
};

/* Whether the work, which is counted here if it has `more`, may wait. The first that does wakes the
 * loop, which is to take all in. */
static inline bool work_batch_add(struct work_batch *work_batch, const struct work *work,
                                  struct loop *loop) {
  if (!work->more)
    return false;
  uint64_t bytes = atomic_fetch_add(&work_batch->bytes, work->bytes) + work->bytes;
  uint32_t before = atomic_fetch_add(&work_batch->works, 1);
  if (before + 1 >= WORK_BATCH || bytes >= WORK_BATCH_BYTES)
    return false;
  if (before == 0) {
    atomic_store(&work_batch->since, clock_now());
    loop_wake(loop);
  }
  return true;
}

/* It was taken in. */
static inline void work_batch_remove(struct work_batch *work_batch, const struct work *work) {
  if (!work->more)
    return;
  atomic_fetch_sub(&work_batch->works, 1);
  atomic_fetch_sub(&work_batch->bytes, work->bytes);
}

static inline bool work_batch_pending(const struct work_batch *work_batch) {
  return atomic_load(&work_batch->works) > 0;
}

/* Some wait, and may go on doing so. */
static inline bool work_batch_is_young(const struct work_batch *work_batch) {
  return work_batch_pending(work_batch) &&
         clock_now() - atomic_load(&work_batch->since) < WORK_BATCH_NS;
}

#endif
