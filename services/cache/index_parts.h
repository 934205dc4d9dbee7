/* SPDX-License-Identifier: MIT
 * What the files of the index share: index.c (slots), room.c (units), restore.c (life). */
#ifndef HAUL_CACHE_INDEX_PARTS_H
#define HAUL_CACHE_INDEX_PARTS_H

#include "cache/index.h"

/* Of a unit, in index->holders: FREE, BUSY (reserved), or a slot. */
#define FREE         0u
#define BUSY         1u
#define HOLDER(slot) ((slot) + 2u)
#define SLOT(holder) ((holder)-2u)

static inline uint64_t units_of(uint64_t length) {
  return (length + UNIT - 1) / UNIT;
}

static inline uint64_t sequence_of(const struct slot *slot) {
  return atomic_load_explicit(&slot->sequence, memory_order_relaxed);
}

static inline bool is_empty(const struct slot *slot) {
  return slot->key_length == 0;
}

static inline bool is_pinned(const struct index *index, uint32_t slot, int64_t now) {
  return index->tracks[slot].pinned_until > now;
}

/* ---- index.c ---- */

/* Around a change. Readers see the odd number before any later change of the slot, or of its
 * block's bytes by another block. Pairs with the reader's second look at the number. */
void slot_begin(struct slot *slot);
void slot_end(struct slot *slot);
void slot_clear(struct slot *slot);

/* Make the slot the most recently used one: a new one; one that is in its list. */
void index_list(struct index *index, uint32_t slot);
void index_touch(struct index *index, uint32_t slot);

/* False: the block stays, as a `spare` one makes no other be lost. */
bool index_evict(struct index *index, uint32_t slot, bool spare, int64_t now);

/* ---- room.c ---- */

void index_hold(struct index *index, uint64_t offset, uint64_t length, uint32_t holder);
void index_free(struct index *index, uint64_t offset, uint64_t length);

#endif
