/* SPDX-License-Identifier: MIT */
#include "cache/index_parts.h"

#include <string.h>
#include <time.h>

/* Nanoseconds that the clock of another store may be ahead: a version beyond all clocks would
 * outlast every later put. */
#define AHEAD_MAX UINT64_C(86400000000000)

static void counter_add(_Atomic uint64_t *counter, uint64_t value) {
  atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

/* ---- Order of use ---- */

static struct use_list *list_of(struct index *index, uint32_t slot) {
  return &index->lists[index->slots[slot].priority - HAUL_PRIORITY_LOW];
}

static void list_remove(struct index *index, uint32_t slot) {
  struct use_list *list = list_of(index, slot);
  const struct track *track = &index->tracks[slot];
  *(track->newer == NO_SLOT ? &list->first : &index->tracks[track->newer].older) = track->older;
  *(track->older == NO_SLOT ? &list->last : &index->tracks[track->older].newer) = track->newer;
}

void index_list(struct index *index, uint32_t slot) {
  struct use_list *list = list_of(index, slot);
  index->tracks[slot].newer = NO_SLOT;
  index->tracks[slot].older = list->first;
  *(list->first == NO_SLOT ? &list->last : &index->tracks[list->first].newer) = slot;
  list->first = slot;
}

void index_touch(struct index *index, uint32_t slot) {
  list_remove(index, slot);
  index_list(index, slot);
}

void index_use(struct index *index, uint64_t slot, uint64_t sequence) {
  if (slot < index->slot_count && sequence_of(&index->slots[slot]) == sequence &&
      !is_empty(&index->slots[slot]))
    index_touch(index, (uint32_t)slot);
}

/* ---- Pins: pinned_units counts those that have expired, too, until they are looked at ---- */

static void unpin(struct index *index, uint32_t slot) {
  struct track *track = &index->tracks[slot];
  if (track->pinned_until != 0)
    index->pinned_units -= units_of(index->slots[slot].length);
  track->pinned_until = 0;
  atomic_store_explicit(&index->header->pinned, index->pinned_units, memory_order_relaxed);
}

static void unpin_expired(struct index *index, int64_t now) {
  for (uint32_t slot = 0; slot < index->slot_count; slot++)
    if (index->tracks[slot].pinned_until != 0 && !is_pinned(index, slot, now))
      unpin(index, slot);
}

int index_pin(struct index *index, uint32_t slot, int64_t until, int64_t now) {
  struct track *track = &index->tracks[slot];
  uint64_t units = units_of(index->slots[slot].length);
  if (until == 0) {
    unpin(index, slot);
    return 0;
  }
  if (track->pinned_until == 0) {
    if (index->pinned_units + units > index->units / 2)
      unpin_expired(index, now);
    if (index->pinned_units + units > index->units / 2)
      return HAUL_ELIMIT;
    index->pinned_units += units;
  }
  if (track->pinned_until < until)
    track->pinned_until = until;
  atomic_store_explicit(&index->header->pinned, index->pinned_units, memory_order_relaxed);
  return 0;
}

/* ---- Slots ---- */

void slot_begin(struct slot *slot) {
  atomic_store_explicit(&slot->sequence, sequence_of(slot) + 1, memory_order_relaxed);
  full_fence();
}

void slot_end(struct slot *slot) {
  uint64_t next = sequence_of(slot) + 1;
  struct slot copy;
  memcpy(&copy, slot, sizeof copy);
  atomic_store_explicit(&copy.sequence, next, memory_order_relaxed);
  slot->check = slot_check(&copy);
  atomic_store_explicit(&slot->sequence, next, memory_order_release);
}

void slot_clear(struct slot *slot) {
  slot->offset = slot->length = slot->checksum = slot->version = 0;
  slot->key_length = 0;
  slot->priority = 0;
  memset(slot->key, 0, sizeof slot->key);
}

void index_remove(struct index *index, uint32_t number) {
  struct slot *slot = &index->slots[number];
  uint64_t offset = slot->offset, length = slot->length;
  unpin(index, number);
  list_remove(index, number);
  slot_begin(slot);
  slot_clear(slot);
  slot_end(slot);
  index_free(index, offset, length);
  counter_add(&index->header->blocks, (uint64_t)-1);
}

uint32_t index_find(const struct index *index, const void *key, size_t length) {
  uint64_t buckets[2];
  key_buckets(key_hash(key, length), index->header->buckets, buckets);
  for (int i = 0; i < 2; i++)
    for (uint64_t j = buckets[i] * BUCKET_SLOTS; j < (buckets[i] + 1) * BUCKET_SLOTS; j++)
      if (slot_has_key(&index->slots[j], key, length))
        return (uint32_t)j;
  return NO_SLOT;
}

/* The index of a key and those below: the one that has it, and sets *slot; NULL: none has. */
static struct index *find_in(struct index *index, const void *key, size_t length, uint32_t *slot) {
  for (; index; index = index->below) {
    *slot = index_find(index, key, length);
    if (*slot != NO_SLOT)
      return index;
  }
  return NULL;
}

bool index_has(struct index *index, const void *key, size_t length) {
  uint32_t slot;
  return find_in(index, key, length, &slot) != NULL;
}

void index_drop_older(struct index *index, const void *key, size_t length, uint64_t version) {
  for (; index; index = index->below) {
    uint32_t slot = index_find(index, key, length);
    if (slot != NO_SLOT && index->slots[slot].version < version)
      index_remove(index, slot);
  }
}

static int copy_down(const struct index *index, const struct slot *slot, uint64_t to) {
  if (index->copy)
    return index->copy(index->user, slot->offset, to, slot->length);
  memcpy(index->below->base + to, index->base + slot->offset, slot->length);
  return 0;
}

/* Copies a block to the tier below, where it replaces others, unless it is `spare`. A reader that
 * does not find it there yet finds it here. HAUL_ELIMIT, or as index->copy. */
static int move_down(struct index *index, const struct slot *slot, bool spare, int64_t now) {
  struct block block = {.key = slot->key,
                        .key_length = slot->key_length,
                        .length = slot->length,
                        .checksum = slot->checksum,
                        .version = slot->version,
                        .priority = slot->priority,
                        .spare = spare};
  int code = index_reserve(index->below, &block, now);
  if (code)
    return code;
  code = copy_down(index, slot, block.offset);
  if (code) {
    index_cancel(index->below, &block);
    return code;
  }
  return index_commit(index->below, &block, false, now);
}

bool index_evict(struct index *index, uint32_t slot, bool spare, int64_t now) {
  int code = index->below ? move_down(index, &index->slots[slot], spare, now) : HAUL_ELIMIT;
  if (spare && code)
    return false;
  index_remove(index, slot);
  counter_add(&index->header->evictions, 1);
  return true;
}

/* Whether to evict `slot` rather than `other`, which may be NO_SLOT: its priority is lower. Within
 * a priority the order of the two is unknown, and either does. */
static bool is_better_victim(const struct index *index, uint32_t slot, uint32_t other) {
  return other == NO_SLOT || index->slots[slot].priority < index->slots[other].priority;
}

/* An empty slot of the key's buckets, by eviction if necessary; NO_SLOT: all have to stay. The
 * index has twice as many slots as blocks, so that evictions here are rare. */
static uint32_t slot_for(struct index *index, const struct block *block, int64_t now) {
  uint64_t buckets[2];
  uint32_t empty[2] = {NO_SLOT, NO_SLOT}, victim = NO_SLOT;
  unsigned count[2] = {0, 0};
  key_buckets(key_hash(block->key, block->key_length), index->header->buckets, buckets);
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < BUCKET_SLOTS; j++) {
      uint32_t slot = (uint32_t)(buckets[i] * BUCKET_SLOTS) + (uint32_t)j;
      if (is_empty(&index->slots[slot])) {
        empty[i] = slot;
        count[i]++;
      } else if (!is_pinned(index, slot, now) && is_better_victim(index, slot, victim)) {
        victim = slot;
      }
    }
  if (count[0] + count[1] > 0)
    return count[1] > count[0] ? empty[1] : empty[0];
  return victim != NO_SLOT && index_evict(index, victim, block->spare, now) ? victim : NO_SLOT;
}

static uint64_t wall_clock(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t next_version(struct index *index) {
  uint64_t now = wall_clock();
  index->last_version = now > index->last_version ? now : index->last_version + 1;
  return index->last_version;
}

/* Fills the slot between slot_begin and slot_end. */
static void slot_fill(struct slot *slot, const struct block *block) {
  slot->offset = block->offset;
  slot->length = block->length;
  slot->checksum = block->checksum;
  slot->version = block->version;
  slot->key_length = (uint32_t)block->key_length;
  slot->priority = block->priority;
  memcpy(slot->key, block->key, block->key_length);
}

static void insert(struct index *index, uint32_t number, const struct block *block) {
  struct slot *slot = &index->slots[number];
  slot_begin(slot);
  slot_fill(slot, block);
  slot_end(slot);
  index_list(index, number);
  index_hold(index, block->offset, block->length, HOLDER(number));
  counter_add(&index->header->blocks, 1);
}

/* The pin is the key's; a larger block may exceed the limit and lose it. */
static void keep_pin(struct index *index, uint32_t slot, int64_t until, int64_t now) {
  if (until > now)
    index_pin(index, slot, until, now);
}

static void replace(struct index *index, uint32_t number, const struct block *block, int64_t now) {
  struct slot *slot = &index->slots[number];
  uint64_t offset = slot->offset, length = slot->length;
  int64_t pinned_until = index->tracks[number].pinned_until;
  unpin(index, number);
  list_remove(index, number);
  slot_begin(slot);
  slot_fill(slot, block);
  slot_end(slot);
  index_list(index, number);
  index_hold(index, block->offset, block->length, HOLDER(number));
  index_free(index, offset, length);
  keep_pin(index, number, pinned_until, now);
}

/* The block in `number` replaces that of a tier below, and takes over its pin. */
static void remove_below(struct index *index, uint32_t number, const struct block *block,
                         int64_t now) {
  uint32_t slot;
  struct index *below = find_in(index->below, block->key, block->key_length, &slot);
  if (!below)
    return;
  int64_t pinned_until = below->tracks[slot].pinned_until;
  index_remove(below, slot);
  keep_pin(index, number, pinned_until, now);
}

int index_commit(struct index *index, struct block *block, bool if_absent, int64_t now) {
  if (block->version > wall_clock() + AHEAD_MAX) {
    index_cancel(index, block);
    return HAUL_EINVAL;
  }
  uint32_t slot;
  const struct index *has = find_in(index, block->key, block->key_length, &slot);
  uint64_t known = has ? has->slots[slot].version : 0;
  if (known != 0 && (if_absent || (block->version != 0 && known >= block->version))) {
    index_cancel(index, block);
    return if_absent ? HAUL_EEXIST : 0;
  }
  if (block->version == 0)
    block->version = next_version(index);
  else if (block->version > index->last_version)
    index->last_version = block->version;
  counter_add(&index->header->puts, 1);
  if (has == index) {
    replace(index, slot, block, now);
    return 0;
  }
  slot = slot_for(index, block, now);
  if (slot == NO_SLOT) {
    index_cancel(index, block);
    return HAUL_ELIMIT;
  }
  insert(index, slot, block);
  remove_below(index, slot, block, now);
  return 0;
}

bool index_evict_next(struct index *index, int64_t now) {
  int list = 0;
  while (list < 2 && index->lists[list].last == NO_SLOT)
    list++;
  return index->lists[list].last != NO_SLOT &&
         index_evict(index, index->lists[list].last, false, now);
}
