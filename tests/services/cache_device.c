/* SPDX-License-Identifier: MIT
 * Stores with a tier in the memory of a device, by default the emulated accelerator, over the best
 * path and over tcp alone. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "services/rig/cache_case.h"
#include "support/child.h"
#include "support/owner.h"

#define KIB    ((uint64_t)1 << 10)
#define MIB    ((uint64_t)1 << 20)
#define REGION (24 * MIB)
#define BOUND  haul_deadline_in(60 * S)

enum { KEYS = 100, HELD = 32 }; /* HELD: blocks of BLOCK and more that fit into 1 MiB */
#define BLOCK (30 * KIB)

static void start_store(unsigned number, uint64_t device, uint64_t memory, uint64_t file) {
  cache_store_begin_device(&t.stores[number], cache_case_address(), device, memory, file);
}

static void start_client(size_t stores, unsigned replicas) {
  cache_client_begin(&t.client, t.stores, stores, replicas, t.only, REGION);
}

static void start(uint64_t device, uint64_t memory, uint64_t file) {
  start_store(0, device, memory, file);
  start_client(1, 1);
}

static struct haul_cache_stats stats_of(unsigned member) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  assert_works(haul_cache_stat(t.client.cache, member, BOUND, &stats));
  return stats;
}

static void put_pattern(const char *key, uint64_t length, uint64_t seed) {
  pattern_fill(t.client.bytes, length, seed);
  assert_works(cache_put(&t.client, key, 0, length, 0));
}

static void check_pattern(const char *key, uint64_t length, uint64_t seed) {
  uint64_t got = REGION / 2;
  memset(t.client.bytes + REGION / 2, 0, length);
  assert_works(cache_get(&t.client, key, REGION / 2, &got));
  assert_int_equal(got, length);
  pattern_check(t.client.bytes + REGION / 2, length, seed);
}

static int get_code(const char *key) {
  uint64_t length = REGION / 2;
  return cache_get(&t.client, key, REGION / 2, &length);
}

static unsigned tier_of(const char *key) {
  struct haul_cache_item item = {.key = key, .key_length = strlen(key)};
  assert_works(haul_cache_exists(t.client.cache, &item, 1, BOUND));
  return item.tier;
}

static const char *name_of(uint64_t i) {
  static char name[16];
  snprintf(name, sizeof name, "key%d", (int)i);
  return name;
}

static void put_all(uint64_t seed) {
  for (uint64_t i = 0; i < KEYS; i++)
    put_pattern(name_of(i), BLOCK + i, seed + i);
}

static void check_all(uint64_t first, uint64_t seed) {
  for (uint64_t i = first; i < KEYS; i++)
    check_pattern(name_of(i), BLOCK + i, seed + i);
}

/* ---- Put and get ---- */

static void check_entry(void *user, const struct haul_cache_entry *entry) {
  const uint8_t *bytes = t.client.bytes;
  assert_int_equal(entry->tier, HAUL_CACHE_DEVICE);
  pattern_fill(t.client.bytes, entry->length, (uint64_t)(entry->key[3] - '0'));
  assert_true(entry->checksum == XXH3_64bits(bytes, entry->length));
  ++*(unsigned *)user;
}

/* Also blocks that take several parts of the store's bounce buffer, or several of which share it.
 */
static void a_block_is_read_as_it_was_put(void **state) {
  (void)state;
  static const uint64_t lengths[] = {1,       4096,        4097,     100000,
                                     4 * MIB, 4 * MIB + 1, 10 * MIB, 64 * KIB};
  unsigned entries = 0;
  start(32 * MIB, 4 * KIB, 0);
  for (uint64_t i = 0; i < COUNT(lengths); i++) {
    put_pattern(name_of(i), lengths[i], i);
    assert_int_equal(tier_of(name_of(i)), HAUL_CACHE_DEVICE);
    check_pattern(name_of(i), lengths[i], i);
    check_pattern(name_of(i), lengths[i], i); /* by the location of the first */
  }
  assert_works(haul_cache_list(t.client.cache, 0, BOUND, check_entry, &entries));
  assert_int_equal(entries, COUNT(lengths));
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.device.capacity, 32 * MIB);
  assert_int_equal(stats.device.blocks, COUNT(lengths));
  assert_int_equal(stats.device.puts, COUNT(lengths));
  assert_int_equal(stats.device.evictions, 0);
  assert_int_equal(stats.memory.blocks, 0);
  assert_int_equal(stats.memory.used, 0);
}

static void one_call_takes_many_keys(void **state) {
  (void)state;
  enum { MANY = 150 };
  static char names[MANY][16];
  struct haul_cache_item items[MANY];
  uint64_t at = 0;
  start(16 * MIB, MIB, 0);
  for (size_t i = 0; i < MANY; i++) {
    snprintf(names[i], sizeof names[i], "many%zu", i);
    items[i] = (struct haul_cache_item){.key = names[i],
                                        .key_length = strlen(names[i]),
                                        .offset = at,
                                        .length = 1 + i * i % 50 * 1500};
    at += items[i].length;
  }
  assert_true(at > 4 * MIB && at < REGION / 2); /* over the bounce buffer */
  pattern_fill(t.client.bytes, at, 3);
  assert_works(
      haul_cache_put(t.client.cache, t.client.region, items, MANY, 0, HAUL_PRIORITY_NORMAL, BOUND));
  for (int round = 0; round < 2; round++) {
    memset(t.client.bytes, 0, at);
    assert_works(haul_cache_get(t.client.cache, t.client.region, items, MANY, BOUND));
    pattern_check(t.client.bytes, at, 3);
  }
  assert_int_equal(stats_of(0).device.blocks, MANY);
}

/* From memory of a device and into it, without a host buffer of the client. */
static void blocks_move_between_devices(void **state) {
  (void)state;
  struct haul_cache_item item = {.key = "key", .key_length = 3, .length = 5 * MIB};
  haul_region *from, *to;
  start(16 * MIB, MIB, 0);
  assert_works(haul_region_alloc(t.client.node, device_place(), 5 * MIB, 0, &from));
  assert_works(haul_region_alloc(t.client.node, device_place(), 5 * MIB, 0, &to));
  pattern_fill(t.client.bytes, 5 * MIB, 7);
  assert_works(haul_region_copy(from, 0, t.client.region, 0, 5 * MIB, BOUND));
  memset(t.client.bytes, 0, 5 * MIB);
  assert_works(haul_cache_attach(t.client.cache, from));
  assert_works(haul_cache_put(t.client.cache, from, &item, 1, 0, HAUL_PRIORITY_NORMAL, BOUND));
  assert_works(haul_cache_get(t.client.cache, to, &item, 1, BOUND));
  assert_int_equal(item.tier, HAUL_CACHE_DEVICE);
  assert_works(haul_region_copy(t.client.region, 0, to, 0, 5 * MIB, BOUND));
  pattern_check(t.client.bytes, 5 * MIB, 7);
  assert_works(haul_cache_detach(t.client.cache, from));
  haul_region_release(from);
  haul_region_release(to);
}

/* ---- Tiers ---- */

static void evicted_blocks_move_through_all_tiers(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  put_all(1);
  assert_int_equal(tier_of("key0"), HAUL_CACHE_FILE);
  assert_int_equal(tier_of("key50"), HAUL_CACHE_MEMORY);
  assert_int_equal(tier_of("key99"), HAUL_CACHE_DEVICE);
  check_all(0, 1);
  check_all(0, 1); /* by their locations */
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.device.blocks, HELD);
  assert_int_equal(stats.memory.blocks, HELD);
  assert_int_equal(stats.file.blocks, KEYS - 2 * HELD);
  assert_int_equal(stats.device.puts, KEYS);
  assert_int_equal(stats.device.evictions, stats.memory.puts);
  assert_int_equal(stats.memory.evictions, stats.file.puts);
  assert_int_equal(stats.file.evictions, 0);
  assert_fails(HAUL_ENAME, get_code("nothing"));
  assert_fails(HAUL_ENAME, cache_exists(&t.client, "nothing"));
}

static void without_a_file_the_memory_evicts(void **state) {
  (void)state;
  start(MIB, MIB, 0);
  put_all(1);
  for (uint64_t i = 0; i < KEYS - 2 * HELD; i++)
    assert_fails(HAUL_ENAME, get_code(name_of(i)));
  check_all(KEYS - 2 * HELD, 1);
}

static const char *const in_tiers[] = {"key5", "key50", "key95"};

static void a_key_is_in_one_tier(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  for (int i = 0; i < 3; i++) {
    put_all(1);
    assert_fails(HAUL_EEXIST, cache_put(&t.client, in_tiers[i], 0, 10, HAUL_CACHE_IF_ABSENT));
    put_pattern(in_tiers[i], 5000, 77);
    check_pattern(in_tiers[i], 5000, 77);
    assert_int_equal(tier_of(in_tiers[i]), HAUL_CACHE_DEVICE);
    struct haul_cache_stats stats = stats_of(0);
    assert_int_equal(stats.device.blocks + stats.memory.blocks + stats.file.blocks, KEYS);
  }
}

static void a_key_is_removed_from_each_tier(void **state) {
  (void)state;
  static const unsigned tiers[] = {HAUL_CACHE_FILE, HAUL_CACHE_MEMORY, HAUL_CACHE_DEVICE};
  start(MIB, MIB, 4 * MIB);
  put_all(1);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(tier_of(in_tiers[i]), tiers[i]);
    assert_works(cache_pin(&t.client, in_tiers[i], 100));
    assert_works(cache_remove(&t.client, in_tiers[i]));
    assert_fails(HAUL_ENAME, get_code(in_tiers[i]));
    assert_fails(HAUL_ENAME, cache_remove(&t.client, in_tiers[i]));
    assert_works(cache_put(&t.client, in_tiers[i], 0, 10, HAUL_CACHE_IF_ABSENT));
    assert_int_equal(tier_of(in_tiers[i]), HAUL_CACHE_DEVICE);
  }
}

static void a_pinned_block_stays_in_the_device(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  put_pattern("pinned", 1000, 5);
  assert_works(cache_pin(&t.client, "pinned", 1000));
  assert_int_equal(stats_of(0).device.pinned, 4096);
  put_all(1);
  assert_int_equal(tier_of("pinned"), HAUL_CACHE_DEVICE);
  check_pattern("pinned", 1000, 5);
}

static void the_capacity_of_the_device_is_obeyed(void **state) {
  (void)state;
  start(MIB, 8 * MIB, 0);
  assert_fails(HAUL_ELIMIT, cache_put(&t.client, "large", 0, MIB + 1, 0));
  put_pattern("whole", MIB, 1);
  assert_fails(HAUL_ELIMIT, cache_pin(&t.client, "whole", 10)); /* over half */
  put_pattern("half", MIB / 2, 2);
  assert_int_equal(tier_of("whole"), HAUL_CACHE_MEMORY);
  assert_works(cache_pin(&t.client, "half", 1000));
  assert_fails(HAUL_ELIMIT, cache_put(&t.client, "more", 0, MIB / 2 + 1, 0));
  assert_int_equal(stats_of(0).device.used, MIB / 2);
  check_pattern("whole", MIB, 1);
  check_pattern("half", MIB / 2, 2);
}

/* The store reads blocks that the client's region does not have. */
static void a_failed_put_keeps_nothing(void **state) {
  (void)state;
  struct haul_cache_item items[] = {
      {.key = "good", .key_length = 4, .length = 5 * MIB},
      {.key = "bad", .key_length = 3, .offset = REGION - 10, .length = 5 * MIB}};
  start(16 * MIB, MIB, 0);
  assert_fails(HAUL_ERANGE, haul_cache_put(t.client.cache, t.client.region, items, 2, 0,
                                           HAUL_PRIORITY_NORMAL, BOUND));
  assert_fails(HAUL_ENAME, get_code("bad"));
  assert_int_equal(stats_of(0).device.used, 0);
  put_pattern("good", 5 * MIB, 1);
  check_pattern("good", 5 * MIB, 1);
}

/* ---- Restart ---- */

static void a_killed_store_loses_the_device_tier_alone(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  put_all(1);
  cache_store_kill(&t.stores[0]);
  cache_store_again(&t.stores[0]);
  cache_client_end(&t.client);
  start_client(1, 1);
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.memory.restored + stats.file.restored, KEYS - HELD);
  assert_int_equal(stats.device.capacity, MIB);
  assert_int_equal(stats.device.blocks, 0);
  for (uint64_t i = 0; i < KEYS - HELD; i++)
    check_pattern(name_of(i), BLOCK + i, 1 + i);
  for (uint64_t i = KEYS - HELD; i < KEYS; i++)
    assert_fails(HAUL_ENAME, get_code(name_of(i)));
}

static void a_store_that_ends_moves_the_device_tier_down(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  put_all(1);
  cache_client_end(&t.client);
  int status = cache_store_end(&t.stores[0]);
  assert_int_equal(status, 0);
  cache_store_again(&t.stores[0]);
  start_client(1, 1);
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.memory.restored + stats.file.restored, KEYS);
  assert_int_equal(tier_of("key99"), HAUL_CACHE_MEMORY); /* the last used ones */
  assert_int_equal(tier_of("key0"), HAUL_CACHE_FILE);
  check_all(0, 1);
}

/* The same files serve a store without a device. */
static void a_store_can_give_its_device_up(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  put_all(1);
  cache_client_end(&t.client);
  int status = cache_store_end(&t.stores[0]);
  assert_int_equal(status, 0);
  t.stores[0].device_capacity = 0;
  cache_store_again(&t.stores[0]);
  start_client(1, 1);
  check_all(0, 1);
  put_pattern("new", 1000, 2);
  assert_int_equal(tier_of("new"), HAUL_CACHE_MEMORY);
  assert_int_equal(stats_of(0).device.capacity, 0);
}

/* ---- Several stores, one of them with a device ---- */

static void start_mixed(unsigned replicas) {
  start_store(0, MIB, MIB, 4 * MIB);
  start_store(1, 0, 8 * MIB, 0);
  start_client(2, replicas);
}

static void replicas_are_at_stores_with_and_without_a_device(void **state) {
  (void)state;
  start_mixed(2);
  put_all(1);
  assert_int_equal(stats_of(1).memory.blocks, KEYS);
  check_all(0, 1);
  for (int lost = 0; lost < 2; lost++) { /* what each one alone has */
    cache_client_end(&t.client);
    cache_client_begin(&t.client, &t.stores[lost], 1, 1, t.only, REGION);
    check_all(0, 1);
  }
  cache_client_end(&t.client);
  start_client(2, 2);
  cache_store_kill(&t.stores[0]);
  check_all(0, 1);
}

static struct haul_cache_repair repair(void) {
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  assert_works(haul_cache_repair(t.client.cache, 0, BOUND, NULL, NULL, &result));
  return result;
}

static void a_repair_copies_from_a_device(void **state) {
  (void)state;
  start(MIB, MIB, 4 * MIB);
  put_all(1);
  cache_client_end(&t.client);
  start_store(1, 0, 8 * MIB, 0);
  start_client(2, 2);
  struct haul_cache_repair result = repair();
  assert_int_equal(result.blocks, KEYS);
  assert_int_equal(result.copies, KEYS);
  assert_int_equal(result.missing, 0);
  cache_store_kill(&t.stores[0]);
  check_all(0, 1);
}

/* The store has room for a part of the blocks, and loses none of its own. A repair asks it for all
 * at once, which takes as many as fit into the device; the next one moves these down. */
static void a_repair_fills_a_device_and_what_is_below(void **state) {
  (void)state;
  start_store(0, MIB, MIB, 0);
  start_store(1, 0, 8 * MIB, 0);
  cache_client_begin(&t.client, &t.stores[1], 1, 1, t.only, REGION);
  put_all(1);
  cache_client_end(&t.client);
  start_client(2, 2);
  for (int i = 0; i < 3; i++) {
    struct haul_cache_repair result = repair();
    assert_int_equal(result.copies, i < 2 ? HELD : 0);
    assert_int_equal(result.code, HAUL_ELIMIT);
  }
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.device.blocks, HELD);
  assert_int_equal(stats.memory.blocks, HELD);
  assert_int_equal(stats.memory.evictions, 0);
  check_all(0, 1);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], CACHE_STORE_MODE) == 0)
    return cache_store_main();
  const struct CMUnitTest tests[] = {
      BOTH(a_block_is_read_as_it_was_put),
      BOTH(one_call_takes_many_keys),
      BOTH(blocks_move_between_devices),
      BOTH(evicted_blocks_move_through_all_tiers),
      BOTH(without_a_file_the_memory_evicts),
      BOTH(a_key_is_in_one_tier),
      BOTH(a_key_is_removed_from_each_tier),
      BOTH(a_pinned_block_stays_in_the_device),
      BOTH(the_capacity_of_the_device_is_obeyed),
      BOTH(a_failed_put_keeps_nothing),
      BOTH(a_killed_store_loses_the_device_tier_alone),
      BOTH(a_store_that_ends_moves_the_device_tier_down),
      BOTH(a_store_can_give_its_device_up),
      BOTH(replicas_are_at_stores_with_and_without_a_device),
      BOTH(a_repair_copies_from_a_device),
      BOTH(a_repair_fills_a_device_and_what_is_below),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
