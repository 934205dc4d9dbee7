/* SPDX-License-Identifier: MIT */
#include "core/spin.h"

#include <sched.h>

void spin_wait(struct spin *lock) {
  for (unsigned spins = 0; !spin_try(lock); spins++)
    if (spins >= 64) /* the holder may be preempted */
      sched_yield();
}
