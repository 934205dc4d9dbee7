/* SPDX-License-Identifier: MIT
 * A spin lock for dozens of instructions. Its holder neither sleeps nor calls out of the library.
 */
#ifndef HAUL_CORE_SPIN_H
#define HAUL_CORE_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Zeroed: unlocked. */
struct spin {
  _Atomic uint32_t held;
};

static inline bool spin_try(struct spin *lock) {
  return atomic_exchange_explicit(&lock->held, 1, memory_order_acquire) == 0;
}

/* The slow half of spin_lock. */
void spin_wait(struct spin *lock);

static inline void spin_lock(struct spin *lock) {
  if (!spin_try(lock))
    spin_wait(lock);
}

static inline void spin_unlock(struct spin *lock) {
  atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
