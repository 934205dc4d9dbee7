/* SPDX-License-Identifier: MIT */
#include "core/timers.h"

#include <stddef.h>

static bool is_before(const struct timer *one, const struct timer *other) {
  return one->at != other->at ? one->at < other->at : one->order < other->order;
}

static void place(struct timer *timer, struct timer **slot) {
  *slot = timer;
  if (timer)
    timer->slot = slot;
}

/* Makes the later of two heaps the first child of the other. Both have no `next`; either may be
 * NULL. */
static struct timer *merge(struct timer *one, struct timer *other) {
  if (!one || !other)
    return one ? one : other;
  struct timer *first = is_before(other, one) ? other : one, *later = first == one ? other : one;
  place(first->child, &later->next);
  place(later, &first->child);
  return first;
}

/* In pairs from left to right, and the pairs from right to left: this bounds the cost. */
static struct timer *merge_all(struct timer *heaps) {
  struct timer *pairs = NULL, *merged = NULL;
  while (heaps) {
    struct timer *one = heaps, *other = one->next;
    heaps = other ? other->next : NULL;
    one->next = NULL;
    if (other)
      other->next = NULL;
    struct timer *pair = merge(one, other);
    pair->next = pairs;
    pairs = pair;
  }
  while (pairs) {
    struct timer *pair = pairs;
    pairs = pair->next;
    pair->next = NULL;
    merged = merge(pair, merged);
  }
  return merged;
}

void timer_init(struct timer *timer, void (*fire)(struct timer *timer)) {
  *timer = (struct timer){.fire = fire};
}

void timers_start(struct timers *timers, struct timer *timer, int64_t at) {
  timer_stop(timer);
  timer->at = at;
  timer->order = ++timers->starts;
  place(merge(timers->first, timer), &timers->first);
}

/* One of its children, none of which is earlier, takes its place. */
void timer_stop(struct timer *timer) {
  if (!timer->slot)
    return;
  struct timer *heir = merge_all(timer->child);
  if (heir)
    place(timer->next, &heir->next);
  place(heir ? heir : timer->next, timer->slot);
  timer->slot = NULL;
  timer->child = timer->next = NULL;
}
