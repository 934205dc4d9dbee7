/* SPDX-License-Identifier: MIT
 * A combining lock. Submitters never block: an item that is submitted while the lock is held goes
 * to an inbox, which the holder drains before it leaves. */
#ifndef HAUL_CORE_COMBINER_H
#define HAUL_CORE_COMBINER_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"

/* A lock-free stack, linked by `next` alone. */
struct inbox {
  struct list *_Atomic newest;
};

/* Release: pairs with the acquire of inbox_take. */
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

/* Moves all items to the end of `list`, in the order in which they were put. */
void inbox_take(struct inbox *inbox, struct list *list);

struct combiner {
  pthread_mutex_t lock;
  struct inbox inbox;
  /* Called with the lock; takes all items of the list, oldest first. */
  void (*admit)(struct combiner *combiner, struct list *items);
};

void combiner_init(struct combiner *combiner,
                   void (*admit)(struct combiner *combiner, struct list *items));
void combiner_destroy(struct combiner *combiner);

/* Takes the lock and admits the inbox. */
void combiner_lock(struct combiner *combiner);
/* Admits items that came meanwhile. */
void combiner_unlock(struct combiner *combiner);
/* Submits an item and returns at once. It is admitted now, or by the holder before it leaves. */
void combiner_submit(struct combiner *combiner, struct list *item);
/* Submits an item that may wait for the next holder. A seq_cst read after it comes after the put.
 */
void combiner_defer(struct combiner *combiner, struct list *item);
/* Admits all items that were submitted before, and those of submitters that do not see a seq_cst
 * store made before this call. So at shutdown either the submitter or the closer drains an item. */
void combiner_drain(struct combiner *combiner);

#endif
