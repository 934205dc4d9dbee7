/* SPDX-License-Identifier: MIT
 * An intrusive, circular, doubly linked list. */
#ifndef HAUL_CORE_LIST_H
#define HAUL_CORE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
  struct list *next, *previous;
};

#define LIST_INIT(name)                                                                            \
  { &(name), &(name) }
#define list_entry(item, type, member) ((type *)(void *)((char *)(item)-offsetof(type, member)))
#define list_each(item, head)                                                                      \
  for (struct list *item = (head)->next; item != (head); item = item->next)
/* Like list_each; the body may remove `item`. */
#define list_each_safe(item, head)                                                                 \
  for (struct list *item = (head)->next, *item##_next = item->next; item != (head);                \
       item = item##_next, item##_next = item->next)

static inline void list_init(struct list *head) {
  head->next = head->previous = head;
}

static inline bool list_empty(const struct list *head) {
  return head->next == head;
}

static inline void list_append(struct list *head, struct list *item) {
  item->previous = head->previous;
  item->next = head;
  head->previous->next = item;
  head->previous = item;
}

/* At the front. */
static inline void list_prepend(struct list *head, struct list *item) {
  list_append(head->next, item);
}

/* Leaves the item linked to itself, so that removing twice does no harm. */
static inline void list_remove(struct list *item) {
  item->previous->next = item->next;
  item->next->previous = item->previous;
  list_init(item);
}

static inline struct list *list_take(struct list *head) {
  struct list *item = head->next;
  if (item == head)
    return NULL;
  list_remove(item);
  return item;
}

/* Moves everything from `from` to the end of `to`. */
static inline void list_splice(struct list *to, struct list *from) {
  if (list_empty(from))
    return;
  from->next->previous = to->previous;
  to->previous->next = from->next;
  from->previous->next = to;
  to->previous = from->previous;
  list_init(from);
}

#endif
