/* SPDX-License-Identifier: MIT */
#include "cache/format.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

const unsigned tier_order[TIERS] = {DEVICE_TIER, MEMORY_TIER, FILE_TIER};

const char *tier_region(unsigned tier) {
  static const char *const names[TIERS] = {[MEMORY_TIER] = REGION_NAME,
                                           [FILE_TIER] = FILE_REGION_NAME,
                                           [DEVICE_TIER] = DEVICE_REGION_NAME};
  return names[tier];
}

uint64_t key_hash(const void *key, size_t length) {
  return XXH3_64bits(key, length);
}

void key_buckets(uint64_t hash, uint64_t buckets, uint64_t numbers[2]) {
  numbers[0] = hash & (buckets - 1);
  numbers[1] = (hash >> 32 ^ (hash * UINT64_C(0x9e3779b97f4a7c15)) >> 17) & (buckets - 1);
}

uint64_t slot_check(const struct slot *slot) {
  uint64_t head = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
  size_t at = offsetof(struct slot, offset);
  return XXH3_64bits((const uint8_t *)slot + at, sizeof *slot - at) ^ (head * 2 + 1);
}

bool slot_is_whole(const struct slot *copy) {
  uint64_t sequence = atomic_load_explicit(&copy->sequence, memory_order_relaxed);
  return sequence % 2 == 0 && copy->check == slot_check(copy);
}

bool slot_has_key(const struct slot *copy, const void *key, size_t length) {
  return copy->key_length == length && memcmp(copy->key, key, length) == 0;
}

bool slot_is_sound(const struct slot *copy, const struct header *header) {
  uint64_t end = header->data + header->units * UNIT;
  return copy->key_length > 0 && copy->key_length <= HAUL_CACHE_KEY_MAX && copy->length > 0 &&
         copy->offset >= header->data && copy->offset < end && copy->offset % UNIT == 0 &&
         copy->length <= end - copy->offset && priority_is_valid(copy->priority);
}

uint64_t header_check(const struct header *header) {
  const uint64_t fixed[] = {STORE_MAGIC, header->buckets, header->units, header->data};
  return XXH3_64bits(fixed, sizeof fixed);
}

bool header_is_sound(const struct header *header, uint64_t length, uint64_t apart) {
  if (atomic_load_explicit(&header->magic, memory_order_relaxed) != STORE_MAGIC ||
      header->check != header_check(header) || header->buckets == 0 ||
      (header->buckets & (header->buckets - 1)) != 0 ||
      header->buckets > SLOTS_MAX / BUCKET_SLOTS || header->units == 0 || header->units > UNITS_MAX)
    return false;
  uint64_t slots_end = bucket_offset(header->buckets), blocks = header->units * UNIT;
  return apart ? header->data == 0 && slots_end == length && blocks == apart
               : header->data == slots_end && slots_end + blocks == length;
}

static uint64_t counter(const _Atomic uint64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

void header_stats(const struct header *header, unsigned tier, struct haul_cache_stats *stats) {
  struct haul_cache_tier_stats *const of[TIERS] = {
      [MEMORY_TIER] = &stats->memory, [FILE_TIER] = &stats->file, [DEVICE_TIER] = &stats->device};
  *of[tier] = (struct haul_cache_tier_stats){
      .capacity = header->units * UNIT,
      .used = counter(&header->used) * UNIT,
      .pinned = counter(&header->pinned) * UNIT,
      .blocks = counter(&header->blocks),
      .room = header->buckets * BUCKET_SLOTS,
      .restored = counter(&header->restored),
      .dropped = counter(&header->dropped),
      .puts = counter(&header->puts),
      .evictions = counter(&header->evictions),
  };
}

void source_name(uint64_t source, char name[SOURCE_NAME_MAX]) {
  snprintf(name, SOURCE_NAME_MAX, "haul-cache-%016" PRIx64, source);
}
