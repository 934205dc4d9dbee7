/* SPDX-License-Identifier: MIT
 * The room of blocks: units in a row, and which blocks leave to free them. */
#include "cache/index_parts.h"

#define SCAN_MAX    65536 /* holders looked at for free room, so that a put takes bounded time */
#define VICTIMS_MAX 256   /* blocks tried for eviction in one list */

void index_hold(struct index *index, uint64_t offset, uint64_t length, uint32_t holder) {
  uint64_t first = (offset - index->header->data) / UNIT, count = units_of(length);
  for (uint64_t i = first; i < first + count; i++)
    index->holders[i] = holder;
}

void index_free(struct index *index, uint64_t offset, uint64_t length) {
  index_hold(index, offset, length, FREE);
  index->free_units += units_of(length);
  atomic_store_explicit(&index->header->used, index->units - index->free_units,
                        memory_order_relaxed);
}

void index_cancel(struct index *index, const struct block *block) {
  index_free(index, block->offset, block->length);
}

/* The units from `at` on that one block, or one free unit, takes. */
static uint64_t step_at(const struct index *index, uint64_t at) {
  uint32_t holder = index->holders[at];
  if (holder == FREE || holder == BUSY)
    return 1;
  const struct slot *slot = &index->slots[SLOT(holder)];
  return (slot->offset - index->header->data) / UNIT + units_of(slot->length) - at;
}

/* `count` free units in a row, from the last place on; `units` of the index: there are none. */
static uint64_t find_run(struct index *index, uint64_t count) {
  uint64_t at = index->cursor, run = 0;
  if (count > index->free_units)
    return index->units;
  for (uint64_t looked = 0, passed = 0; looked < SCAN_MAX && passed < index->units + count;
       looked++) {
    if (at >= index->units) {
      at = 0;
      run = 0;
    }
    uint64_t step = step_at(index, at);
    run = index->holders[at] == FREE ? run + 1 : 0;
    at += step;
    passed += step;
    if (run == count) {
      index->cursor = at;
      return at - count;
    }
  }
  return index->units;
}

/* Whether the holder may make room for a block; blocks of more than `priority` do not. */
static bool may_go(const struct index *index, uint32_t holder, int priority, int64_t now) {
  if (holder == FREE || holder == BUSY)
    return holder == FREE;
  return index->slots[SLOT(holder)].priority <= priority && !is_pinned(index, SLOT(holder), now);
}

/* Grows [*first, *end), which a block holds, over its neighbours to `count` units. */
static bool grow_window(const struct index *index, uint64_t count, int priority, int64_t now,
                        uint64_t *first, uint64_t *end) {
  while (*end - *first < count)
    if (*end < index->units && may_go(index, index->holders[*end], priority, now)) {
      *end += step_at(index, *end);
    } else if (*first > 0 && may_go(index, index->holders[*first - 1], priority, now)) {
      uint32_t holder = index->holders[*first - 1];
      *first = holder == FREE ? *first - 1
                              : (index->slots[SLOT(holder)].offset - index->header->data) / UNIT;
    } else {
      return false;
    }
  return true;
}

/* Evicts all blocks of the window; its first unit, or `units` of the index: one stays. */
static uint64_t clear_window(struct index *index, uint64_t first, uint64_t end, bool spare,
                             int64_t now) {
  for (uint64_t at = first; at < end;) {
    uint32_t holder = index->holders[at];
    at += step_at(index, at);
    if (holder != FREE && !index_evict(index, SLOT(holder), spare, now))
      return index->units;
  }
  return first;
}

/* Evicts the least recently used block of the list that is not pinned, and as many neighbours as
 * the room needs; `units` of the index: no block has such neighbours, or one has to stay. */
static uint64_t evict_from(struct index *index, int priority, uint64_t count, bool spare,
                           int64_t now) {
  uint32_t slot = index->lists[priority - HAUL_PRIORITY_LOW].last;
  for (int tried = 0; slot != NO_SLOT && tried < VICTIMS_MAX; tried++) {
    uint64_t first = (index->slots[slot].offset - index->header->data) / UNIT;
    uint64_t end = first + units_of(index->slots[slot].length);
    uint32_t newer = index->tracks[slot].newer;
    if (is_pinned(index, slot, now)) /* out of the way of the next search */
      index_touch(index, slot);
    else if (grow_window(index, count, priority, now, &first, &end))
      return clear_window(index, first, end, spare, now);
    slot = newer;
  }
  return index->units;
}

int index_reserve(struct index *index, struct block *block, int64_t now) {
  if (block->length == 0 || block->length > index->units * UNIT)
    return HAUL_ELIMIT;
  uint64_t count = units_of(block->length), first = find_run(index, count);
  for (int priority = HAUL_PRIORITY_LOW; first == index->units && priority <= HAUL_PRIORITY_HIGH;
       priority++)
    first = evict_from(index, priority, count, block->spare, now);
  if (first == index->units)
    return HAUL_ELIMIT;
  block->offset = index->header->data + first * UNIT;
  index_hold(index, block->offset, block->length, BUSY);
  index->free_units -= count;
  atomic_store_explicit(&index->header->used, index->units - index->free_units,
                        memory_order_relaxed);
  return 0;
}
