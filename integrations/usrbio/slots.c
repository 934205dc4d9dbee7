/* SPDX-License-Identifier: MIT */
#include "slots.h"

#include <errno.h>
#include <stdlib.h>

int slots_make(struct slots *slots, int32_t count) {
  slots->count = count;
  slots->slots = calloc((size_t)count, sizeof *slots->slots);
  slots->free = calloc((size_t)count + 1, sizeof *slots->free);
  if (!slots->slots || !slots->free) {
    slots_end(slots);
    return -ENOMEM;
  }
  for (int32_t i = 0; i < count; i++)
    slots->free[i] = i;
  atomic_init(&slots->free_head, count);
  atomic_init(&slots->free_tail, 0);
  return 0;
}

void slots_end(struct slots *slots) {
  free(slots->slots);
  free(slots->free);
}

static int32_t next(const struct slots *slots, int32_t place) {
  return place == slots->count ? 0 : place + 1;
}

int32_t slots_take(struct slots *slots, const void *userdata) {
  int32_t tail = atomic_load_explicit(&slots->free_tail, memory_order_relaxed);
  /* Pairs with slots_give: its number is in `free`, and its slot read to the end. */
  if (tail == atomic_load_explicit(&slots->free_head, memory_order_acquire))
    return -1;
  int32_t index = slots->free[tail];
  slots->slots[index].userdata = userdata;
  /* Pairs with slots_finish, which reads userdata. */
  atomic_store_explicit(&slots->slots[index].busy, true, memory_order_release);
  /* Pairs with slots_give, which writes to the place. */
  atomic_store_explicit(&slots->free_tail, next(slots, tail), memory_order_release);
  return index;
}

bool slots_finish(struct slots *slots, int32_t index, const void **userdata) {
  if (index < 0 || index >= slots->count)
    return false;
  struct slot *slot = &slots->slots[index];
  if (!atomic_load_explicit(&slot->busy, memory_order_acquire))
    return false;
  *userdata = slot->userdata;
  atomic_store_explicit(&slot->busy, false, memory_order_relaxed);
  return true;
}

void slots_give(struct slots *slots, int32_t index) {
  int32_t head = atomic_load_explicit(&slots->free_head, memory_order_relaxed);
  slots->free[head] = index;
  atomic_store_explicit(&slots->free_head, next(slots, head), memory_order_release);
}

bool slots_idle(struct slots *slots) {
  int32_t tail = atomic_load_explicit(&slots->free_tail, memory_order_acquire);
  int32_t head = atomic_load_explicit(&slots->free_head, memory_order_relaxed);
  return next(slots, head) == tail;
}
