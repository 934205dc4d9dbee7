/* SPDX-License-Identifier: MIT
 * Timers by time: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986), intrusive. A start
 * takes constant time, a stop and the removal of the first O(log n) amortized; none allocates. */
#ifndef HAUL_CORE_TIMERS_H
#define HAUL_CORE_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

/* Fires once, at or after `at`. Embedded; timer_init before use. */
struct timer {
  void (*fire)(struct timer *timer);
  int64_t at;
  uint64_t order;      /* of the start: of equal times the first started fires first */
  struct timer **slot; /* the pointer to this timer; NULL: it is stopped */
  struct timer *child; /* the first of those that are not earlier than this one */
  struct timer *next;  /* another child of the same timer */
};

struct timers {
  struct timer *first;
  uint64_t starts;
};

void timer_init(struct timer *timer, void (*fire)(struct timer *timer));
static inline bool timer_runs(const struct timer *timer) {
  return timer->slot;
}
/* Also moves a timer that runs. */
void timers_start(struct timers *timers, struct timer *timer, int64_t at);
void timer_stop(struct timer *timer); /* stopping twice does no harm */

#endif
