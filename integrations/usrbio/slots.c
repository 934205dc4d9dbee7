/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>

#include "client.h"

int slots_open(struct slots *slots, int32_t count) {
  slots->count = count;
  slots->slots = calloc((size_t)count, sizeof *slots->slots);
  slots->free = calloc((size_t)count + 1, sizeof *slots->free);
  if (!slots->slots || !slots->free) {
    slots_close(slots);
    return -ENOMEM;
  }
  for (int32_t i = 0; i < count; i++)
    slots->free[i] = i;
  atomic_init(&slots->free_head, count);
  atomic_init(&slots->free_tail, 0);
  return 0;
}

void slots_close(struct slots *slots) {
  for (int32_t i = 0; slots->slots && i < slots->count; i++)
    if (slots->slots[i].busy && slots->slots[i].part)
      stage_abandon(slots->slots[i].part);
  free(slots->slots);
  free(slots->free);
}

static int32_t next_free(const struct slots *slots, int32_t at) {
  return at == slots->count ? 0 : at + 1;
}

bool slots_are_free(struct slots *slots) {
  /* Pairs with slots_release: the index is in `free`, and its slot was read. */
  return atomic_load_explicit(&slots->free_tail, memory_order_relaxed) !=
         atomic_load_explicit(&slots->free_head, memory_order_acquire);
}

int32_t slots_take(struct slots *slots, const void *userdata, struct stage_part *part) {
  int32_t tail = atomic_load_explicit(&slots->free_tail, memory_order_relaxed);
  int32_t index = slots->free[tail];
  slots->slots[index].userdata = userdata;
  slots->slots[index].part = part;
  /* Pairs with slots_end, which reads both. */
  atomic_store_explicit(&slots->slots[index].busy, true, memory_order_release);
  /* Pairs with slots_are_idle. */
  atomic_store_explicit(&slots->free_tail, next_free(slots, tail), memory_order_release);
  return index;
}

bool slots_end(struct slots *slots, int32_t index, const void **userdata,
               struct stage_part **part) {
  if (index < 0 || index >= slots->count)
    return false;
  struct slot *slot = &slots->slots[index];
  if (!atomic_load_explicit(&slot->busy, memory_order_acquire))
    return false;
  *userdata = slot->userdata;
  *part = slot->part;
  atomic_store_explicit(&slot->busy, false, memory_order_relaxed);
  return true;
}

void slots_release(struct slots *slots, int32_t index) {
  int32_t head = atomic_load_explicit(&slots->free_head, memory_order_relaxed);
  slots->free[head] = index;
  atomic_store_explicit(&slots->free_head, next_free(slots, head), memory_order_release);
}

bool slots_are_idle(struct slots *slots) {
  int32_t tail = atomic_load_explicit(&slots->free_tail, memory_order_acquire);
  int32_t head = atomic_load_explicit(&slots->free_head, memory_order_relaxed);
  return next_free(slots, head) == tail;
}
