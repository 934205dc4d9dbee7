/* SPDX-License-Identifier: MIT
 * A lock that nobody who only brings something waits for: what is brought while it is held lies in
 * an inbox, and whoever holds it takes that in before he goes. */
#ifndef HAUL_CORE_GATE_H
#define HAUL_CORE_GATE_H

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

struct gate {
  pthread_mutex_t lock;
  struct inbox inbox;
  /* With the lock: takes all items of the list, the oldest first. */
  void (*let_in)(struct gate *gate, struct list *items);
};

void gate_init(struct gate *gate, void (*let_in)(struct gate *gate, struct list *items));
void gate_destroy(struct gate *gate);

/* Takes the lock, and in what was brought. */
void gate_enter(struct gate *gate);
/* Gives it back. */
void gate_leave(struct gate *gate);
/* Brings an item and returns at once: it is in, or will be before whoever is inside has left. */
void gate_bring(struct gate *gate, struct list *item);
/* Brings one that may wait until the next who enters. What is read after it (seq_cst) is read after
 * it lies there. */
void gate_lay(struct gate *gate, struct list *item);
/* Takes in all that was brought before, and what is laid by who does not see what was stored
 * (seq_cst) before this: where gates end, either who lays something flushes it or who ends them. */
void gate_flush(struct gate *gate);

#endif
