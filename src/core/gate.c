/* SPDX-License-Identifier: MIT */
#include "core/gate.h"

void inbox_take(struct inbox *inbox, struct list *list) {
  struct list *newest = atomic_exchange_explicit(&inbox->newest, NULL, memory_order_acquire);
  struct list *oldest = NULL;
  while (newest) { /* turned round */
    struct list *next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest) {
    struct list *next = oldest->next;
    list_append(list, oldest);
    oldest = next;
  }
}

void gate_init(struct gate *gate, void (*let_in)(struct gate *gate, struct list *items)) {
  pthread_mutex_init(&gate->lock, NULL);
  atomic_store(&gate->inbox.newest, NULL);
  gate->let_in = let_in;
}

void gate_destroy(struct gate *gate) {
  pthread_mutex_destroy(&gate->lock);
}

/* With the lock. */
static void take_in(struct gate *gate) {
  struct list items = LIST_INIT(items);
  if (inbox_is_empty(&gate->inbox))
    return;
  inbox_take(&gate->inbox, &items);
  gate->let_in(gate, &items);
}

void gate_enter(struct gate *gate) {
  pthread_mutex_lock(&gate->lock);
  take_in(gate);
}

/* Who brings puts, then tries the lock; who leaves unlocks, then looks. With a fence between the
 * two on both sides one of them sees the other, so nothing is left lying. */
void gate_leave(struct gate *gate) {
  for (;;) {
    pthread_mutex_unlock(&gate->lock);
    atomic_thread_fence(memory_order_seq_cst);
    if (inbox_is_empty(&gate->inbox) || pthread_mutex_trylock(&gate->lock) != 0)
      return;
    take_in(gate);
  }
}

void gate_lay(struct gate *gate, struct list *item) {
  inbox_put(&gate->inbox, item);
  atomic_thread_fence(memory_order_seq_cst);
}

void gate_flush(struct gate *gate) {
  atomic_thread_fence(memory_order_seq_cst);
  gate_enter(gate);
  gate_leave(gate);
}

void gate_bring(struct gate *gate, struct list *item) {
  inbox_put(&gate->inbox, item);
  atomic_thread_fence(memory_order_seq_cst);
  if (pthread_mutex_trylock(&gate->lock) != 0)
    return;
  take_in(gate);
  gate_leave(gate);
}
