/* SPDX-License-Identifier: MIT */
#include "cache/index.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define FREE         0u
#define BUSY         1u /* reserved */
#define HOLDER(slot) ((slot) + 2u)
#define SLOT(holder) ((holder)-2u)
#define SCAN_MAX     65536 /* holders looked at for free room, so that a put takes bounded time */
#define VICTIMS_MAX  256   /* blocks tried for eviction in one list */
/* Nanoseconds that the clock of another store may be ahead: a version beyond all clocks would
 * outlast every later put. */
#define AHEAD_MAX UINT64_C(86400000000000)

static uint64_t units_of(uint64_t length) {
  return (length + UNIT - 1) / UNIT;
}

static void counter_add(_Atomic uint64_t *counter, uint64_t value) {
  atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static uint64_t sequence_of(const struct slot *slot) {
  return atomic_load_explicit(&slot->sequence, memory_order_relaxed);
}

static bool is_empty(const struct slot *slot) {
  return slot->key_length == 0;
}

static bool is_pinned(const struct index *index, uint32_t slot, int64_t now) {
  return index->tracks[slot].pinned_until > now;
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

static void list_add(struct index *index, uint32_t slot) {
  struct use_list *list = list_of(index, slot);
  index->tracks[slot].newer = NO_SLOT;
  index->tracks[slot].older = list->first;
  *(list->first == NO_SLOT ? &list->last : &index->tracks[list->first].newer) = slot;
  list->first = slot;
}

static void list_touch(struct index *index, uint32_t slot) {
  list_remove(index, slot);
  list_add(index, slot);
}

void index_use(struct index *index, uint64_t slot, uint64_t sequence) {
  if (slot < index->slot_count && sequence_of(&index->slots[slot]) == sequence &&
      !is_empty(&index->slots[slot]))
    list_touch(index, (uint32_t)slot);
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

/* Readers see the odd number before any later change of the slot, or of its block's bytes by
 * another block. Pairs with the reader's second look at the number. */
static void slot_begin(struct slot *slot) {
  atomic_store_explicit(&slot->sequence, sequence_of(slot) + 1, memory_order_relaxed);
  full_fence();
}

static void slot_end(struct slot *slot) {
  uint64_t next = sequence_of(slot) + 1;
  struct slot copy;
  memcpy(&copy, slot, sizeof copy);
  atomic_store_explicit(&copy.sequence, next, memory_order_relaxed);
  slot->check = slot_check(&copy);
  atomic_store_explicit(&slot->sequence, next, memory_order_release);
}

static void hold_units(struct index *index, uint64_t offset, uint64_t length, uint32_t holder) {
  uint64_t first = (offset - index->header->data) / UNIT, count = units_of(length);
  for (uint64_t i = first; i < first + count; i++)
    index->holders[i] = holder;
}

static void free_units(struct index *index, uint64_t offset, uint64_t length) {
  hold_units(index, offset, length, FREE);
  index->free_units += units_of(length);
  atomic_store_explicit(&index->header->used, index->units - index->free_units,
                        memory_order_relaxed);
}

void index_cancel(struct index *index, const struct block *block) {
  free_units(index, block->offset, block->length);
}

static void slot_clear(struct slot *slot) {
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
  free_units(index, offset, length);
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

bool index_has(const struct index *index, const void *key, size_t length) {
  return index_find(index, key, length) != NO_SLOT ||
         (index->below && index_find(index->below, key, length) != NO_SLOT);
}

/* The version that the index has in `slot`, or the one below has; 0: none. */
static uint64_t known_version(const struct index *index, uint32_t slot, const struct block *block) {
  if (slot == NO_SLOT && index->below) {
    index = index->below;
    slot = index_find(index, block->key, block->key_length);
  }
  return slot == NO_SLOT ? 0 : index->slots[slot].version;
}

/* Copies a block to the tier below, where it replaces others, unless it is `spare`. A reader that
 * does not find it there yet finds it here. HAUL_ELIMIT. */
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
  memcpy(index->below->base + block.offset, index->base + slot->offset, slot->length);
  return index_commit(index->below, &block, false, now);
}

/* False: the block stays, as a `spare` one makes no other be lost. */
static bool evict(struct index *index, uint32_t slot, bool spare, int64_t now) {
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
  return victim != NO_SLOT && evict(index, victim, block->spare, now) ? victim : NO_SLOT;
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
  list_add(index, number);
  hold_units(index, block->offset, block->length, HOLDER(number));
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
  list_add(index, number);
  hold_units(index, block->offset, block->length, HOLDER(number));
  free_units(index, offset, length);
  keep_pin(index, number, pinned_until, now);
}

/* The block in `number` replaces that of the tier below, and takes over its pin. */
static void remove_below(struct index *index, uint32_t number, const struct block *block,
                         int64_t now) {
  uint32_t slot = index_find(index->below, block->key, block->key_length);
  if (slot == NO_SLOT)
    return;
  int64_t pinned_until = index->below->tracks[slot].pinned_until;
  index_remove(index->below, slot);
  keep_pin(index, number, pinned_until, now);
}

int index_commit(struct index *index, struct block *block, bool if_absent, int64_t now) {
  if (block->version > wall_clock() + AHEAD_MAX) {
    index_cancel(index, block);
    return HAUL_EINVAL;
  }
  uint32_t slot = index_find(index, block->key, block->key_length);
  uint64_t known = known_version(index, slot, block);
  if (known != 0 && (if_absent || (block->version != 0 && known >= block->version))) {
    index_cancel(index, block);
    return if_absent ? HAUL_EEXIST : 0;
  }
  if (block->version == 0)
    block->version = next_version(index);
  else if (block->version > index->last_version)
    index->last_version = block->version;
  counter_add(&index->header->puts, 1);
  if (slot != NO_SLOT) {
    replace(index, slot, block, now);
    return 0;
  }
  slot = slot_for(index, block, now);
  if (slot == NO_SLOT) {
    index_cancel(index, block);
    return HAUL_ELIMIT;
  }
  insert(index, slot, block);
  if (index->below)
    remove_below(index, slot, block, now);
  return 0;
}

/* ---- Room ---- */

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
    if (holder != FREE && !evict(index, SLOT(holder), spare, now))
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
      list_touch(index, slot);
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
  hold_units(index, block->offset, block->length, BUSY);
  index->free_units -= count;
  atomic_store_explicit(&index->header->used, index->units - index->free_units,
                        memory_order_relaxed);
  return 0;
}

/* ---- Life ---- */

static uint64_t buckets_for(uint64_t capacity, uint64_t blocks) {
  uint64_t wanted = blocks ? blocks : capacity / 65536, buckets = 4;
  while (buckets * BUCKET_SLOTS < wanted * 2 && buckets <= SLOTS_MAX)
    buckets *= 2;
  return buckets;
}

uint64_t index_length(uint64_t capacity, uint64_t blocks) {
  if (capacity == 0 || capacity > UNITS_MAX * UNIT || blocks > SLOTS_MAX / 2)
    return 0;
  uint64_t buckets = buckets_for(capacity, blocks);
  if (buckets * BUCKET_SLOTS > SLOTS_MAX)
    return 0;
  return bucket_offset(buckets) + units_of(capacity) * UNIT;
}

static int index_open(struct index *index, void *memory) {
  struct header *header = memory;
  *index = (struct index){.base = memory,
                          .header = header,
                          .slots = (struct slot *)((uint8_t *)memory + bucket_offset(0)),
                          .slot_count = header->buckets * BUCKET_SLOTS,
                          .units = header->units,
                          .free_units = header->units};
  index->holders = calloc(index->units, sizeof *index->holders);
  index->tracks = calloc(index->slot_count, sizeof *index->tracks);
  for (int i = 0; i < 3; i++)
    index->lists[i] = (struct use_list){NO_SLOT, NO_SLOT};
  if (index->holders && index->tracks)
    return 0;
  index_close(index);
  return HAUL_ENOMEM;
}

void index_close(struct index *index) {
  free(index->holders);
  free(index->tracks);
  index->holders = NULL;
  index->tracks = NULL;
}

int index_create(struct index *index, void *memory, uint64_t capacity, uint64_t blocks) {
  struct header *header = memory;
  header->buckets = buckets_for(capacity, blocks);
  header->units = units_of(capacity);
  header->data = bucket_offset(header->buckets);
  header->check = header_check(header);
  int code = index_open(index, memory);
  if (code)
    return code;
  for (uint64_t i = 0; i < index->slot_count; i++) {
    slot_begin(&index->slots[i]);
    slot_end(&index->slots[i]);
  }
  atomic_store_explicit(&header->magic, STORE_MAGIC, memory_order_release);
  return 0;
}

static bool units_are_free(const struct index *index, const struct slot *slot) {
  uint64_t first = (slot->offset - index->header->data) / UNIT, count = units_of(slot->length);
  for (uint64_t i = first; i < first + count; i++)
    if (index->holders[i] != FREE)
      return false;
  return true;
}

/* Whether the slot has a block that can be served: nothing in the file is trusted. */
static bool slot_is_good(const struct index *index, uint32_t number) {
  const struct slot *slot = &index->slots[number];
  return slot_is_whole(slot) && slot_is_sound(slot, index->header) &&
         index_find(index, slot->key, slot->key_length) == number && /* its bucket, and no twin */
         units_are_free(index, slot) &&
         XXH3_64bits(index->base + slot->offset, slot->length) == slot->checksum;
}

static void slot_drop(struct slot *slot) {
  uint64_t sequence = sequence_of(slot);
  atomic_store_explicit(&slot->sequence, sequence + sequence % 2, memory_order_relaxed);
  slot_begin(slot);
  slot_clear(slot);
  slot_end(slot);
}

static void take_over(struct index *index, uint32_t number) {
  const struct slot *slot = &index->slots[number];
  hold_units(index, slot->offset, slot->length, HOLDER(number));
  index->free_units -= units_of(slot->length);
  list_add(index, number);
  if (slot->version > index->last_version)
    index->last_version = slot->version;
}

int index_restore(struct index *index, void *memory, uint64_t length) {
  struct header *header = memory;
  uint64_t restored = 0, dropped = 0;
  if (length < HEADER_BYTES || !header_is_sound(header, length))
    return HAUL_EINVAL;
  int code = index_open(index, memory);
  if (code)
    return code;
  for (uint64_t i = 0; i < index->slot_count; i++) {
    if (slot_is_whole(&index->slots[i]) && is_empty(&index->slots[i]))
      continue;
    if (slot_is_good(index, (uint32_t)i)) {
      take_over(index, (uint32_t)i);
      restored++;
    } else {
      slot_drop(&index->slots[i]);
      dropped++;
    }
  }
  atomic_store(&header->used, index->units - index->free_units);
  atomic_store(&header->pinned, 0);
  atomic_store(&header->blocks, restored);
  atomic_store(&header->restored, restored);
  atomic_store(&header->dropped, dropped);
  atomic_store(&header->puts, 0);
  atomic_store(&header->evictions, 0);
  return 0;
}

void index_put_below(struct index *index, struct index *below) {
  for (uint32_t i = 0; i < below->slot_count; i++) {
    const struct slot *slot = &below->slots[i];
    uint32_t above = is_empty(slot) ? NO_SLOT : index_find(index, slot->key, slot->key_length);
    if (above != NO_SLOT && index->slots[above].version < slot->version)
      index_remove(index, above);
    else if (above != NO_SLOT)
      index_remove(below, i);
  }
  if (below->last_version > index->last_version)
    index->last_version = below->last_version;
  index->below = below;
}
