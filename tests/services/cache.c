/* SPDX-License-Identifier: MIT
 * The cache with stores in processes of their own, over the best path and over tcp alone. */
#include "support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/format.h"
#include "cache/index.h"
#include "services/rig/cache_case.h"
#include "support/child.h"
#include "support/owner.h"

#define KIB    ((uint64_t)1 << 10)
#define MIB    ((uint64_t)1 << 20)
#define REGION (8 * MIB)

static uint64_t churn_words; /* of 8 bytes in a block, at most */

static void start_stores(size_t count, uint64_t capacity) {
  for (size_t i = 0; i < count; i++)
    cache_store_begin(&t.stores[i], cache_case_address(), capacity);
}

static void start(size_t count, unsigned replicas, uint64_t capacity) {
  start_stores(count, capacity);
  cache_client_begin(&t.client, t.stores, count, replicas, t.only, REGION);
}

static void put_pattern(const char *key, uint64_t length, uint64_t seed) {
  pattern_fill(t.client.bytes, length, seed);
  assert_works(cache_put(&t.client, key, 0, length, 0));
}

static void check_pattern(struct cache_client *client, const char *key, uint64_t length,
                          uint64_t seed) {
  uint64_t got = REGION / 2;
  memset(client->bytes + REGION / 2, 0, REGION / 2);
  assert_works(cache_get(client, key, REGION / 2, &got));
  assert_int_equal(got, length);
  pattern_check(client->bytes + REGION / 2, length, seed);
}

static int get_code(const char *key) {
  uint64_t length = REGION / 2;
  return cache_get(&t.client, key, REGION / 2, &length);
}

static struct haul_cache_stats stats_of(unsigned member) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  assert_works(haul_cache_stat(t.client.cache, member, haul_deadline_in(20 * S), &stats));
  return stats;
}

/* ---- One store ---- */

static void an_absent_key_is_named(void **state) {
  (void)state;
  start(1, 1, 4 * MIB);
  assert_fails(HAUL_ENAME, get_code("nothing"));
  assert_string_equal(haul_error_last()->object, "nothing");
  assert_fails(HAUL_ENAME, cache_exists(&t.client, "nothing"));
  assert_fails(HAUL_ENAME, cache_remove(&t.client, "nothing"));
  assert_fails(HAUL_ENAME, cache_pin(&t.client, "nothing", 10));
}

static void a_block_is_read_as_it_was_put(void **state) {
  (void)state;
  static const uint64_t lengths[] = {1,      7,   4096,    4097,        100000,
                                     131072, MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB};
  start(1, 1, 16 * MIB);
  for (size_t i = 0; i < COUNT(lengths); i++) {
    char key[16];
    snprintf(key, sizeof key, "key%zu", i);
    put_pattern(key, lengths[i], i);
    assert_works(cache_exists(&t.client, key));
    check_pattern(&t.client, key, lengths[i], i);
    check_pattern(&t.client, key, lengths[i], i); /* by the location of the first */
  }
}

static void keys_have_any_bytes(void **state) {
  (void)state;
  uint8_t key[HAUL_CACHE_KEY_MAX];
  for (size_t i = 0; i < sizeof key; i++)
    key[i] = (uint8_t)(i * 37);
  struct haul_cache_item items[2] = {{.key = key, .key_length = sizeof key, .length = 100},
                                     {.key = key, .key_length = 1, .offset = 100, .length = 50}};
  start(1, 1, 4 * MIB);
  pattern_fill(t.client.bytes, 150, 1);
  assert_works(haul_cache_put(t.client.cache, t.client.region, items, 2, 0, HAUL_PRIORITY_NORMAL,
                              haul_deadline_in(20 * S)));
  memset(t.client.bytes, 0, 150);
  assert_works(haul_cache_get(t.client.cache, t.client.region, items, 2, haul_deadline_in(20 * S)));
  pattern_check(t.client.bytes, 150, 1);
}

static void one_call_takes_many_keys(void **state) {
  (void)state;
  enum { KEYS = 300 };
  static char names[KEYS][16];
  static struct haul_cache_item items[KEYS];
  start(1, 1, 8 * MIB);
  for (size_t i = 0; i < KEYS; i++) {
    snprintf(names[i], sizeof names[i], "many%zu", i);
    items[i] = (struct haul_cache_item){.key = names[i],
                                        .key_length = strlen(names[i]),
                                        .offset = i * 8 * KIB,
                                        .length = i % 7 * 1000 + 1};
  }
  pattern_fill(t.client.bytes, KEYS * 8 * KIB, 5);
  assert_works(haul_cache_put(t.client.cache, t.client.region, items, KEYS, 0, HAUL_PRIORITY_NORMAL,
                              haul_deadline_in(20 * S)));
  items[200].key = "other";
  items[200].key_length = 5;
  assert_fails(HAUL_ENAME,
               haul_cache_exists(t.client.cache, items, KEYS, haul_deadline_in(20 * S)));
  assert_string_equal(haul_error_last()->object, "other");
  for (size_t i = 0; i < KEYS; i++)
    assert_int_equal(items[i].code, i == 200 ? HAUL_ENAME : 0);
  items[200].key = names[200];
  items[200].key_length = strlen(names[200]);
  for (size_t i = 0; i < KEYS; i++)
    items[i].length = 8 * KIB;
  uint8_t *expected = malloc(KEYS * 8 * KIB);
  memcpy(expected, t.client.bytes, KEYS * 8 * KIB);
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < KEYS; i++)
      items[i].length = 8 * KIB;
    memset(t.client.bytes, 0, KEYS * 8 * KIB);
    assert_works(
        haul_cache_get(t.client.cache, t.client.region, items, KEYS, haul_deadline_in(20 * S)));
    for (size_t i = 0; i < KEYS; i++) {
      assert_int_equal(items[i].length, i % 7 * 1000 + 1);
      assert_memory_equal(t.client.bytes + i * 8 * KIB, expected + i * 8 * KIB, items[i].length);
    }
  }
  free(expected);
  assert_int_equal(stats_of(0).memory.blocks, KEYS);
}

static void a_replaced_block_is_found_by_all_clients(void **state) {
  (void)state;
  struct cache_client other;
  start(1, 1, 8 * MIB);
  cache_client_begin(&other, t.stores, 1, 1, t.only, REGION);
  put_pattern("key", 1000, 1);
  check_pattern(&other, "key", 1000, 1);
  for (uint64_t i = 2; i < 6; i++) {
    put_pattern("key", i * 1000, i);
    check_pattern(&other, "key", i * 1000, i);
    check_pattern(&t.client, "key", i * 1000, i);
  }
  assert_int_equal(stats_of(0).memory.blocks, 1);
  assert_int_equal(stats_of(0).memory.used, 8192);
  assert_works(cache_remove(&t.client, "key"));
  uint64_t length = 10000;
  assert_fails(HAUL_ENAME, cache_get(&other, "key", 0, &length));
  assert_int_equal(stats_of(0).memory.used, 0);
  cache_client_end(&other);
}

static void a_room_that_is_too_short_is_refused(void **state) {
  (void)state;
  uint64_t length = 999;
  start(1, 1, 4 * MIB);
  put_pattern("key", 1000, 1);
  t.client.bytes[999] = 77;
  assert_fails(HAUL_ERANGE, cache_get(&t.client, "key", 0, &length));
  assert_int_equal(length, 1000);
  length = 1000;
  assert_works(cache_get(&t.client, "key", 0, &length));
  length = 999;
  assert_fails(HAUL_ERANGE, cache_get(&t.client, "key", 0, &length));
}

static void wrong_arguments_are_refused(void **state) {
  (void)state;
  char letters[HAUL_CACHE_KEY_MAX + 2] = {0};
  memset(letters, 'k', HAUL_CACHE_KEY_MAX + 1);
  start(1, 1, 4 * MIB);
  uint64_t length = 10;
  assert_fails(HAUL_EINVAL, cache_put(&t.client, "", 0, 10, 0));
  assert_fails(HAUL_EINVAL, cache_put(&t.client, letters, 0, 10, 0));
  assert_fails(HAUL_EINVAL, cache_get(&t.client, "", 0, &length));
  assert_fails(HAUL_EINVAL, cache_get(&t.client, letters, 0, &length));
  assert_fails(HAUL_EINVAL, cache_put(&t.client, "empty", 0, 0, 0));
  assert_fails(HAUL_ELIMIT, cache_put(&t.client, "large", 0, 4 * MIB + 1, 0));
  assert_fails(HAUL_ERANGE, cache_put(&t.client, "beyond", REGION - 9, 10, 0));
  assert_fails(HAUL_EINVAL, cache_put(&t.client, "flags", 0, 10, 2));
  assert_fails(HAUL_EINVAL, cache_pin(&t.client, "long", 86401));
  length = 10;
  put_pattern("key", 10, 1);
  assert_fails(HAUL_ERANGE, cache_get(&t.client, "key", REGION - 9, &length));
  assert_works(haul_cache_detach(t.client.cache, t.client.region));
  assert_fails(HAUL_EINVAL, cache_put(&t.client, "key", 0, 10, 0));
  assert_fails(HAUL_EINVAL, haul_cache_detach(t.client.cache, t.client.region));
  assert_works(haul_cache_attach(t.client.cache, t.client.region));
  assert_fails(HAUL_EEXIST, haul_cache_attach(t.client.cache, t.client.region));
  assert_int_equal(stats_of(0).memory.used, 4096); /* of "key": failed puts keep no room */
}

static void members_are_checked(void **state) {
  (void)state;
  struct haul_cache_config config = HAUL_CACHE_INIT;
  struct haul_node_config node_config = patient_config();
  const char *twice[] = {"tcp://127.0.0.1:1", "tcp://127.0.0.1:1"};
  haul_node *node;
  haul_cache *cache;
  assert_works(haul_node_open(&node_config, &node));
  assert_fails(HAUL_EADDRESS, haul_cache_open(node, &config, HAUL_NO_WAIT, &cache));
  config.members = twice;
  config.member_count = 2;
  assert_fails(HAUL_EADDRESS, haul_cache_open(node, &config, HAUL_NO_WAIT, &cache));
  haul_node_close(node);
}

static void a_passed_deadline_ends_a_call_at_once(void **state) {
  (void)state;
  struct haul_cache_item item = {.key = "key", .key_length = 3, .length = 10};
  start(1, 1, 4 * MIB);
  put_pattern("key", 10, 1);
  assert_fails(HAUL_ETIMEDOUT,
               haul_cache_get(t.client.cache, t.client.region, &item, 1, HAUL_NO_WAIT));
  assert_fails(HAUL_ETIMEDOUT, haul_cache_put(t.client.cache, t.client.region, &item, 1, 0,
                                              HAUL_PRIORITY_NORMAL, HAUL_NO_WAIT));
}

/* ---- Put if absent ---- */

enum { RACE_KEYS = 100 };

struct racer {
  struct cache_client client;
  uint8_t number;
  bool won[RACE_KEYS];
};

static void *race(void *argument) {
  struct racer *racer = argument;
  memset(racer->client.bytes, racer->number, 5000);
  for (int i = 0; i < RACE_KEYS; i++) {
    char key[16];
    snprintf(key, sizeof key, "race%d", i);
    int code = cache_put(&racer->client, key, 0, 5000, HAUL_CACHE_IF_ABSENT);
    racer->won[i] = code == 0;
    if (code != 0 && code != HAUL_EEXIST)
      abort();
  }
  return NULL;
}

static void one_of_two_puts_if_absent_wins(void **state) {
  (void)state;
  struct racer racers[2];
  pthread_t threads[2];
  start(2, 2, 8 * MIB);
  for (uint8_t i = 0; i < 2; i++) {
    racers[i].number = i;
    cache_client_begin(&racers[i].client, t.stores, 2, 2, t.only, REGION);
    pthread_create(&threads[i], NULL, race, &racers[i]);
  }
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < RACE_KEYS; i++) {
    char key[16];
    uint64_t length = 5000;
    snprintf(key, sizeof key, "race%d", i);
    assert_int_equal(racers[0].won[i] + racers[1].won[i], 1);
    assert_works(cache_get(&t.client, key, 0, &length));
    for (int j = 0; j < 5000; j++)
      assert_int_equal(t.client.bytes[j], racers[1].won[i]);
  }
  assert_int_equal(stats_of(0).memory.blocks + stats_of(1).memory.blocks, 2 * RACE_KEYS);
  for (int i = 0; i < 2; i++)
    cache_client_end(&racers[i].client);
}

/* ---- Room ---- */

static void the_capacity_is_obeyed(void **state) {
  (void)state;
  char key[16];
  start(1, 1, MIB);
  for (uint64_t i = 0; i < 100; i++) {
    snprintf(key, sizeof key, "key%d", (int)i);
    put_pattern(key, 30 * KIB + i, i);
    assert_true(stats_of(0).memory.used <= MIB);
  }
  check_pattern(&t.client, "key99", 30 * KIB + 99, 99);
  assert_fails(HAUL_ENAME, get_code("key0"));
  assert_int_equal(stats_of(0).memory.evictions, 100 - MIB / (32 * KIB));
}

static void a_pinned_block_stays_until_its_lease_ends(void **state) {
  (void)state;
  char key[16];
  start(1, 1, MIB);
  put_pattern("pinned", 100, 42);
  assert_works(cache_pin(&t.client, "pinned", 3600));
  for (int i = 0; i < 70; i++) {
    snprintf(key, sizeof key, "a%d", i);
    put_pattern(key, 32 * KIB, 1);
  }
  check_pattern(&t.client, "pinned", 100, 42);
  assert_works(cache_pin(&t.client, "pinned", 0));
  assert_works(cache_pin(&t.client, "pinned", 1));
  sleep(2);
  for (int i = 0; i < 70; i++) {
    snprintf(key, sizeof key, "b%d", i);
    put_pattern(key, 32 * KIB, 1);
  }
  assert_fails(HAUL_ENAME, get_code("pinned"));
}

static void half_of_the_capacity_can_be_pinned(void **state) {
  (void)state;
  start(1, 1, MIB);
  put_pattern("a", 500 * KIB, 1);
  put_pattern("b", 500 * KIB, 2);
  assert_works(cache_pin(&t.client, "a", 3600));
  assert_fails(HAUL_ELIMIT, cache_pin(&t.client, "b", 3600));
  assert_works(cache_pin(&t.client, "a", 0));
  assert_works(cache_pin(&t.client, "b", 3600));
}

/* ---- Restart ---- */

/* Changes 8 bytes of the file. */
static void damage(const char *path, uint64_t offset) {
  int file = open(path, O_RDWR | O_CLOEXEC);
  uint64_t value;
  assert_true(file >= 0);
  assert_int_equal(pread(file, &value, sizeof value, (off_t)offset), sizeof value);
  value ^= 1;
  assert_int_equal(pwrite(file, &value, sizeof value, (off_t)offset), sizeof value);
  close(file);
}

/* The offset of a key's slot in the file. */
static uint64_t slot_in_file(const char *path, const char *key, struct slot *slot) {
  struct header header;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(file >= 0);
  assert_int_equal(pread(file, &header, sizeof header, 0), sizeof header);
  for (uint64_t i = 0; i < header.buckets * BUCKET_SLOTS; i++) {
    uint64_t offset = bucket_offset(0) + i * sizeof *slot;
    assert_int_equal(pread(file, slot, sizeof *slot, (off_t)offset), sizeof *slot);
    if (slot_has_key(slot, key, strlen(key))) {
      close(file);
      return offset;
    }
  }
  fail_msg("the key is not in the file");
  return 0;
}

static void a_killed_store_finds_its_blocks_again(void **state) {
  (void)state;
  struct slot slot;
  start(1, 1, 4 * MIB);
  put_pattern("good", 50000, 1);
  put_pattern("torn", 50000, 2);
  put_pattern("changing", 50000, 3);
  check_pattern(&t.client, "torn", 50000, 2);
  cache_store_kill(&t.stores[0]);
  slot_in_file(t.stores[0].path, "torn", &slot);
  damage(t.stores[0].path, slot.offset + 40000);
  damage(t.stores[0].path, slot_in_file(t.stores[0].path, "changing", &slot)); /* its sequence */
  cache_store_again(&t.stores[0]);
  check_pattern(&t.client, "good", 50000, 1);
  assert_fails(HAUL_ENAME, get_code("torn"));
  assert_fails(HAUL_ENAME, get_code("changing"));
  assert_int_equal(stats_of(0).memory.restored, 1);
  assert_int_equal(stats_of(0).memory.dropped, 2);
  put_pattern("torn", 50000, 4);
  check_pattern(&t.client, "torn", 50000, 4);
}

static void another_file_is_no_store(void **state) {
  (void)state;
  struct haul_node_config node_config = patient_config();
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  haul_node *node;
  haul_cache_store *store;
  char path[128];
  cache_path(path);
  config.path = path;
  assert_works(haul_node_open(&node_config, &node));
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store)); /* capacity 0 */
  assert_int_equal(access(path, F_OK), -1);
  config.capacity = 100 * KIB;
  config.file_capacity = MIB;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store)); /* no file_path */
  config.file_capacity = 0;
  assert_works(haul_cache_store_open(node, &config, &store));
  struct haul_cache_stats stats = {0};
  assert_fails(HAUL_EINVAL, haul_cache_store_stats(store, &stats)); /* size 0 */
  haul_cache_store *second;
  assert_fails(HAUL_EBUSY, haul_cache_store_open(node, &config, &second));
  haul_cache_store_close(store);
  config.capacity = 200 * KIB;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store)); /* it has 100 */
  damage(path, 8);
  config.capacity = 0;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_int_equal(chmod(path, 0666), 0);
  assert_fails(HAUL_EINSECURE, haul_cache_store_open(node, &config, &store));
  unlink(path);
  haul_node_close(node);
}

static void write_file(const char *path, const void *bytes, size_t length) {
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(file >= 0);
  assert_int_equal(pwrite(file, bytes, length, 0), length);
  close(file);
}

static void check_refused(haul_node *node, const char *path, uint64_t capacity, off_t length) {
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  struct stat status;
  haul_cache_store *store;
  config.path = path;
  config.capacity = capacity;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_int_equal(stat(path, &status), 0);
  assert_int_equal(status.st_size, length);
}

static void a_foreign_file_is_left_as_it_was(void **state) {
  (void)state;
  static const uint8_t zeros[5000];
  static const uint64_t mark = STORE_BEING_MADE;
  struct haul_node_config node_config = patient_config();
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  haul_node *node;
  haul_cache_store *store;
  char path[128];
  cache_path(path);
  assert_works(haul_node_open(&node_config, &node));
  write_file(path, zeros, sizeof zeros);
  check_refused(node, path, 0, sizeof zeros);
  check_refused(node, path, 100 * KIB, sizeof zeros);
  write_file(path, zeros, 0);
  check_refused(node, path, 0, 0);
  write_file(path, &mark, sizeof mark); /* a store whose making was interrupted */
  check_refused(node, path, 0, sizeof mark);
  config.path = path;
  config.capacity = 100 * KIB;
  assert_works(haul_cache_store_open(node, &config, &store));
  haul_cache_store_close(store);
  unlink(path);
  haul_node_close(node);
}

static void the_holes_of_a_copied_file_are_filled(void **state) {
  (void)state;
  struct haul_node_config node_config = patient_config();
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  struct stat status;
  haul_node *node;
  haul_cache_store *store;
  char path[128];
  cache_path(path);
  config.path = path;
  config.capacity = MIB;
  assert_works(haul_node_open(&node_config, &node));
  assert_works(haul_cache_store_open(node, &config, &store));
  haul_cache_store_close(store);
  int file = open(path, O_RDWR | O_CLOEXEC);
  assert_true(file >= 0);
  assert_int_equal(fstat(file, &status), 0);
  assert_int_equal(ftruncate(file, status.st_size - (off_t)MIB), 0); /* all units */
  assert_int_equal(ftruncate(file, status.st_size), 0);
  close(file);
  assert_works(haul_cache_store_open(node, &config, &store));
  assert_int_equal(stat(path, &status), 0);
  assert_true(status.st_blocks * 512 >= status.st_size);
  haul_cache_store_close(store);
  unlink(path);
  haul_node_close(node);
}

/* As if the store stopped within a change of the key's slot. */
static void a_key_that_keeps_changing_is_not_absent(void **state) {
  (void)state;
  struct slot slot;
  start(1, 1, 4 * MIB);
  put_pattern("key", 1000, 1);
  uint64_t offset = slot_in_file(t.stores[0].path, "key", &slot);
  damage(t.stores[0].path, offset); /* its sequence */
  assert_fails(HAUL_EBUSY, get_code("key"));
  damage(t.stores[0].path, offset);
  check_pattern(&t.client, "key", 1000, 1);
}

/* ---- Several stores ---- */

enum { SPREAD = 40 };

static void put_spread(void) {
  for (uint64_t i = 0; i < SPREAD; i++) {
    char key[16];
    snprintf(key, sizeof key, "spread%d", (int)i);
    put_pattern(key, 10000 + i, i);
  }
}

static void a_dead_store_loses_what_it_alone_had(void **state) {
  (void)state;
  unsigned lost = 0;
  start(3, 1, 4 * MIB);
  put_spread();
  for (unsigned m = 0; m < 3; m++)
    assert_true(stats_of(m).memory.blocks > 0);
  uint64_t expected = stats_of(1).memory.blocks;
  cache_store_kill(&t.stores[1]);
  for (uint64_t i = 0; i < SPREAD; i++) {
    char key[16];
    snprintf(key, sizeof key, "spread%d", (int)i);
    uint64_t length = REGION / 2;
    int code = cache_get(&t.client, key, REGION / 2, &length);
    if (code == 0) {
      pattern_check(t.client.bytes + REGION / 2, 10000 + i, i);
      continue;
    }
    lost++;
    assert_string_equal(haul_error_last()->object, key);
    assert_non_null(strstr(haul_error_last()->text, t.stores[1].address));
    assert_non_null(strstr(haul_error_last()->hint, t.stores[1].address));
    assert_true(code == HAUL_EPEER || code == HAUL_ECONNECT || code == HAUL_EADDRESS);
  }
  assert_int_equal(lost, expected);
  put_spread(); /* the others take its keys */
  for (uint64_t i = 0; i < SPREAD; i++) {
    char key[16];
    snprintf(key, sizeof key, "spread%d", (int)i);
    check_pattern(&t.client, key, 10000 + i, i);
  }
}

/* It starts or stops its store, whose blocks may come back. */
static void a_node_without_its_store_is_away(void **state) {
  (void)state;
  struct haul_node_config config = patient_config();
  haul_node *node;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, t.stores[0].address, sizeof t.stores[0].address));
  cache_client_begin(&t.client, t.stores, 1, 1, t.only, REGION);
  assert_fails(HAUL_ECONNECT, get_code("key"));
  assert_non_null(strstr(haul_error_last()->text, t.stores[0].address));
  assert_fails(HAUL_ECONNECT, cache_put(&t.client, "key", 0, 1000, 0));
  assert_fails(HAUL_ECONNECT, cache_remove(&t.client, "key"));
  cache_client_end(&t.client);
  haul_node_close(node);
}

/* The client connects again after a pause. */
static void await_store(unsigned member) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  while (haul_cache_stat(t.client.cache, member, haul_deadline_in(20 * S), &stats))
    usleep(20000);
  assert_int_equal(stats.memory.dropped, 0);
}

static void a_replicated_block_outlives_a_store(void **state) {
  (void)state;
  start(3, 2, 4 * MIB);
  put_spread();
  assert_int_equal(stats_of(0).memory.blocks + stats_of(1).memory.blocks +
                       stats_of(2).memory.blocks,
                   2 * SPREAD);
  for (int dead = 0; dead < 3; dead++) {
    cache_store_kill(&t.stores[dead]);
    for (uint64_t i = 0; i < SPREAD; i++) {
      char key[16];
      snprintf(key, sizeof key, "spread%d", (int)i);
      check_pattern(&t.client, key, 10000 + i, i);
    }
    cache_store_again(&t.stores[dead]);
    await_store((unsigned)dead);
  }
}

/* Puts a key whose first store is member 0. */
static void put_first_at_0(char key[16]) {
  struct haul_cache_item item = {.key = key, .length = 1000};
  for (int i = 0;; i++) {
    snprintf(key, 16, "key%d", i);
    item.key_length = strlen(key);
    assert_works(
        haul_cache_put(t.client.cache, t.client.region, &item, 1, 0, 0, haul_deadline_in(20 * S)));
    assert_true(item.replicas > 0);
    if (item.member == 0)
      return;
  }
}

/* Else a get would find the older block when the other store is away. */
static void a_replica_that_has_no_room_drops_the_older_block(void **state) {
  (void)state;
  char key[16];
  cache_store_begin(&t.stores[0], NULL, 4 * MIB);
  cache_store_begin(&t.stores[1], NULL, 65536);
  cache_client_begin(&t.client, t.stores, 2, 2, t.only, REGION);
  put_first_at_0(key);
  put_pattern(key, 100000, 2);
  check_pattern(&t.client, key, 100000, 2);
  cache_store_kill(&t.stores[0]);
  int code = get_code(key);
  assert_true(code == HAUL_EPEER || code == HAUL_ECONNECT || code == HAUL_EADDRESS);
}

/* The block may have been put while the first store was away. */
static void a_store_that_may_have_the_key_is_named(void **state) {
  (void)state;
  char key[16];
  start(2, 1, 4 * MIB);
  put_first_at_0(key);
  assert_works(cache_remove(&t.client, key));
  assert_fails(HAUL_ENAME, cache_remove(&t.client, key));
  cache_store_kill(&t.stores[1]);
  assert_fails(HAUL_ENAME, get_code(key));
  assert_non_null(strstr(haul_error_last()->text, t.stores[1].address));
  assert_fails(HAUL_ENAME, cache_exists(&t.client, key));
  int code = cache_remove(&t.client, key);
  assert_true(code == HAUL_EPEER || code == HAUL_ECONNECT || code == HAUL_EADDRESS);
  code = cache_pin(&t.client, key, 10);
  assert_true(code == HAUL_EPEER || code == HAUL_ECONNECT || code == HAUL_EADDRESS);
  put_pattern(key, 100, 1);
  assert_works(cache_remove(&t.client, key));
}

/* Over tcp: over map a stopped process is read like any other. */
static void a_hanging_store_is_bypassed(void **state) {
  (void)state;
  start(2, 2, 4 * MIB);
  put_pattern("key", 10000, 1);
  for (unsigned stopped = 0; stopped < 2; stopped++) {
    struct haul_cache_item item = {
        .key = "key", .key_length = 3, .offset = REGION / 2, .length = 10000};
    child_stop(t.stores[stopped].pid);
    int code = haul_cache_get(t.client.cache, t.client.region, &item, 1, haul_deadline_in(4 * S));
    kill(t.stores[stopped].pid, SIGCONT);
    assert_works(code);
    pattern_check(t.client.bytes + REGION / 2, 10000, 1);
    await_store(stopped);
  }
}

/* The connection stays for calls that have more time. */
static void a_short_deadline_blames_no_store(void **state) {
  (void)state;
  struct haul_cache_item item = {.key = "key", .key_length = 3, .length = 10000};
  start(1, 1, 4 * MIB);
  put_pattern("key", 10000, 1);
  for (int put = 0; put < 2; put++) {
    child_stop(t.stores[0].pid);
    haul_deadline until = haul_deadline_in(50 * HAUL_MILLISECOND);
    int code = put ? haul_cache_put(t.client.cache, t.client.region, &item, 1, 0,
                                    HAUL_PRIORITY_NORMAL, until)
                   : haul_cache_get(t.client.cache, t.client.region, &item, 1, until);
    kill(t.stores[0].pid, SIGCONT);
    assert_int_equal(code, HAUL_ETIMEDOUT);
    assert_int_equal(stats_of(0).memory.blocks, 1);
  }
}

/* ---- Repair ---- */

static void spread_name(uint64_t i, char key[16]) {
  snprintf(key, 16, "spread%d", (int)i);
}

static void check_spread(struct cache_client *client) {
  char key[16];
  for (uint64_t i = 0; i < SPREAD; i++) {
    spread_name(i, key);
    check_pattern(client, key, 10000 + i, i);
  }
}

/* Whether store `member` alone has all blocks of put_spread. */
static void check_spread_at(unsigned member) {
  struct cache_client one;
  cache_client_begin(&one, &t.stores[member], 1, 1, t.only, REGION);
  check_spread(&one);
  cache_client_end(&one);
}

/* A store ends with its file; one without blocks takes its place. */
static void lose_store(unsigned member) {
  char address[160];
  snprintf(address, sizeof address, "%s", t.stores[member].address);
  cache_store_kill(&t.stores[member]);
  cache_store_forget(&t.stores[member]);
  cache_store_begin(&t.stores[member], address, 4 * MIB);
}

struct told {
  unsigned blocks, short_ones, copies;
};

static void count_told(void *user, const struct haul_cache_entry *entry, unsigned stores,
                       unsigned copies) {
  struct told *told = user;
  assert_int_equal(strncmp(entry->key, "spread", 6), 0);
  assert_true(entry->length >= 10000);
  told->blocks++;
  told->short_ones += stores < 2;
  told->copies += copies;
}

static struct haul_cache_repair repair(unsigned flags, struct told *told) {
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  *told = (struct told){0};
  assert_works(haul_cache_repair(t.client.cache, flags, haul_deadline_in(60 * S), count_told, told,
                                 &result));
  assert_int_equal(result.copies, told->copies);
  return result;
}

static void a_repair_copies_what_a_lost_store_had(void **state) {
  (void)state;
  struct told told;
  start(3, 2, 4 * MIB);
  put_spread();
  assert_int_equal(repair(0, &told).copies, 0);
  uint64_t lost = stats_of(1).memory.blocks;
  assert_true(lost > 0);
  cache_store_kill(&t.stores[1]);
  struct haul_cache_repair before = repair(HAUL_CACHE_DRY_RUN, &told);
  assert_int_equal(before.blocks, SPREAD);
  assert_int_equal(before.missing, lost);
  assert_int_equal(before.copies, 0);
  assert_int_equal(before.away, 1);
  assert_int_equal(told.short_ones, lost);
  struct haul_cache_repair after = repair(0, &told);
  assert_int_equal(after.copies, lost);
  assert_int_equal(after.missing, 0);
  assert_true(after.bytes >= lost * 10000);
  check_spread_at(0);
  check_spread_at(2);
  assert_int_equal(repair(0, &told).copies, 0);
}

/* It becomes the first store of keys that the others have. */
static void a_repair_fills_an_empty_store(void **state) {
  (void)state;
  struct told told;
  start(2, 1, 4 * MIB);
  put_spread();
  uint64_t kept = stats_of(1).memory.blocks;
  assert_true(kept > 0 && kept < SPREAD);
  cache_client_end(&t.client);
  cache_client_begin(&t.client, t.stores, 2, 2, t.only, REGION);
  struct haul_cache_repair first = repair(0, &told);
  assert_int_equal(first.copies, SPREAD);
  assert_int_equal(first.blocks, SPREAD);
  lose_store(0);
  await_store(0);
  struct haul_cache_repair second = repair(0, &told);
  assert_int_equal(second.copies, SPREAD);
  assert_int_equal(second.blocks, SPREAD);
  check_spread_at(0);
  check_spread_at(1);
}

/* Puts a block at the last of three stores in the order of its key, where a get does not look. */
static void put_far(char key[16]) {
  struct cache_client last;
  int code = 0;
  cache_client_begin(&last, &t.stores[2], 1, 1, t.only, REGION);
  for (uint64_t i = 0; i < 1000 && code != HAUL_ENAME; i++) {
    spread_name(i, key);
    pattern_fill(last.bytes, 10000, 7);
    assert_works(cache_put(&last, key, 0, 10000, 0));
    code = get_code(key);
    if (code != HAUL_ENAME)
      assert_works(cache_remove(&last, key));
  }
  assert_int_equal(code, HAUL_ENAME);
  cache_client_end(&last);
}

static void a_repair_brings_near_what_no_get_finds(void **state) {
  (void)state;
  struct told told;
  char key[16];
  start(3, 1, 4 * MIB);
  put_far(key);
  assert_int_equal(repair(HAUL_CACHE_DRY_RUN, &told).missing, 1);
  assert_int_equal(told.blocks, 1);
  struct haul_cache_repair result = repair(0, &told);
  assert_int_equal(result.blocks, 1);
  assert_int_equal(result.copies, 1);
  assert_int_equal(result.missing, 0);
  check_pattern(&t.client, key, 10000, 7);
}

static void a_repair_spreads_the_newest_block(void **state) {
  (void)state;
  struct told told;
  start(2, 2, 4 * MIB);
  pattern_fill(t.client.bytes, 20000, 99);
  for (uint64_t i = 0; i < SPREAD; i++) {
    char key[16];
    spread_name(i, key);
    assert_works(cache_put(&t.client, key, 0, 20000, 0));
  }
  cache_store_kill(&t.stores[0]);
  put_spread();
  cache_store_again(&t.stores[0]);
  await_store(0);
  struct haul_cache_repair result = repair(0, &told);
  assert_int_equal(result.copies, SPREAD);
  assert_int_equal(result.blocks, SPREAD);
  assert_int_equal(result.missing, 0);
  check_spread_at(0);
  check_spread_at(1);
}

/* Which of the blocks a store keeps depends on its address. */
static void a_repair_evicts_nothing(void **state) {
  (void)state;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  start(2, 1, 256 * KIB);
  for (int i = 0; i < 300; i++) { /* more than both can keep */
    char key[16];
    snprintf(key, sizeof key, "full%d", i);
    put_pattern(key, 4096, (uint64_t)i);
  }
  uint64_t evictions = stats_of(0).memory.evictions + stats_of(1).memory.evictions;
  uint64_t blocks = stats_of(0).memory.blocks + stats_of(1).memory.blocks;
  assert_true(evictions > 0 && blocks > 64);
  cache_client_end(&t.client);
  cache_client_begin(&t.client, t.stores, 2, 2, t.only, REGION);
  assert_works(haul_cache_repair(t.client.cache, 0, haul_deadline_in(60 * S), NULL, NULL, &result));
  assert_int_equal(result.code, HAUL_ELIMIT);
  assert_int_equal(result.missing + result.copies, blocks);
  assert_int_equal(stats_of(0).memory.evictions + stats_of(1).memory.evictions, evictions);
  assert_int_equal(stats_of(0).memory.blocks + stats_of(1).memory.blocks, blocks + result.copies);
}

/* Its bytes do not match the checksum that its store computed. */
static void a_repair_copies_no_damaged_block(void **state) {
  (void)state;
  struct told told;
  struct slot slot;
  start(2, 1, 4 * MIB);
  put_spread();
  struct haul_cache_item item = {.key = "spread7", .key_length = 7};
  assert_works(haul_cache_exists(t.client.cache, &item, 1, haul_deadline_in(20 * S)));
  unsigned at = item.member;
  slot_in_file(t.stores[at].path, "spread7", &slot);
  damage(t.stores[at].path, slot.offset + 5000);
  cache_client_end(&t.client);
  cache_client_begin(&t.client, t.stores, 2, 2, t.only, REGION);
  struct haul_cache_repair result = repair(0, &told);
  assert_int_equal(result.copies, SPREAD - 1);
  assert_int_equal(result.missing, 1);
  assert_int_equal(result.code, HAUL_ECHECKSUM);
}

static void a_repair_counts_a_key_that_keeps_changing(void **state) {
  (void)state;
  struct told told;
  struct slot slot;
  start(2, 2, 4 * MIB);
  put_spread();
  uint64_t offset = slot_in_file(t.stores[1].path, "spread7", &slot);
  damage(t.stores[1].path, offset); /* its sequence */
  struct haul_cache_repair result = repair(0, &told);
  assert_true(result.changed > 0); /* others may have its bucket */
  assert_int_equal(result.copies, 0);
  damage(t.stores[1].path, offset);
  result = repair(0, &told);
  assert_int_equal(result.changed, 0);
  assert_int_equal(result.blocks, SPREAD);
}

static void a_passed_deadline_blames_no_store(void **state) {
  (void)state;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  start(1, 1, 4 * MIB);
  put_pattern("key", 1000, 1);
  assert_fails(HAUL_ETIMEDOUT,
               haul_cache_repair(t.client.cache, 0, haul_deadline_in(1), NULL, NULL, &result));
  assert_int_equal(stats_of(0).memory.blocks, 1); /* over the connection that was there */
}

/* Over tcp: over map a stopped process is read like any other. */
static void a_repair_passes_a_hanging_store(void **state) {
  (void)state;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  start(2, 1, 4 * MIB);
  put_spread();
  uint64_t blocks = stats_of(1).memory.blocks;
  cache_client_end(&t.client);
  child_stop(t.stores[0].pid);
  cache_client_begin(&t.client, t.stores, 2, 1, t.only, REGION);
  int code = haul_cache_repair(t.client.cache, HAUL_CACHE_DRY_RUN, haul_deadline_in(10 * S), NULL,
                               NULL, &result);
  kill(t.stores[0].pid, SIGCONT);
  assert_works(code);
  assert_int_equal(result.away, 1);
  assert_int_equal(result.blocks, blocks);
}

static void a_repair_without_stores_fails(void **state) {
  (void)state;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  start(1, 1, 4 * MIB);
  assert_fails(HAUL_EINVAL,
               haul_cache_repair(t.client.cache, 2, HAUL_FOREVER, NULL, NULL, &result));
  struct haul_cache_repair wrong = {0};
  struct haul_cache_stats stats = {0};
  assert_fails(HAUL_EINVAL,
               haul_cache_repair(t.client.cache, 0, HAUL_FOREVER, NULL, NULL, &wrong)); /* size */
  assert_fails(HAUL_EINVAL, haul_cache_stat(t.client.cache, 0, HAUL_FOREVER, &stats));
  cache_store_kill(&t.stores[0]);
  assert_true(haul_cache_repair(t.client.cache, 0, haul_deadline_in(20 * S), NULL, NULL, &result) <
              0);
  assert_int_equal(result.away, 1);
  assert_non_null(strstr(haul_error_last()->text, "no store can be reached"));
}

/* ---- A store that executes a put late ---- */

static void *put_patiently(void *code) {
  struct haul_cache_item item = {
      .key = "patient", .key_length = 7, .offset = REGION / 2, .length = 1000};
  *(int *)code = haul_cache_put(t.client.cache, t.client.region, &item, 1, 0, HAUL_PRIORITY_NORMAL,
                                haul_deadline_in(50 * S));
  return NULL;
}

/* The other put keeps the connection, by which the store could read the memory later. */
static void a_put_that_timed_out_stores_no_later_bytes(void **state) {
  (void)state;
  struct haul_cache_item item = {.key = "key", .key_length = 3, .length = 100000};
  pthread_t thread;
  int code = 0;
  start(1, 1, 8 * MIB);
  put_pattern("key", 100000, 1);
  child_stop(t.stores[0].pid);
  assert_int_equal(pthread_create(&thread, NULL, put_patiently, &code), 0);
  pattern_fill(t.client.bytes, 100000, 2);
  int late = haul_cache_put(t.client.cache, t.client.region, &item, 1, 0, HAUL_PRIORITY_NORMAL,
                            haul_deadline_in(S / 2));
  pattern_fill(t.client.bytes, 100000, 3);
  kill(t.stores[0].pid, SIGCONT);
  pthread_join(thread, NULL);
  assert_fails(HAUL_ETIMEDOUT, late);
  assert_works(code);
  await_store(0);
  put_pattern("other", 1000, 4);
  check_pattern(&t.client, "key", 100000, 1);
}

/* ---- Replace while others read ---- */

enum { CHURN_KEYS = 3, CHURN_THREADS = 4 };
#define CHURN_ROUNDS (SANITIZED ? 150 : 600)

struct churner {
  struct cache_client client;
  uint64_t random;
  unsigned hits;
};
static atomic_uint churn_writers; /* that have not ended */

/* Blocks have 1 to `churn_words` words with one value, which tells key and length. */
static void churn_write(struct churner *churner, uint64_t key, const char *name) {
  uint64_t *words = (uint64_t *)churner->client.bytes;
  uint64_t count = 1 + next_random(&churner->random) % churn_words;
  uint64_t value = next_random(&churner->random) << 16 << 8 | count << 8 | key;
  for (uint64_t i = 0; i < count; i++)
    words[i] = value;
  int code = cache_put(&churner->client, name, 0, count * 8, 0);
  if (code)
    abort();
}

static void churn_read(struct churner *churner, uint64_t key, const char *name) {
  const uint64_t *words = (const uint64_t *)(churner->client.bytes + REGION / 2);
  uint64_t length = churn_words * 8;
  int code = cache_get(&churner->client, name, REGION / 2, &length);
  if (code == HAUL_ENAME || code == HAUL_EBUSY)
    return;
  if (code || (words[0] & 255) != key || (words[0] >> 8 & 0xffff) != length / 8)
    abort();
  for (uint64_t i = 0; i < length / 8; i++)
    if (words[i] != words[0])
      abort();
  churner->hits++;
}

static uint64_t churn_key(struct churner *churner, char name[16]) {
  uint64_t key = next_random(&churner->random) % CHURN_KEYS;
  snprintf(name, 16, "churn%d", (int)key);
  return key;
}

static void *churn_writes(void *argument) {
  char name[16];
  for (int i = 0; i < CHURN_ROUNDS; i++) {
    uint64_t key = churn_key(argument, name);
    churn_write(argument, key, name);
  }
  atomic_fetch_sub(&churn_writers, 1);
  return NULL;
}

static void *churn_reads(void *argument) {
  char name[16];
  while (atomic_load(&churn_writers) > 0) {
    uint64_t key = churn_key(argument, name);
    churn_read(argument, key, name);
  }
  return NULL;
}

static void churn(uint64_t words, uint64_t capacity) {
  struct churner churners[CHURN_THREADS] = {0};
  pthread_t threads[CHURN_THREADS];
  unsigned hits = 0;
  churn_words = words;
  start(1, 1, capacity); /* so little room that blocks take each other's place */
  atomic_store(&churn_writers, CHURN_THREADS / 2);
  for (uint64_t i = 0; i < CHURN_THREADS; i++) {
    churners[i].random = test_seed() + i + 1;
    cache_client_begin(&churners[i].client, t.stores, 1, 1, t.only, REGION);
    pthread_create(&threads[i], NULL, i % 2 ? churn_writes : churn_reads, &churners[i]);
  }
  for (int i = 0; i < CHURN_THREADS; i++) {
    pthread_join(threads[i], NULL);
    hits += churners[i].hits;
    cache_client_end(&churners[i].client);
  }
  assert_true(hits > 0);
  print_message("%u reads of %d puts\n", hits, CHURN_ROUNDS * CHURN_THREADS / 2);
}

static void readers_see_one_put_or_another(void **state) {
  (void)state;
  churn(6000, 256 * KIB);
}

static void readers_of_large_blocks_see_one_put_or_another(void **state) {
  (void)state;
  churn(60000, 2 * MIB);
}

/* The threads of one client share its connection: any of them receives the responses of all. */
static void *share(void *argument) {
  struct churner *churner = argument;
  for (int i = 0; i < CHURN_ROUNDS / 3; i++) {
    char name[24];
    uint64_t offset = (churner->random % 16) * 64 * KIB, length = 64 * KIB;
    snprintf(name, sizeof name, "share%d-%d", (int)(churner->random % 16), i % 5);
    memset(t.client.bytes + offset, i, 3000);
    if (cache_put(&t.client, name, offset, 3000, 0))
      abort();
    memset(t.client.bytes + offset, 0, 3000);
    if (cache_get(&t.client, name, offset, &length) || length != 3000 ||
        t.client.bytes[offset] != (uint8_t)i || t.client.bytes[offset + 2999] != (uint8_t)i)
      abort();
  }
  return NULL;
}

static void threads_share_a_client(void **state) {
  (void)state;
  struct churner churners[CHURN_THREADS] = {0};
  pthread_t threads[CHURN_THREADS];
  start(2, 2, 4 * MIB);
  for (uint64_t i = 0; i < CHURN_THREADS; i++) {
    churners[i].random = i;
    pthread_create(&threads[i], NULL, share, &churners[i]);
  }
  for (int i = 0; i < CHURN_THREADS; i++)
    pthread_join(threads[i], NULL);
}

/* ---- A file tier ---- */

enum { TIER_KEYS = 100 };
#define TIER_BLOCK (30 * KIB)

/* Room for 32 blocks of TIER_BLOCK in memory, and for all in the file. */
static void start_tiers(void) {
  cache_store_begin_tiers(&t.stores[0], cache_case_address(), MIB, 4 * MIB);
  cache_client_begin(&t.client, t.stores, 1, 1, t.only, REGION);
}

static void put_tiers(uint64_t seed) {
  char key[16];
  for (uint64_t i = 0; i < TIER_KEYS; i++) {
    snprintf(key, sizeof key, "tier%d", (int)i);
    put_pattern(key, TIER_BLOCK + i, seed + i);
  }
}

static void check_tiers(uint64_t seed) {
  char key[16];
  for (uint64_t i = 0; i < TIER_KEYS; i++) {
    snprintf(key, sizeof key, "tier%d", (int)i);
    check_pattern(&t.client, key, TIER_BLOCK + i, seed + i);
  }
}

/* The tier of a key, and the code of its look-up. */
static unsigned tier_of(const char *key) {
  struct haul_cache_item item = {.key = key, .key_length = strlen(key)};
  assert_works(haul_cache_exists(t.client.cache, &item, 1, haul_deadline_in(20 * S)));
  return item.tier;
}

static void evicted_blocks_move_to_the_file(void **state) {
  (void)state;
  start_tiers();
  put_tiers(1);
  assert_int_equal(tier_of("tier0"), HAUL_CACHE_FILE);
  assert_int_equal(tier_of("tier99"), HAUL_CACHE_MEMORY);
  check_tiers(1);
  check_tiers(1); /* by their locations */
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.memory.blocks + stats.file.blocks, TIER_KEYS);
  assert_int_equal(stats.memory.evictions, stats.file.puts);
  assert_int_equal(stats.file.blocks, stats.file.puts);
  assert_int_equal(stats.file.evictions, 0);
  assert_true(stats.file.used >= stats.file.blocks * TIER_BLOCK);
  assert_fails(HAUL_ENAME, get_code("nothing"));
}

static void a_key_is_in_one_tier(void **state) {
  (void)state;
  start_tiers();
  put_tiers(1);
  put_tiers(1000); /* those in the file are put again */
  check_tiers(1000);
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.memory.blocks + stats.file.blocks, TIER_KEYS);
  assert_int_equal(tier_of("tier5"), HAUL_CACHE_FILE);
  assert_fails(HAUL_EEXIST, cache_put(&t.client, "tier5", 0, 10, HAUL_CACHE_IF_ABSENT));
  assert_works(cache_pin(&t.client, "tier5", 10));
  assert_works(cache_remove(&t.client, "tier5"));
  assert_fails(HAUL_ENAME, get_code("tier5"));
  assert_works(cache_put(&t.client, "tier5", 0, 10, HAUL_CACHE_IF_ABSENT));
  assert_int_equal(tier_of("tier5"), HAUL_CACHE_MEMORY);
}

static void count_tiers(void *user, const struct haul_cache_entry *entry) {
  ((unsigned *)user)[entry->tier]++;
}

static void a_restart_finds_both_tiers(void **state) {
  (void)state;
  unsigned counts[2] = {0, 0};
  start_tiers();
  put_tiers(1);
  cache_store_kill(&t.stores[0]);
  cache_store_again(&t.stores[0]);
  check_tiers(1);
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.memory.restored + stats.file.restored, TIER_KEYS);
  assert_works(haul_cache_list(t.client.cache, 0, haul_deadline_in(20 * S), count_tiers, counts));
  assert_int_equal(counts[HAUL_CACHE_MEMORY], stats.memory.blocks);
  assert_int_equal(counts[HAUL_CACHE_FILE], stats.file.blocks);
}

/* Memory is lost, as when the host starts again; the file is not. */
static void a_file_tier_outlives_the_memory(void **state) {
  (void)state;
  start_tiers();
  put_tiers(1);
  uint64_t in_file = stats_of(0).file.blocks;
  cache_store_kill(&t.stores[0]);
  unlink(t.stores[0].path);
  struct haul_node_config node_config = patient_config();
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  haul_node *node;
  haul_cache_store *store;
  char file[160];
  snprintf(file, sizeof file, "%s.file", t.stores[0].path);
  config.path = t.stores[0].path;
  config.capacity = MIB;
  config.file_path = file;
  assert_works(haul_node_open(&node_config, &node));
  assert_works(haul_cache_store_open(node, &config, &store));
  assert_works(haul_cache_store_stats(store, &stats));
  assert_int_equal(stats.memory.blocks, 0);
  assert_int_equal(stats.file.restored, in_file);
  haul_cache_store_close(store);
  config.file_path = "/nowhere/file";
  assert_fails(HAUL_ESYSTEM, haul_cache_store_open(node, &config, &store));
  config.file_path = config.path;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  haul_node_close(node);
}

static void a_repair_copies_from_files(void **state) {
  (void)state;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  start_tiers();
  put_tiers(1);
  cache_store_begin(&t.stores[1], cache_case_address(), 8 * MIB);
  cache_client_end(&t.client);
  cache_client_begin(&t.client, t.stores, 2, 2, t.only, REGION);
  assert_works(haul_cache_repair(t.client.cache, 0, haul_deadline_in(60 * S), NULL, NULL, &result));
  assert_int_equal(result.blocks, TIER_KEYS);
  assert_int_equal(result.copies, TIER_KEYS);
  assert_int_equal(result.missing, 0);
  cache_store_kill(&t.stores[0]);
  check_tiers(1);
}

/* A store whose memory is full takes the blocks of the other one, and moves its own to its file. */
static void a_repair_fills_a_file_tier(void **state) {
  (void)state;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  cache_store_begin(&t.stores[1], cache_case_address(), 8 * MIB);
  cache_client_begin(&t.client, &t.stores[1], 1, 1, t.only, REGION);
  put_spread();
  cache_client_end(&t.client);
  start_tiers();
  put_tiers(1);
  cache_client_end(&t.client);
  cache_client_begin(&t.client, t.stores, 2, 2, t.only, REGION);
  assert_works(haul_cache_repair(t.client.cache, 0, haul_deadline_in(60 * S), NULL, NULL, &result));
  assert_int_equal(result.copies, TIER_KEYS + SPREAD);
  assert_int_equal(result.missing, 0);
  cache_store_kill(&t.stores[1]);
  check_tiers(1);
  check_spread(&t.client);
}

/* A store of this process, for one block of each tier. It has the block of `key`. */
struct own_tier {
  haul_region *region;
  struct index index;
};

static void begin_tier(haul_node *node, unsigned tier, const char *key, struct own_tier *own) {
  const struct haul_place host = {HAUL_HOST, 0};
  struct block block = {.key = key, .key_length = strlen(key), .length = 1000};
  uint64_t length = index_length(MIB, 64);
  assert_works(haul_region_alloc(node, host, length, 0, &own->region));
  void *memory = haul_region_address(own->region);
  cache_expect_races(memory, length);
  memset(memory, 0, length);
  assert_int_equal(index_create(&own->index, memory, MIB, 64), 0);
  atomic_store(&own->index.header->tiers, TIER_BIT(MEMORY_TIER) | TIER_BIT(FILE_TIER));
  assert_int_equal(index_reserve(&own->index, &block, 1), 0);
  pattern_fill(own->index.base + block.offset, block.length, tier);
  block.checksum = XXH3_64bits(own->index.base + block.offset, block.length);
  assert_int_equal(index_commit(&own->index, &block, false, 1), 0);
  assert_works(haul_region_publish(own->region, tier_region(tier), HAUL_READ));
}

/* Gets the blocks of both tiers in one call. */
static int get_both(void) {
  struct haul_cache_item items[] = {
      {.key = "tier0", .key_length = 5, .length = 1000},
      {.key = "tier1", .key_length = 5, .offset = 1000, .length = 1000}};
  memset(t.client.bytes, 0, 2000);
  return haul_cache_get(t.client.cache, t.client.region, items, 2, haul_deadline_in(20 * S));
}

/* The reads of the two tiers are in flight at the same time, and either fails alone. */
static void a_failed_tier_fails_the_other(void **state) {
  (void)state;
  struct haul_node_config config = patient_config();
  struct own_tier tiers[2];
  haul_node *node;
  assert_works(haul_node_open(&config, &node));
  begin_tier(node, FILE_TIER, "tier1", &tiers[FILE_TIER]);
  begin_tier(node, MEMORY_TIER, "tier0", &tiers[MEMORY_TIER]);
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, t.stores[0].address, sizeof t.stores[0].address));
  cache_client_begin(&t.client, t.stores, 1, 1, t.only, REGION);
  assert_works(get_both());
  for (unsigned lost = 0; lost < 2; lost++) {
    assert_works(haul_region_unpublish(tiers[lost].region, tier_region(lost)));
    assert_works(haul_region_publish(tiers[lost].region, tier_region(lost), HAUL_READ));
    assert_works(get_both()); /* over another connection */
    pattern_check(t.client.bytes, 1000, MEMORY_TIER);
    pattern_check(t.client.bytes + 1000, 1000, FILE_TIER);
  }
  cache_client_end(&t.client);
  for (unsigned i = 0; i < 2; i++) {
    index_close(&tiers[i].index);
    haul_region_release(tiers[i].region);
  }
  haul_node_close(node);
}

/* Blocks move between the tiers all the time, and no key is ever absent. */
static void *churn_tiers(void *argument) {
  struct churner *churner = argument;
  char name[16];
  for (int i = 0; i < CHURN_ROUNDS; i++) {
    uint64_t key = next_random(&churner->random) % TIER_KEYS;
    uint64_t length = TIER_BLOCK;
    snprintf(name, sizeof name, "tier%d", (int)key);
    if (churner->hits % 2) { /* a writer */
      memset(churner->client.bytes, (int)key, TIER_BLOCK);
      if (cache_put(&churner->client, name, 0, TIER_BLOCK, 0))
        abort();
      continue;
    }
    int code = cache_get(&churner->client, name, 0, &length);
    if (code && code != HAUL_EBUSY)
      fprintf(stderr, "%s: %s\n", name, haul_error_last()->text);
    if (code == HAUL_EBUSY)
      continue;
    if (code || length != TIER_BLOCK || churner->client.bytes[0] != (uint8_t)key ||
        churner->client.bytes[TIER_BLOCK - 1] != (uint8_t)key)
      abort();
  }
  return NULL;
}

static void no_key_is_absent_while_blocks_move(void **state) {
  (void)state;
  struct churner churners[CHURN_THREADS] = {0};
  pthread_t threads[CHURN_THREADS];
  char key[16];
  cache_store_begin_tiers(&t.stores[0], cache_case_address(), 128 * KIB, 8 * MIB);
  cache_client_begin(&t.client, t.stores, 1, 1, t.only, REGION);
  for (int i = 0; i < TIER_KEYS; i++) {
    snprintf(key, sizeof key, "tier%d", i);
    memset(t.client.bytes, i, TIER_BLOCK);
    assert_works(cache_put(&t.client, key, 0, TIER_BLOCK, 0));
  }
  for (unsigned i = 0; i < CHURN_THREADS; i++) {
    churners[i].random = test_seed() + i + 1;
    churners[i].hits = i;
    cache_client_begin(&churners[i].client, t.stores, 1, 1, t.only, REGION);
    pthread_create(&threads[i], NULL, churn_tiers, &churners[i]);
  }
  for (int i = 0; i < CHURN_THREADS; i++) {
    pthread_join(threads[i], NULL);
    cache_client_end(&churners[i].client);
  }
  struct haul_cache_stats stats = stats_of(0);
  assert_int_equal(stats.memory.blocks + stats.file.blocks, TIER_KEYS);
  assert_int_equal(stats.file.evictions, 0);
  assert_true(stats.file.puts > TIER_KEYS);
}

/* ---- A malformed client ---- */

struct malformed {
  struct request request;
  struct request_key keys[REQUEST_KEYS_MAX + 1];
};

static void send_malformed(haul_peer *peer, uint64_t *random, struct malformed *message) {
  for (size_t i = 0; i < sizeof *message / 8; i++)
    ((uint64_t *)message)[i] = next_random(random);
  message->request.kind = (uint32_t)(next_random(random) % 6);
  if (next_random(random) % 2) /* plausible counts and keys with absurd numbers */
    message->request.count = (uint32_t)(next_random(random) % (REQUEST_KEYS_MAX + 2));
  for (size_t i = 0; i <= REQUEST_KEYS_MAX; i++) {
    message->keys[i].key_length = (uint16_t)(next_random(random) % 3 ? 1 + i % 190 : 65535);
    message->keys[i].priority = (int16_t)(next_random(random) % 4) - 1;
    message->keys[i].seconds %= 100;
  }
  size_t keys = message->request.count <= REQUEST_KEYS_MAX + 1 ? message->request.count : 3;
  size_t length = sizeof message->request + keys * sizeof *message->keys;
  if (next_random(random) % 4 == 0)
    length = 1 + next_random(random) % sizeof *message;
  assert_works(haul_message_send(peer, CACHE_TAG << 48 | next_random(random) >> 16, message, length,
                                 haul_deadline_in(20 * S)));
}

/* Its client has waited no longer: another store has the newer version. */
static void a_replica_that_comes_too_late_drops_the_older_block(void **state) {
  (void)state;
  struct malformed message = {.request = {.kind = REQUEST_PUT, .count = 1}};
  haul_peer *peer;
  start(1, 1, MIB);
  put_pattern("key", 1000, 1);
  message.keys[0] =
      (struct request_key){.length = 1000, .version = INT64_MAX, .key_length = 3, .key = "key"};
  assert_works(
      haul_peer_connect(t.client.node, t.stores[0].address, haul_deadline_in(20 * S), &peer));
  assert_works(haul_message_send(peer, CACHE_TAG << 48, &message,
                                 sizeof message.request + sizeof *message.keys,
                                 haul_deadline_in(20 * S)));
  haul_deadline until = haul_deadline_in(20 * S);
  while (cache_exists(&t.client, "key") == 0 && haul_deadline_in(0) < until)
    usleep(10000);
  assert_fails(HAUL_ENAME, cache_exists(&t.client, "key"));
  haul_peer_close(peer);
}

static void a_malformed_client_harms_nobody(void **state) {
  (void)state;
  struct haul_node_config config = patient_config();
  static struct malformed message;
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  uint64_t random = test_seed() | 1;
  start(1, 1, 4 * MIB);
  put_pattern("key", 100000, 1);
  assert_works(cache_pin(&t.client, "key", 3600));
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_peer_connect(node, t.stores[0].address, haul_deadline_in(20 * S), &peer));
  assert_works(haul_peer_lookup(peer, REGION_NAME, haul_deadline_in(20 * S), &remote));
  assert_int_equal(haul_remote_rights(remote), HAUL_READ);
  for (int i = 0; i < (SANITIZED ? 100 : 300); i++) {
    struct haul_message response;
    send_malformed(peer, &random, &message);
    while (haul_message_receive(node, &response, HAUL_NO_WAIT) == 0)
      haul_message_release(&response);
  }
  check_pattern(&t.client, "key", 100000, 1);
  put_pattern("other", 100000, 2);
  check_pattern(&t.client, "other", 100000, 2);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
}

/* ---- A malformed store ---- */

enum { FALSE_BUCKETS = 4, FALSE_UNITS = 4 };

static void fill_false_slot(struct slot *slot, uint64_t *random, uint64_t end) {
  static const char key[] = "key";
  const uint64_t offsets[] = {0,   HEADER_BYTES,      end - UNIT,
                              end, UINT64_MAX - 4095, next_random(random)};
  const uint64_t lengths[] = {
      0, 1, UNIT, UNIT + 1, end, UINT64_MAX, UINT64_MAX - end, next_random(random)};
  memset(slot, 0, sizeof *slot);
  atomic_store(&slot->sequence, 2 * (next_random(random) % 3));
  slot->offset = offsets[next_random(random) % COUNT(offsets)];
  slot->length = lengths[next_random(random) % COUNT(lengths)];
  slot->key_length = next_random(random) % 8 ? 3 : (uint32_t)next_random(random);
  slot->priority = next_random(random) % 8 ? 0 : (int32_t)next_random(random);
  memcpy(slot->key, key, 3);
  slot->check = slot_check(slot);
}

static void ignore_entry(void *user, const struct haul_cache_entry *entry) {
  assert_true(entry->key_length <= HAUL_CACHE_KEY_MAX);
  assert_true(entry->length <= *(const uint64_t *)user);
}

/* Well-formed slots with absurd numbers: the client believes none, and never writes beyond the room
 * of an item. */
static void a_malformed_store_harms_no_client(void **state) {
  (void)state;
  struct haul_node_config config = patient_config();
  const struct haul_place host = {HAUL_HOST, 0};
  uint64_t random = test_seed() | 1, room = 2 * UNIT;
  uint64_t data = bucket_offset(FALSE_BUCKETS), end = data + FALSE_UNITS * UNIT;
  haul_node *node;
  haul_region *region;
  assert_works(haul_node_open(&config, &node));
  assert_works(haul_region_alloc(node, host, end, 0, &region));
  struct header *header = haul_region_address(region);
  cache_expect_races(header, end);
  memset(header, 0, end);
  header->buckets = FALSE_BUCKETS;
  header->units = FALSE_UNITS;
  header->data = data;
  header->check = header_check(header);
  atomic_store(&header->magic, STORE_MAGIC);
  assert_works(haul_region_publish(region, REGION_NAME, HAUL_READ));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, t.stores[0].address, sizeof t.stores[0].address));
  cache_client_begin(&t.client, t.stores, 1, 1, t.only, REGION);
  struct slot *slots = (struct slot *)((uint8_t *)header + bucket_offset(0));
  for (int round = 0; round < 300; round++) {
    for (int i = 0; i < FALSE_BUCKETS * BUCKET_SLOTS; i++)
      fill_false_slot(&slots[i], &random, end);
    uint64_t length = room;
    t.client.bytes[room] = 77;
    int code = cache_get(&t.client, "key", 0, &length);
    assert_true(code == 0 || code == HAUL_ENAME || code == HAUL_EBUSY || code == HAUL_ERANGE);
    assert_true(code != 0 || length <= room);
    assert_int_equal(t.client.bytes[room], 77);
    uint64_t most = FALSE_UNITS * UNIT;
    assert_works(haul_cache_list(t.client.cache, 0, haul_deadline_in(20 * S), ignore_entry, &most));
  }
  header->units = UNITS_MAX; /* a client that connects now */
  header->check = header_check(header);
  cache_client_end(&t.client);
  cache_client_begin(&t.client, t.stores, 1, 1, t.only, REGION);
  assert_fails(HAUL_EPROTO, get_code("key"));
  cache_client_end(&t.client);
  haul_region_release(region);
  haul_node_close(node);
}

static void a_listing_has_all_keys_each(void *user, const struct haul_cache_entry *entry) {
  unsigned *seen = user;
  assert_int_equal(entry->length, 100 + (uint64_t)(entry->key[0] - 'a'));
  assert_int_equal(entry->priority, HAUL_PRIORITY_NORMAL);
  *seen |= 1u << (entry->key[0] - 'a');
}

static void a_listing_has_all_keys(void **state) {
  (void)state;
  unsigned seen = 0;
  start(1, 1, 4 * MIB);
  put_pattern("a", 100, 1);
  put_pattern("b", 101, 1);
  put_pattern("c", 102, 1);
  assert_works(haul_cache_list(t.client.cache, 0, haul_deadline_in(20 * S),
                               a_listing_has_all_keys_each, &seen));
  assert_int_equal(seen, 7);
  assert_fails(HAUL_ERANGE, haul_cache_list(t.client.cache, 1, haul_deadline_in(20 * S),
                                            a_listing_has_all_keys_each, &seen));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], CACHE_STORE_MODE) == 0)
    return cache_store_main();
  const struct CMUnitTest tests[] = {
      BOTH(an_absent_key_is_named),
      BOTH(a_block_is_read_as_it_was_put),
      BOTH(keys_have_any_bytes),
      BOTH(one_call_takes_many_keys),
      BOTH(a_replaced_block_is_found_by_all_clients),
      BOTH(a_room_that_is_too_short_is_refused),
      BOTH(wrong_arguments_are_refused),
      TCP(members_are_checked),
      BOTH(a_passed_deadline_ends_a_call_at_once),
      BOTH(one_of_two_puts_if_absent_wins),
      BOTH(the_capacity_is_obeyed),
      BOTH(a_pinned_block_stays_until_its_lease_ends),
      BOTH(half_of_the_capacity_can_be_pinned),
      BOTH(a_killed_store_finds_its_blocks_again),
      TCP(another_file_is_no_store),
      TCP(a_foreign_file_is_left_as_it_was),
      TCP(the_holes_of_a_copied_file_are_filled),
      BOTH(a_key_that_keeps_changing_is_not_absent),
      BOTH(a_put_that_timed_out_stores_no_later_bytes),
      BOTH(a_dead_store_loses_what_it_alone_had),
      TCP(a_node_without_its_store_is_away),
      BOTH(a_replicated_block_outlives_a_store),
      BOTH(a_replica_that_has_no_room_drops_the_older_block),
      BOTH(a_replica_that_comes_too_late_drops_the_older_block),
      BOTH(a_store_that_may_have_the_key_is_named),
      TCP(a_hanging_store_is_bypassed),
      TCP(a_short_deadline_blames_no_store),
      BOTH(a_repair_copies_what_a_lost_store_had),
      BOTH(a_repair_fills_an_empty_store),
      BOTH(a_repair_brings_near_what_no_get_finds),
      BOTH(a_repair_spreads_the_newest_block),
      BOTH(a_repair_evicts_nothing),
      BOTH(a_repair_copies_no_damaged_block),
      BOTH(a_repair_counts_a_key_that_keeps_changing),
      BOTH(a_passed_deadline_blames_no_store),
      TCP(a_repair_passes_a_hanging_store),
      BOTH(a_repair_without_stores_fails),
      BOTH(readers_see_one_put_or_another),
      BOTH(readers_of_large_blocks_see_one_put_or_another),
      BOTH(threads_share_a_client),
      BOTH(evicted_blocks_move_to_the_file),
      BOTH(a_key_is_in_one_tier),
      BOTH(a_restart_finds_both_tiers),
      TCP(a_file_tier_outlives_the_memory),
      BOTH(a_repair_copies_from_files),
      BOTH(a_repair_fills_a_file_tier),
      BOTH(a_failed_tier_fails_the_other),
      BOTH(no_key_is_absent_while_blocks_move),
      BOTH(a_malformed_client_harms_nobody),
      BOTH(a_malformed_store_harms_no_client),
      BOTH(a_listing_has_all_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
