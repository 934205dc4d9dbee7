/* SPDX-License-Identifier: MIT
 * The store's index alone: eviction, pins, room, and what a restart believes. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "cache/index.h"
#include "support/owner.h"

static struct {
  struct index index;
  void *memory;
  uint64_t length;
} t;

static void begin(uint64_t units, uint64_t blocks) {
  t.length = index_length(units * UNIT, blocks);
  assert_true(t.length > 0);
  t.memory = calloc(1, t.length);
  assert_int_equal(index_create(&t.index, t.memory, units * UNIT, blocks), 0);
}

static int end(void **state) {
  (void)state;
  index_close(&t.index);
  free(t.memory);
  memset(&t, 0, sizeof t);
  return 0;
}

static void restart(void) {
  index_close(&t.index);
  assert_int_equal(index_restore(&t.index, t.memory, t.length), 0);
}

static int put_at(const char *key, uint64_t units, int priority, int64_t now, bool if_absent,
                  uint64_t version) {
  struct block block = {.key = key,
                        .key_length = strlen(key),
                        .length = units * UNIT - 5,
                        .priority = priority,
                        .version = version};
  int code = index_reserve(&t.index, &block, now);
  if (code)
    return code;
  pattern_fill(t.index.base + block.offset, block.length, key_hash(key, strlen(key)));
  block.checksum = XXH3_64bits(t.index.base + block.offset, block.length);
  return index_commit(&t.index, &block, if_absent, now);
}

static int put(const char *key, uint64_t units) {
  return put_at(key, units, HAUL_PRIORITY_NORMAL, 1, false, 0);
}

static uint32_t find(const char *key) {
  return index_find(&t.index, key, strlen(key));
}
static bool has(const char *key) {
  return find(key) != NO_SLOT;
}

static void use(const char *key) {
  uint32_t slot = find(key);
  index_use(&t.index, slot, atomic_load(&t.index.slots[slot].sequence));
}

/* The private state agrees with the slots. */
static void check_index(void) {
  const struct index *index = &t.index;
  uint64_t held = 0, blocks = 0, listed = 0;
  for (uint32_t i = 0; i < index->slot_count; i++) {
    const struct slot *slot = &index->slots[i];
    assert_true(slot_is_whole(slot));
    if (slot->key_length == 0)
      continue;
    assert_true(slot_is_sound(slot, index->header));
    assert_int_equal(index_find(index, slot->key, slot->key_length), i);
    pattern_check(index->base + slot->offset, slot->length, key_hash(slot->key, slot->key_length));
    for (uint64_t u = 0; u * UNIT < slot->length; u++, held++)
      assert_int_equal(index->holders[(slot->offset - index->header->data) / UNIT + u], i + 2);
    blocks++;
  }
  for (int list = 0; list < 3; list++)
    for (uint32_t i = index->lists[list].first; i != NO_SLOT; i = index->tracks[i].older)
      listed++;
  assert_int_equal(held, index->units - index->free_units);
  assert_int_equal(blocks, listed);
  assert_int_equal(blocks, atomic_load(&index->header->blocks));
}

static void the_least_recently_used_block_is_evicted(void **state) {
  (void)state;
  begin(4, 64);
  assert_int_equal(put("a", 1), 0);
  assert_int_equal(put("b", 1), 0);
  assert_int_equal(put("c", 1), 0);
  assert_int_equal(put("d", 1), 0);
  use("a");
  assert_int_equal(put("e", 1), 0);
  assert_false(has("b"));
  assert_true(has("a") && has("c") && has("d") && has("e"));
  index_use(&t.index, find("c"), 0); /* of an earlier block in its slot */
  index_use(&t.index, t.index.slot_count, 0);
  assert_int_equal(put("f", 1), 0);
  assert_false(has("c"));
  check_index();
}

static void a_spare_block_evicts_nothing(void **state) {
  (void)state;
  begin(2, 64);
  assert_int_equal(put("a", 1), 0);
  struct block spare = {.key = "s", .key_length = 1, .length = 2 * UNIT, .spare = true};
  assert_int_equal(index_reserve(&t.index, &spare, 1), HAUL_ELIMIT);
  spare.length = UNIT;
  assert_int_equal(index_reserve(&t.index, &spare, 1), 0);
  spare.checksum = XXH3_64bits(t.index.base + spare.offset, spare.length);
  assert_int_equal(index_commit(&t.index, &spare, false, 1), 0);
  assert_true(has("a") && has("s"));
  assert_int_equal(atomic_load(&t.index.header->evictions), 0);
}

/* All slots of a key are taken, while units are free. */
static void a_spare_block_takes_no_slot(void **state) {
  (void)state;
  char key[16];
  int code = 0;
  unsigned kept = 0;
  begin(100, 1); /* 4 buckets: 16 slots */
  for (int i = 0; i < 100 && code == 0; i++) {
    struct block spare = {.key = key, .length = UNIT, .spare = true};
    spare.key_length = (size_t)snprintf(key, sizeof key, "spare%d", i);
    assert_int_equal(index_reserve(&t.index, &spare, 1), 0);
    code = index_commit(&t.index, &spare, false, 1);
    kept += code == 0;
  }
  assert_int_equal(code, HAUL_ELIMIT);
  assert_int_equal(atomic_load(&t.index.header->blocks), kept);
  assert_int_equal(t.index.units - t.index.free_units, kept);
  assert_int_equal(atomic_load(&t.index.header->evictions), 0);
}

static void lower_priorities_are_evicted_first(void **state) {
  (void)state;
  begin(4, 64);
  assert_int_equal(put_at("high", 1, HAUL_PRIORITY_HIGH, 1, false, 0), 0);
  assert_int_equal(put_at("normal", 1, HAUL_PRIORITY_NORMAL, 1, false, 0), 0);
  assert_int_equal(put_at("low", 1, HAUL_PRIORITY_LOW, 1, false, 0), 0);
  assert_int_equal(put_at("low2", 1, HAUL_PRIORITY_LOW, 1, false, 0), 0);
  use("low");
  assert_int_equal(put("x", 1), 0);
  assert_false(has("low2"));
  assert_int_equal(put("y", 1), 0);
  assert_false(has("low"));
  assert_int_equal(put("z", 1), 0);
  assert_false(has("normal"));
  assert_true(has("high"));
  assert_int_equal(put("all", 4), 0);
  assert_false(has("high"));
  check_index();
}

static void room_is_made_of_neighbours(void **state) {
  (void)state;
  char key[16];
  begin(16, 64);
  for (int i = 0; i < 16; i++) {
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(put(key, 1), 0);
  }
  index_remove(&t.index, find("k3"));
  index_remove(&t.index, find("k9"));
  assert_int_equal(put("wide", 4), 0);
  assert_true(has("wide"));
  assert_int_equal(atomic_load(&t.index.header->blocks), 12); /* k0 to k2 have gone */
  check_index();
  assert_int_equal(put("wider", 16), 0);
  assert_int_equal(atomic_load(&t.index.header->blocks), 1);
  assert_int_equal(put("widest", 17), HAUL_ELIMIT);
  check_index();
}

static void pinned_blocks_stay_until_the_lease_ends(void **state) {
  (void)state;
  begin(4, 64);
  assert_int_equal(put("a", 2), 0);
  assert_int_equal(put("b", 2), 0);
  assert_int_equal(index_pin(&t.index, find("a"), 100, 1), 0);
  assert_int_equal(index_pin(&t.index, find("b"), 100, 1), HAUL_ELIMIT);
  assert_int_equal(put_at("c", 1, HAUL_PRIORITY_HIGH, 99, false, 0), 0);
  assert_true(has("a") && !has("b"));
  assert_int_equal(put_at("d", 3, HAUL_PRIORITY_HIGH, 99, false, 0), HAUL_ELIMIT);
  assert_true(has("a"));
  assert_int_equal(put_at("d", 3, HAUL_PRIORITY_HIGH, 100, false, 0), 0);
  assert_false(has("a"));
  check_index();
}

static void a_pin_belongs_to_the_key(void **state) {
  (void)state;
  begin(6, 64);
  assert_int_equal(put("a", 1), 0);
  assert_int_equal(index_pin(&t.index, find("a"), 100, 1), 0);
  assert_int_equal(put("a", 2), 0);
  assert_int_equal(t.index.pinned_units, 2);
  assert_int_equal(put("b", 2), 0);
  assert_int_equal(put("c", 2), 0);
  assert_true(has("a") && !has("b"));
  index_remove(&t.index, find("a"));
  assert_int_equal(t.index.pinned_units, 0);
  assert_int_equal(put("a", 1), 0);
  assert_int_equal(index_pin(&t.index, find("a"), 100, 1), 0);
  assert_int_equal(index_pin(&t.index, find("a"), 0, 1), 0);
  assert_int_equal(t.index.pinned_units, 0);
  check_index();
}

static void expired_pins_make_room_for_new_ones(void **state) {
  (void)state;
  begin(4, 64);
  assert_int_equal(put("a", 2), 0);
  assert_int_equal(put("b", 2), 0);
  assert_int_equal(index_pin(&t.index, find("a"), 100, 1), 0);
  assert_int_equal(index_pin(&t.index, find("b"), 200, 99), HAUL_ELIMIT);
  assert_int_equal(index_pin(&t.index, find("b"), 200, 100), 0);
  assert_int_equal(t.index.pinned_units, 2);
}

static void versions_decide_between_replicas(void **state) {
  (void)state;
  begin(8, 64);
  assert_int_equal(put_at("a", 1, 0, 1, false, 1000), 0);
  assert_int_equal(put_at("a", 2, 0, 1, false, 999), 0); /* late: dropped */
  assert_int_equal(t.index.slots[find("a")].version, 1000);
  uint64_t ahead = ((uint64_t)time(NULL) + 3600) * 1000000000;
  assert_int_equal(put_at("a", 2, 0, 1, false, ahead), 0);
  assert_int_equal(put("a", 1), 0); /* the clock is behind: one more */
  assert_int_equal(t.index.slots[find("a")].version, ahead + 1);
  assert_int_equal(put_at("a", 2, 0, 1, false, ahead + UINT64_C(86400000000000)), HAUL_EINVAL);
  assert_int_equal(put_at("b", 2, 0, 1, false, UINT64_MAX), HAUL_EINVAL);
  assert_int_equal(put("a", 1), 0);
  assert_int_equal(t.index.slots[find("a")].version, ahead + 2);
  assert_int_equal(put_at("a", 1, 0, 1, true, 0), HAUL_EEXIST);
  assert_int_equal(t.index.free_units, 7);
  check_index();
}

static void all_slots_of_a_key_can_be_full(void **state) {
  (void)state;
  char key[16];
  begin(64, 1); /* sixteen slots */
  for (int i = 0; i < 64; i++) {
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(put(key, 1), 0);
    assert_true(has(key));
  }
  check_index();
  for (uint32_t i = 0; i < t.index.slot_count; i++)
    if (t.index.slots[i].key_length > 0)
      assert_int_equal(index_pin(&t.index, i, 100, 1), 0);
  uint64_t before = t.index.free_units;
  for (int i = 100; i < 120; i++) {
    snprintf(key, sizeof key, "k%d", i);
    int code = put(key, 1);
    assert_true(code == HAUL_ELIMIT || code == 0); /* 0: a slot of its buckets is empty */
    assert_int_equal(has(key), code == 0);
    before -= code == 0;
    if (code == 0)
      assert_int_equal(index_pin(&t.index, find(key), 100, 1), 0);
  }
  assert_int_equal(t.index.free_units, before);
}

static void a_restart_finds_all_blocks(void **state) {
  (void)state;
  begin(8, 64);
  assert_int_equal(put_at("a", 2, HAUL_PRIORITY_HIGH, 1, false, 0), 0);
  assert_int_equal(put("b", 1), 0);
  uint64_t version = t.index.last_version;
  struct block unfinished = {.length = 3 * UNIT}; /* ends with the process */
  assert_int_equal(index_reserve(&t.index, &unfinished, 1), 0);
  assert_int_equal(t.index.free_units, 2);
  restart();
  assert_true(has("a") && has("b"));
  assert_int_equal(t.index.free_units, 5);
  assert_int_equal(t.index.last_version, version);
  check_index();
}

/* What a process that ended within a change, or someone else, may leave in the file. */
static void damaged_blocks_are_dropped(void **state) {
  (void)state;
  char key[16];
  begin(64, 64);
  uint64_t random = test_seed() | 1;
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i < 20; i++) {
      snprintf(key, sizeof key, "k%d", i);
      assert_int_equal(put(key, 1 + next_random(&random) % 3), 0);
    }
    for (int i = 0; i < 3; i++) {
      uint64_t at = next_random(&random) % (t.length - HEADER_BYTES - 8);
      if (i > 0) /* mostly slots */
        at %= t.index.slot_count * sizeof(struct slot);
      uint64_t value = next_random(&random) >> next_random(&random) % 64;
      memcpy((uint8_t *)t.memory + HEADER_BYTES + at, &value, sizeof value);
    }
    restart();
    check_index();
  }
  assert_true(atomic_load(&t.index.header->dropped) < 20);
}

static void two_blocks_of_the_same_units_are_not_both_kept(void **state) {
  (void)state;
  begin(8, 64);
  assert_int_equal(put("a", 2), 0);
  assert_int_equal(put("b", 2), 0);
  struct slot *slot = &t.index.slots[find("b")];
  slot->offset = t.index.slots[find("a")].offset;
  slot->checksum = t.index.slots[find("a")].checksum;
  slot->check = slot_check(slot);
  restart();
  assert_int_equal(has("a") + has("b"), 1);
  assert_int_equal(t.index.free_units, 6);
}

static void sizes_are_bounded(void **state) {
  (void)state;
  assert_int_equal(index_length(0, 1), 0);
  assert_int_equal(index_length(UINT64_MAX, 1), 0);
  assert_int_equal(index_length(UNIT, UINT64_MAX), 0);
  assert_int_equal(index_length(UNITS_MAX * UNIT, SLOTS_MAX), 0);
  assert_true(index_length(1, 0) > 0);
}

/* Random calls: nothing overlaps, all is consistent, and the newest block is always there. */
static void random_calls_keep_it_consistent(void **state) {
  (void)state;
  char key[16];
  begin(100, 40);
  uint64_t random = test_seed() | 1;
  for (int64_t now = 1; now < 20000; now++) {
    uint64_t what = next_random(&random) % 16;
    snprintf(key, sizeof key, "r%d", (int)(next_random(&random) % 60));
    if (what < 10) {
      int priority = (int)(next_random(&random) % 3) - 1;
      int code = put_at(key, 1 + next_random(&random) % 12, priority, now, false, 0);
      assert_true(code == 0 || code == HAUL_ELIMIT);
      assert_true(code != 0 || has(key));
    } else if (has(key) && what < 12) {
      index_remove(&t.index, find(key));
    } else if (has(key) && what < 14) {
      index_pin(&t.index, find(key), now + (int64_t)(next_random(&random) % 30), now);
    } else if (has(key)) {
      use(key);
    }
    if (now % 100 == 0)
      check_index();
    if (now % 5000 == 0)
      restart();
  }
}

#define TEST(test) cmocka_unit_test_teardown(test, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_least_recently_used_block_is_evicted),
      TEST(a_spare_block_evicts_nothing),
      TEST(a_spare_block_takes_no_slot),
      TEST(lower_priorities_are_evicted_first),
      TEST(room_is_made_of_neighbours),
      TEST(pinned_blocks_stay_until_the_lease_ends),
      TEST(a_pin_belongs_to_the_key),
      TEST(expired_pins_make_room_for_new_ones),
      TEST(versions_decide_between_replicas),
      TEST(all_slots_of_a_key_can_be_full),
      TEST(a_restart_finds_all_blocks),
      TEST(damaged_blocks_are_dropped),
      TEST(two_blocks_of_the_same_units_are_not_both_kept),
      cmocka_unit_test(sizes_are_bounded),
      TEST(random_calls_keep_it_consistent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
