/* SPDX-License-Identifier: MIT
 * A spin lock for what one thread uses nearly always: after some hundreds of turns in a row that
 * thread takes it without a locked instruction. Whoever else comes pays for that, once, with
 * membarrier(2), and the lock is anybody's again. */
#ifndef HAUL_CORE_BIASED_H
#define HAUL_CORE_BIASED_H

#include "core/spin.h"

/* Zeroed: open. */
struct biased {
  struct spin lock;        /* of all but the favourite; guards the three below but for reading */
  _Atomic uint32_t owner;  /* the favourite's number, 0: there is none */
  _Atomic uint32_t inside; /* it is in; its own */
  uint32_t last, turns;    /* who had the lock, and how often in a row */
};

/* Favourites are had from now on, where the kernel has the call. Cheap while the process has one
 * thread, else some milliseconds, the first time. */
void biased_allow(void);

/* The slow half of biased_lock; with the lock. */
void biased_wait(struct biased *biased, uint32_t me);

/* For the favourite alone: false for anybody else, who has nothing then. `me` is the thread's
 * number, never 0. */
static inline bool biased_enter(struct biased *biased, uint32_t me) {
  if (__builtin_expect(atomic_load_explicit(&biased->owner, memory_order_relaxed) != me, 0))
    return false;
  /* The store must be before the load for whoever takes the lock away: its membarrier orders them,
   * and the compiler must not turn them round. */
  atomic_store_explicit(&biased->inside, 1, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst);
  if (__builtin_expect(atomic_load_explicit(&biased->owner, memory_order_relaxed) == me, 1))
    return true;
  atomic_store_explicit(&biased->inside, 0, memory_order_release);
  return false;
}

static inline void biased_leave(struct biased *biased) {
  atomic_store_explicit(&biased->inside, 0, memory_order_release);
}

/* For anybody; returns what biased_unlock wants. */
static inline bool biased_lock(struct biased *biased, uint32_t me) {
  if (biased_enter(biased, me))
    return true;
  biased_wait(biased, me);
  return false;
}

static inline void biased_unlock(struct biased *biased, bool favoured) {
  if (__builtin_expect(favoured, 1))
    biased_leave(biased);
  else
    spin_unlock(&biased->lock);
}

/* In a forked child, whose one thread nobody waits for: false where another one of the parent's had
 * it. Never a favourite's. */
bool biased_try_alone(struct biased *biased);

#endif
