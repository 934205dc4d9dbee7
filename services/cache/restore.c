/* SPDX-License-Identifier: MIT
 * The life of an index: new, found in a file, closed, joined with the one below. */
#include "cache/index_parts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static uint64_t buckets_for(uint64_t capacity, uint64_t blocks) {
  uint64_t wanted = blocks ? blocks : capacity / 65536, buckets = 4;
  while (buckets * BUCKET_SLOTS < wanted * 2 && buckets <= SLOTS_MAX)
    buckets *= 2;
  return buckets;
}

uint64_t index_slots_length(uint64_t capacity, uint64_t blocks) {
  if (capacity == 0 || capacity > UNITS_MAX * UNIT || blocks > SLOTS_MAX / 2)
    return 0;
  uint64_t buckets = buckets_for(capacity, blocks);
  return buckets * BUCKET_SLOTS > SLOTS_MAX ? 0 : bucket_offset(buckets);
}

uint64_t index_length(uint64_t capacity, uint64_t blocks) {
  uint64_t slots = index_slots_length(capacity, blocks);
  return slots == 0 ? 0 : slots + units_of(capacity) * UNIT;
}

static int index_open(struct index *index, void *memory) {
  struct header *header = memory;
  *index = (struct index){.base = header->data ? memory : NULL,
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

static int create(struct index *index, struct header *header, uint64_t capacity, uint64_t blocks,
                  uint64_t data) {
  header->buckets = buckets_for(capacity, blocks);
  header->units = units_of(capacity);
  header->data = data;
  header->check = header_check(header);
  int code = index_open(index, header);
  if (code)
    return code;
  for (uint64_t i = 0; i < index->slot_count; i++) {
    slot_begin(&index->slots[i]);
    slot_end(&index->slots[i]);
  }
  atomic_store_explicit(&header->magic, STORE_MAGIC, memory_order_release);
  return 0;
}

int index_create(struct index *index, void *memory, uint64_t capacity, uint64_t blocks) {
  return create(index, memory, capacity, blocks, index_slots_length(capacity, blocks));
}

int index_create_apart(struct index *index, void *memory, uint64_t capacity, uint64_t blocks) {
  return create(index, memory, capacity, blocks, 0);
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
  index_hold(index, slot->offset, slot->length, HOLDER(number));
  index->free_units -= units_of(slot->length);
  index_list(index, number);
  if (slot->version > index->last_version)
    index->last_version = slot->version;
}

int index_restore(struct index *index, void *memory, uint64_t length) {
  struct header *header = memory;
  uint64_t restored = 0, dropped = 0;
  if (length < HEADER_BYTES || !header_is_sound(header, length, 0))
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
