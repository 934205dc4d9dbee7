/* SPDX-License-Identifier: MIT */
#include "core/combiner.h"

void inbox_take(struct inbox *inbox, struct list *list) {
  struct list *newest = atomic_exchange_explicit(&inbox->newest, NULL, memory_order_acquire);
  struct list *oldest = NULL;
  while (newest) { /* reverse */
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

void combiner_init(struct combiner *combiner,
                   void (*admit)(struct combiner *combiner, struct list *items)) {
  pthread_mutex_init(&combiner->lock, NULL);
  atomic_store(&combiner->inbox.newest, NULL);
  combiner->admit = admit;
}

void combiner_destroy(struct combiner *combiner) {
  pthread_mutex_destroy(&combiner->lock);
}

/* With the lock. */
static void admit_inbox(struct combiner *combiner) {
  struct list items = LIST_INIT(items);
  if (inbox_is_empty(&combiner->inbox))
    return;
  inbox_take(&combiner->inbox, &items);
  combiner->admit(combiner, &items);
}

void combiner_lock(struct combiner *combiner) {
  pthread_mutex_lock(&combiner->lock);
  admit_inbox(combiner);
}

/* A submitter puts its item, then tries the lock. The holder unlocks, then checks the inbox. Both
 * have a seq_cst fence in between, so one of them sees the other and no item is left behind. */
void combiner_unlock(struct combiner *combiner) {
  for (;;) {
    pthread_mutex_unlock(&combiner->lock);
    atomic_thread_fence(memory_order_seq_cst);
    if (inbox_is_empty(&combiner->inbox) || pthread_mutex_trylock(&combiner->lock) != 0)
      return;
    admit_inbox(combiner);
  }
}

void combiner_defer(struct combiner *combiner, struct list *item) {
  inbox_put(&combiner->inbox, item);
  atomic_thread_fence(memory_order_seq_cst);
}

void combiner_drain(struct combiner *combiner) {
  atomic_thread_fence(memory_order_seq_cst);
  combiner_lock(combiner);
  combiner_unlock(combiner);
}

void combiner_submit(struct combiner *combiner, struct list *item) {
  inbox_put(&combiner->inbox, item);
  atomic_thread_fence(memory_order_seq_cst);
  if (pthread_mutex_trylock(&combiner->lock) != 0)
    return;
  admit_inbox(combiner);
  combiner_unlock(combiner);
}
