/* SPDX-License-Identifier: MIT
 * Indexes over each other: what moves down, and what leaves. The blocks of a device are here in
 * memory that its index does not know, and which only a copy reaches. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cache/index.h"

static struct {
  struct index index;
  void *memory;
  struct index device;
  void *slots;
  uint8_t *blocks; /* of the device */
  unsigned copies;
  int copy_code;
} t;

static void begin(uint64_t units, uint64_t blocks) {
  t.memory = calloc(1, index_length(units * UNIT, blocks));
  assert_int_equal(index_create(&t.index, t.memory, units * UNIT, blocks), 0);
}

static int copy_from_device(void *user, uint64_t offset, uint64_t to, uint64_t length) {
  assert_ptr_equal(user, &t);
  t.copies++;
  if (t.copy_code == 0)
    memcpy(t.index.base + to, t.blocks + offset, length);
  return t.copy_code;
}

/* Over t.index. */
static void begin_device(uint64_t units) {
  t.slots = calloc(1, index_slots_length(units * UNIT, 64));
  t.blocks = calloc(units, UNIT);
  assert_int_equal(index_create_apart(&t.device, t.slots, units * UNIT, 64), 0);
  t.device.copy = copy_from_device;
  t.device.user = &t;
  index_put_below(&t.device, &t.index);
}

static int end(void **state) {
  (void)state;
  index_close(&t.index);
  index_close(&t.device);
  free(t.memory);
  free(t.slots);
  free(t.blocks);
  memset(&t, 0, sizeof t);
  return 0;
}

static uint8_t *bytes_at(const struct index *index, uint64_t offset) {
  return (index->base ? index->base : t.blocks) + offset;
}

static int try_put(struct index *index, const char *key, uint64_t version, bool spare) {
  struct block block = {
      .key = key, .key_length = strlen(key), .length = UNIT, .version = version, .spare = spare};
  int code = index_reserve(index, &block, 1);
  if (code)
    return code;
  memset(bytes_at(index, block.offset), (int)version, UNIT);
  block.checksum = XXH3_64bits(bytes_at(index, block.offset), UNIT);
  return index_commit(index, &block, false, 1);
}

static void put_in(struct index *index, const char *key, uint64_t version) {
  assert_int_equal(try_put(index, key, version, false), 0);
}

/* The version of the key's block, whose bytes are its own; 0: there is none. */
static uint64_t version_in(const struct index *index, const char *key) {
  uint32_t slot = index_find(index, key, strlen(key));
  if (slot == NO_SLOT)
    return 0;
  const uint8_t *bytes = bytes_at(index, index->slots[slot].offset);
  for (int i = 0; i < UNIT; i++)
    assert_int_equal(bytes[i], (uint8_t)index->slots[slot].version);
  assert_int_equal(index->slots[slot].checksum, XXH3_64bits(bytes, UNIT));
  return index->slots[slot].version;
}

/* ---- Two tiers ---- */

static void evicted_blocks_move_below(void **state) {
  (void)state;
  struct index below;
  uint64_t length = index_length(3 * UNIT, 64);
  void *memory = calloc(1, length);
  assert_int_equal(index_create(&below, memory, 3 * UNIT, 64), 0);
  begin(2, 64);
  put_in(&below, "old", 1); /* of an earlier run */
  put_in(&below, "new", 9);
  put_in(&t.index, "old", 5);
  put_in(&t.index, "new", 2);
  index_put_below(&t.index, &below); /* the newer blocks stay */
  assert_int_equal(version_in(&t.index, "old"), 5);
  assert_int_equal(version_in(&below, "old"), 0);
  assert_int_equal(version_in(&t.index, "new"), 0);
  assert_int_equal(version_in(&below, "new"), 9);
  put_in(&t.index, "new", 3); /* older than that below: dropped */
  assert_int_equal(version_in(&t.index, "new"), 0);
  put_in(&t.index, "a", 11);
  put_in(&t.index, "b", 12);
  assert_int_equal(version_in(&t.index, "old"), 0);
  assert_int_equal(version_in(&below, "old"), 5);
  put_in(&t.index, "new", 13); /* leaves the tier below */
  assert_int_equal(version_in(&t.index, "new"), 13);
  assert_int_equal(version_in(&below, "new"), 0);
  assert_int_equal(version_in(&below, "a"), 11);
  put_in(&t.index, "c", 14);
  put_in(&t.index, "d", 15); /* the tier below is full, and evicts its oldest */
  assert_int_equal(version_in(&below, "old"), 0);
  assert_int_equal(version_in(&below, "a"), 11);
  assert_int_equal(version_in(&below, "b"), 12);
  assert_int_equal(version_in(&below, "new"), 13);
  assert_true(index_has(&t.index, "a", 1) && index_has(&t.index, "d", 1));
  assert_false(index_has(&t.index, "old", 3));
  index_close(&below);
  free(memory);
}

/* A spare block takes room from which a block can move, and nothing is lost. */
static void a_spare_block_moves_others_to_free_room(void **state) {
  (void)state;
  struct index below;
  uint64_t length = index_length(2 * UNIT, 64);
  void *memory = calloc(1, length);
  const char *const keys[] = {"s1", "s2", "s3"};
  assert_int_equal(index_create(&below, memory, 2 * UNIT, 64), 0);
  begin(2, 64);
  index_put_below(&t.index, &below);
  put_in(&t.index, "a", 1);
  put_in(&t.index, "b", 2);
  for (uint64_t i = 0; i < 3; i++)
    assert_int_equal(try_put(&t.index, keys[i], 3 + i, true), i < 2 ? 0 : HAUL_ELIMIT);
  assert_int_equal(version_in(&below, "a"), 1);
  assert_int_equal(version_in(&below, "b"), 2);
  assert_int_equal(version_in(&t.index, "s1"), 3);
  assert_int_equal(version_in(&t.index, "s2"), 4);
  index_close(&below);
  free(memory);
}

static void a_pin_moves_up_with_its_key(void **state) {
  (void)state;
  struct index below;
  uint64_t length = index_length(2 * UNIT, 64);
  void *memory = calloc(1, length);
  assert_int_equal(index_create(&below, memory, 2 * UNIT, 64), 0);
  begin(2, 64);
  index_put_below(&t.index, &below);
  put_in(&below, "a", 1);
  assert_int_equal(index_pin(&below, index_find(&below, "a", 1), 100, 1), 0);
  put_in(&t.index, "a", 2);
  assert_int_equal(below.pinned_units, 0);
  assert_int_equal(t.index.pinned_units, 1);
  put_in(&t.index, "b", 3);
  put_in(&t.index, "c", 4);
  assert_int_equal(version_in(&t.index, "a"), 2);
  assert_int_equal(version_in(&below, "b"), 3);
  index_close(&below);
  free(memory);
}

/* ---- Three tiers ---- */

static struct index bottom;
static void *bottom_memory;

/* Room for two blocks each. */
static void begin_three(void) {
  bottom_memory = calloc(1, index_length(2 * UNIT, 64));
  assert_int_equal(index_create(&bottom, bottom_memory, 2 * UNIT, 64), 0);
  begin(2, 64);
  index_put_below(&t.index, &bottom);
  begin_device(2);
}

static int end_three(void **state) {
  index_close(&bottom);
  free(bottom_memory);
  return end(state);
}

static void check_tiers(const char *key, uint64_t device, uint64_t memory, uint64_t file) {
  assert_int_equal(version_in(&t.device, key), device);
  assert_int_equal(version_in(&t.index, key), memory);
  assert_int_equal(version_in(&bottom, key), file);
  assert_int_equal(index_has(&t.device, key, strlen(key)), device || memory || file);
}

static const char *const names[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6"};

static void put_names(uint64_t count) {
  for (uint64_t i = 0; i < count; i++)
    put_in(&t.device, names[i], i + 1);
}

static void blocks_move_through_three_tiers(void **state) {
  (void)state;
  begin_three();
  put_names(7);
  check_tiers("k6", 7, 0, 0);
  check_tiers("k5", 6, 0, 0);
  check_tiers("k4", 0, 5, 0);
  check_tiers("k3", 0, 4, 0);
  check_tiers("k2", 0, 0, 3);
  check_tiers("k1", 0, 0, 2);
  check_tiers("k0", 0, 0, 0);
  assert_int_equal(t.copies, 5);
  assert_int_equal(atomic_load(&t.device.header->evictions), 5);
  assert_int_equal(atomic_load(&t.index.header->evictions), 3);
  assert_int_equal(atomic_load(&bottom.header->evictions), 1);
}

static void a_put_removes_the_key_from_all_tiers_below(void **state) {
  (void)state;
  begin_three();
  put_names(6);
  put_in(&t.device, "k0", 20); /* from the bottom */
  check_tiers("k0", 20, 0, 0);
  assert_int_equal(atomic_load(&bottom.header->blocks), 2); /* k1, and k2 from above */
  put_in(&t.device, "k3", 21);
  check_tiers("k3", 21, 0, 0);
  put_in(&t.device, "k0", 22); /* in its own place */
  check_tiers("k0", 22, 0, 0);
}

static void an_older_block_replaces_none_below(void **state) {
  (void)state;
  begin_three();
  put_in(&t.device, "k0", 50);
  for (uint64_t i = 1; i < 5; i++)
    put_in(&t.device, names[i], i);
  check_tiers("k0", 0, 0, 50);
  put_in(&t.device, "k0", 49);
  check_tiers("k0", 0, 0, 50);
  struct block block = {.key = "k0", .key_length = 2, .length = UNIT};
  assert_int_equal(index_reserve(&t.device, &block, 1), 0);
  assert_int_equal(index_commit(&t.device, &block, true, 1), HAUL_EEXIST);
  check_tiers("k0", 0, 0, 50);
}

static void a_new_version_exceeds_those_below(void **state) {
  (void)state;
  uint64_t ahead = UINT64_C(1) << 62; /* beyond the clock */
  begin(2, 64);
  t.index.last_version = ahead;
  begin_device(2);
  struct block block = {.key = "a", .key_length = 1, .length = UNIT};
  assert_int_equal(index_reserve(&t.device, &block, 1), 0);
  assert_int_equal(index_commit(&t.device, &block, false, 1), 0);
  assert_int_equal(block.version, ahead + 1);
}

static void a_pin_moves_up_from_the_bottom(void **state) {
  (void)state;
  begin_three();
  put_names(5);
  assert_int_equal(index_pin(&bottom, index_find(&bottom, "k0", 2), 100, 1), 0);
  put_in(&t.device, "k0", 20);
  assert_int_equal(bottom.pinned_units, 0);
  assert_int_equal(t.device.pinned_units, 1);
  put_in(&t.device, "k5", 21);
  put_in(&t.device, "k6", 22);
  check_tiers("k0", 20, 0, 0);
}

/* Each spare block moves others down as far as there is room, and the last one finds none. */
static void spare_blocks_fill_three_tiers(void **state) {
  (void)state;
  begin_three();
  for (uint64_t i = 0; i < 7; i++)
    assert_int_equal(try_put(&t.device, names[i], i + 1, true), i < 6 ? 0 : HAUL_ELIMIT);
  for (int i = 0; i < 6; i++)
    assert_true(index_has(&t.device, names[i], 2));
  assert_int_equal(atomic_load(&bottom.header->evictions), 0);
}

/* ---- A device ---- */

static void a_block_that_cannot_be_copied_is_lost(void **state) {
  (void)state;
  begin(4, 64);
  begin_device(2);
  put_names(2);
  t.copy_code = HAUL_ETIMEDOUT;
  put_in(&t.device, "k2", 3);
  assert_int_equal(version_in(&t.device, "k2"), 3);
  assert_false(index_has(&t.device, "k0", 2));
  assert_int_equal(t.index.free_units, 4);                          /* nothing is kept for it */
  assert_int_equal(try_put(&t.device, "k3", 4, true), HAUL_ELIMIT); /* nor is one lost to a spare */
  assert_true(index_has(&t.device, "k1", 2));
  t.copy_code = 0;
  put_in(&t.device, "k3", 4);
  assert_int_equal(version_in(&t.index, "k1"), 2);
}

static void a_block_too_large_for_the_tier_below_is_lost(void **state) {
  (void)state;
  struct block large = {.key = "large", .key_length = 5, .length = 2 * UNIT};
  begin(1, 64);
  begin_device(2);
  assert_int_equal(index_reserve(&t.device, &large, 1), 0);
  assert_int_equal(index_commit(&t.device, &large, false, 1), 0);
  put_in(&t.device, "k0", 1);
  assert_false(index_has(&t.device, "large", 5));
  assert_int_equal(t.copies, 0);
  assert_int_equal(atomic_load(&t.device.header->evictions), 1);
}

static void all_blocks_of_a_device_move_down_in_order(void **state) {
  (void)state;
  begin(3, 64);
  begin_device(8);
  struct block low = {
      .key = "low", .key_length = 3, .length = UNIT, .priority = HAUL_PRIORITY_LOW, .version = 9};
  put_names(4);
  assert_int_equal(index_reserve(&t.device, &low, 1), 0);
  assert_int_equal(index_commit(&t.device, &low, false, 1), 0);
  assert_int_equal(index_pin(&t.device, index_find(&t.device, "k3", 2), 100, 1), 0);
  unsigned moved = 0;
  while (index_evict_next(&t.device, 1))
    moved++;
  assert_int_equal(moved, 5);
  assert_int_equal(t.device.free_units, 8);
  assert_int_equal(t.device.pinned_units, 0);
  assert_int_equal(version_in(&t.index, "k3"), 4); /* the last used of the highest priority stay */
  assert_int_equal(version_in(&t.index, "k2"), 3);
  assert_int_equal(version_in(&t.index, "k1"), 2);
}

/* Its offsets count from the start of the blocks, up to their end. */
static void a_header_tells_where_the_blocks_are(void **state) {
  (void)state;
  begin(4, 64);
  begin_device(4);
  uint64_t slots = index_slots_length(4 * UNIT, 64), whole = index_length(4 * UNIT, 64);
  assert_int_equal(whole, slots + 4 * UNIT);
  assert_true(header_is_sound(t.device.header, slots, 4 * UNIT));
  assert_false(header_is_sound(t.device.header, slots, 0));
  assert_false(header_is_sound(t.device.header, slots, 3 * UNIT));
  assert_false(header_is_sound(t.device.header, slots, 5 * UNIT));
  assert_false(header_is_sound(t.device.header, slots + UNIT, 4 * UNIT));
  assert_false(header_is_sound(t.device.header, whole, 0));
  assert_true(header_is_sound(t.index.header, whole, 0));
  assert_false(header_is_sound(t.index.header, slots, 4 * UNIT));
  put_in(&t.device, "a", 1);
  struct slot *slot = &t.device.slots[index_find(&t.device, "a", 1)];
  assert_true(slot_is_sound(slot, t.device.header));
  slot->offset = 3 * UNIT;
  assert_true(slot_is_sound(slot, t.device.header));
  slot->length = UNIT + 1;
  assert_false(slot_is_sound(slot, t.device.header));
  slot->offset = 4 * UNIT;
  slot->length = 1;
  assert_false(slot_is_sound(slot, t.device.header));
}

/* Random puts, removals and pins: each key has the newest block that was put, in one tier, or is in
 * none because the bottom tier evicted it. */
static void random_calls_keep_a_key_in_one_tier(void **state) {
  (void)state;
  uint64_t random = 12345, newest[7] = {0};
  begin_three();
  for (uint64_t version = 1; version < 3000; version++) {
    random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
    unsigned which = (unsigned)(random >> 40) % 7, what = (unsigned)(random >> 50) % 8;
    struct index *tiers[] = {&t.device, &t.index, &bottom};
    for (int i = 0; i < 3 && what == 0; i++) {
      uint32_t slot = index_find(tiers[i], names[which], 2);
      if (slot != NO_SLOT)
        index_remove(tiers[i], slot);
      newest[which] = 0;
    }
    if (what > 0 && try_put(&t.device, names[which], version, what == 1) == 0)
      newest[which] = version;
    for (int key = 0; key < 7; key++) {
      unsigned places = 0;
      for (int i = 0; i < 3; i++) {
        uint64_t found = version_in(tiers[i], names[key]);
        assert_true(found == 0 || found == newest[key]);
        places += found != 0;
      }
      assert_true(places <= 1);
    }
    if (what > 0 && newest[which] == version)
      assert_int_equal(version_in(&t.device, names[which]), version);
  }
}

#define TEST(test)  cmocka_unit_test_teardown(test, end)
#define THREE(test) cmocka_unit_test_teardown(test, end_three)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(evicted_blocks_move_below),
      TEST(a_spare_block_moves_others_to_free_room),
      TEST(a_pin_moves_up_with_its_key),
      THREE(blocks_move_through_three_tiers),
      THREE(a_put_removes_the_key_from_all_tiers_below),
      THREE(an_older_block_replaces_none_below),
      TEST(a_new_version_exceeds_those_below),
      THREE(a_pin_moves_up_from_the_bottom),
      THREE(spare_blocks_fill_three_tiers),
      TEST(a_block_that_cannot_be_copied_is_lost),
      TEST(a_block_too_large_for_the_tier_below_is_lost),
      TEST(all_blocks_of_a_device_move_down_in_order),
      TEST(a_header_tells_where_the_blocks_are),
      THREE(random_calls_keep_a_key_in_one_tier),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
