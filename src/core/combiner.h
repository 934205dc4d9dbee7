/* SPDX-License-Identifier: MIT
 * A lock that nobody who only brings something waits for: what is brought while it is held lies in
 * an inbox, and whoever holds it takes that in before he goes. */
#ifndef HAUL_CORE_COMBINER_H
#define HAUL_CORE_COMBINER_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"

/* A stack without a lock; its items are linked by `next` alone. */
struct inbox {
  struct list *_Atomic newest;
};

/* Release: who takes it sees what was written before. */
static inline void inbox_put(struct inbox *inbox, struct list *item) {
  struct list *newest = atomic_load_explicit(&inbox->newest, memory_order_relaxed);
  do
    item->next = newest;
  while (!atomic_compare_exchange_weak_explicit(&inbox->newest, &newest, item, memory_order_release,
                                                memory_order_relaxed));
}

static inline bool inbox_is_empty(const struct inbox *inbox) {
  return !atomic_load_explicit(&inbox->newest, memory_order_relaxed);
}

/* Moves all of it to the end of `list`, in the order in which it was put. */
void inbox_take(struct inbox *inbox, struct list *list);

struct combiner {
  pthread_mutex_t lock;
  struct inbox inbox;
  /* With the lock: takes all items of the list, the oldest first. */
  void (*admit)(struct combiner *combiner, struct list *items);
};

void combiner_init(struct combiner *combiner,
                   void (*admit)(struct combiner *combiner, struct list *items));
void combiner_destroy(struct combiner *combiner);

/* Takes the lock, and in what was brought. */
void combiner_lock(struct combiner *combiner);
/* Gives it back. */
void combiner_unlock(struct combiner *combiner);
/* Brings an item and returns at once: it is in, or will be before whoever is inside has left. */
void combiner_submit(struct combiner *combiner, struct list *item);
/* Brings one that may wait until the next who enters. What is read after it (seq_cst) is read after
 * it lies there. */
void combiner_defer(struct combiner *combiner, struct list *item);
/* Takes in all that was brought before, and what is laid by who does not see what was stored
 * (seq_cst) before this: where gates end, either who lays something flushes it or who ends them. */
void combiner_drain(struct combiner *combiner);

#endif
