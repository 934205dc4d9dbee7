/* SPDX-License-Identifier: MIT */
#include "core/biased.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A membarrier takes some microseconds, a locked instruction some nanoseconds. */
#define TURNS 256u

static _Atomic bool allowed;

static long membarrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0);
}

void biased_allow(void) {
  if (!atomic_load(&allowed) && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
    atomic_store(&allowed, true);
}

/* With the lock: after this the favourite that was is not in, and comes by the lock. */
static void take_away(struct biased *biased) {
  atomic_store_explicit(&biased->owner, 0, memory_order_relaxed);
  membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  while (atomic_load_explicit(&biased->inside, memory_order_acquire))
    sched_yield();
}

void biased_wait(struct biased *biased, uint32_t me) {
  spin_lock(&biased->lock);
  if (atomic_load_explicit(&biased->owner, memory_order_relaxed) != 0)
    take_away(biased);
  if (biased->last != me) {
    biased->last = me;
    biased->turns = 0;
  } else if (++biased->turns >= TURNS && atomic_load_explicit(&allowed, memory_order_relaxed)) {
    biased->turns = 0;
    atomic_store_explicit(&biased->owner, me, memory_order_relaxed);
  }
}

bool biased_try_alone(struct biased *biased) {
  if (!spin_try(&biased->lock))
    return false;
  if (!atomic_load_explicit(&biased->inside, memory_order_relaxed)) {
    atomic_store_explicit(&biased->owner, 0, memory_order_relaxed);
    return true;
  }
  spin_unlock(&biased->lock);
  return false;
}
