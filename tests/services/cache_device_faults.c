/* SPDX-License-Identifier: MIT
 * A tier in the memory of a device that is missing, malformed, or changes while others read. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/index.h"
#include "services/rig/cache_case.h"
#include "support/owner.h"

#define KIB    ((uint64_t)1 << 10)
#define MIB    ((uint64_t)1 << 20)
#define REGION (4 * MIB)
#define BOUND  haul_deadline_in(60 * S)

/* ---- Stores that do not open ---- */

static struct haul_cache_store_config config_of(char path[128]) {
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  cache_path(path);
  config.path = path;
  config.capacity = MIB;
  config.device = device_place();
  config.device_capacity = MIB;
  return config;
}

static void a_device_that_does_not_exist_is_told(void **state) {
  (void)state;
  struct haul_node_config node_config = patient_config();
  char path[128];
  struct haul_cache_store_config config = config_of(path);
  haul_cache_store *store;
  haul_node *node;
  assert_works(haul_node_open(&node_config, &node));
  config.device = (struct haul_place){HAUL_SIM, 999};
  assert_fails(HAUL_EPLACE, haul_cache_store_open(node, &config, &store));
  assert_string_equal(haul_error_last()->object, "sim:999");
  config.device = (struct haul_place){77, 0};
  assert_fails(HAUL_EPLACE, haul_cache_store_open(node, &config, &store));
  config.device = (struct haul_place){HAUL_HOST, 0};
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_string_equal(haul_error_last()->object, "host");
  config.device = device_place();
  config.device_capacity = 0;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_non_null(strstr(haul_error_last()->text, "capacity"));
  config.device_capacity = UINT64_MAX;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  config.device_capacity = MIB;
  config.device = (struct haul_place){0, 0};
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_string_equal(haul_error_last()->object, "device_capacity");
  config.device = device_place();
  assert_works(haul_cache_store_open(node, &config, &store)); /* nothing of these is left */
  haul_cache_store_close(store);
  unlink(path);
  haul_node_close(node);
}

/* ---- A malformed store, of this process ---- */

enum { FALSE_BUCKETS = 4, FALSE_UNITS = 4 };

static struct {
  haul_node *node;
  haul_region *memory, *slots, *blocks;
} false_store;

static haul_region *make_region(struct haul_place place, uint64_t length) {
  haul_region *region;
  assert_works(haul_region_alloc(false_store.node, place, length, 0, &region));
  if (place.kind == HAUL_HOST) {
    cache_expect_races(haul_region_address(region), length);
    memset(haul_region_address(region), 0, length);
  }
  return region;
}

static struct slot *slots_of(void *region) {
  return (struct slot *)((uint8_t *)region + bucket_offset(0));
}

static struct header *fill_header(haul_region *region, uint64_t data) {
  struct header *header = haul_region_address(region);
  header->buckets = FALSE_BUCKETS;
  header->units = FALSE_UNITS;
  header->data = data;
  header->check = header_check(header);
  struct slot *slots = slots_of(header);
  for (int i = 0; i < FALSE_BUCKETS * BUCKET_SLOTS; i++)
    slots[i].check = slot_check(&slots[i]);
  atomic_store(&header->magic, STORE_MAGIC);
  return header;
}

/* A sound one, of which the caller changes what it likes. */
static void begin_false_store(void) {
  struct haul_node_config config = patient_config();
  uint64_t slots = bucket_offset(FALSE_BUCKETS);
  const struct haul_place host = {HAUL_HOST, 0};
  assert_works(haul_node_open(&config, &false_store.node));
  false_store.memory = make_region(host, slots + FALSE_UNITS * UNIT);
  false_store.slots = make_region(host, slots);
  false_store.blocks = make_region(device_place(), FALSE_UNITS * UNIT);
  struct header *header = fill_header(false_store.memory, slots);
  atomic_store(&header->tiers, TIER_BIT(MEMORY_TIER) | TIER_BIT(DEVICE_TIER));
  fill_header(false_store.slots, 0);
  assert_works(haul_region_publish(false_store.blocks, DEVICE_BLOCKS_NAME, HAUL_READ));
  assert_works(haul_region_publish(false_store.slots, DEVICE_REGION_NAME, HAUL_READ));
  assert_works(haul_region_publish(false_store.memory, REGION_NAME, HAUL_READ));
  assert_works(haul_node_listen(false_store.node, "tcp://127.0.0.1:0"));
  assert_works(
      haul_node_address(false_store.node, 0, t.stores[0].address, sizeof t.stores[0].address));
}

static void end_false_store(void) {
  haul_region_release(false_store.memory);
  haul_region_release(false_store.slots);
  haul_region_release(false_store.blocks);
  haul_node_close(false_store.node);
}

/* Of a client that connects now. */
static void check_get(int code) {
  uint64_t length = UNIT;
  cache_client_begin(&t.client, &t.stores[0], 1, 1, t.only, REGION);
  assert_fails(code, cache_get(&t.client, "key", 0, &length));
  cache_client_end(&t.client);
}

static void a_header_that_does_not_fit_is_refused(void **state) {
  (void)state;
  begin_false_store();
  struct header *memory = haul_region_address(false_store.memory);
  struct header *device = haul_region_address(false_store.slots);
  check_get(HAUL_ENAME);
  for (int i = 0; i < 5; i++) {
    const uint64_t units[] = {FALSE_UNITS + 1, FALSE_UNITS - 1, UNITS_MAX, UINT64_MAX / UNIT + 1,
                              FALSE_UNITS};
    device->units = units[i];
    device->data = i == 4 ? UNIT : 0;
    device->check = header_check(device);
    check_get(HAUL_EPROTO);
  }
  device->units = FALSE_UNITS;
  device->data = 0;
  device->buckets = 2 * FALSE_BUCKETS;
  device->check = header_check(device);
  check_get(HAUL_EPROTO);
  device->buckets = FALSE_BUCKETS;
  device->check = header_check(device);
  check_get(HAUL_ENAME);
  atomic_store(&memory->tiers, TIER_BIT(TIERS)); /* of a later version */
  check_get(HAUL_EPROTO);
  atomic_store(&memory->tiers, TIER_BIT(DEVICE_TIER));
  assert_works(haul_region_unpublish(false_store.blocks, DEVICE_BLOCKS_NAME));
  check_get(HAUL_ECONNECT);
  atomic_store(&memory->tiers, 0);
  check_get(HAUL_ENAME);
  end_false_store();
}

static void fill_false_slot(struct slot *slot, uint64_t *random) {
  const uint64_t end = FALSE_UNITS * UNIT;
  const uint64_t offsets[] = {0, end - UNIT, end, UINT64_MAX - 4095, 1, next_random(random)};
  const uint64_t lengths[] = {
      0, 1, UNIT, UNIT + 1, end, end + 1, UINT64_MAX, UINT64_MAX - end, next_random(random)};
  memset(slot, 0, sizeof *slot);
  atomic_store(&slot->sequence, 2 * (next_random(random) % 3));
  slot->offset = offsets[next_random(random) % COUNT(offsets)];
  slot->length = lengths[next_random(random) % COUNT(lengths)];
  slot->key_length = next_random(random) % 8 ? 3 : (uint32_t)next_random(random);
  slot->priority = next_random(random) % 8 ? 0 : (int32_t)next_random(random);
  memcpy(slot->key, "key", 3);
  slot->check = slot_check(slot);
}

static void check_entry(void *user, const struct haul_cache_entry *entry) {
  (void)user;
  assert_true(entry->length <= FALSE_UNITS * UNIT);
  assert_true(entry->key_length <= HAUL_CACHE_KEY_MAX);
}

/* Well-formed slots with absurd numbers: the client believes none, and never writes beyond the room
 * of an item. */
static void malformed_slots_harm_no_client(void **state) {
  (void)state;
  uint64_t random = test_seed() | 1, room = 2 * UNIT;
  unsigned got = 0;
  begin_false_store();
  cache_client_begin(&t.client, &t.stores[0], 1, 1, t.only, REGION);
  struct slot *slots = slots_of(haul_region_address(false_store.slots));
  for (int round = 0; round < 300; round++) {
    for (int i = 0; i < FALSE_BUCKETS * BUCKET_SLOTS; i++)
      fill_false_slot(&slots[i], &random);
    uint64_t length = room;
    t.client.bytes[room] = 77;
    int code = cache_get(&t.client, "key", 0, &length);
    assert_true(code == 0 || code == HAUL_ENAME || code == HAUL_EBUSY || code == HAUL_ERANGE);
    assert_true(code != 0 || length <= room);
    assert_int_equal(t.client.bytes[room], 77);
    got += code == 0;
    assert_works(haul_cache_list(t.client.cache, 0, BOUND, check_entry, NULL));
  }
  assert_true(got > 0);
  cache_client_end(&t.client);
  end_false_store();
}

/* ---- Blocks that move and change ---- */

enum { CHURN_KEYS = 100, CHURN_THREADS = 4 };
#define CHURN_ROUNDS (SANITIZED ? 150 : 600)
#define CHURN_BLOCK  (30 * KIB)

struct churner {
  struct cache_client client;
  uint64_t random, hits;
  bool writes;
  uint64_t keys;
};
static atomic_uint churn_writers; /* that have not ended */

static bool is_of_key(const struct churner *churner, uint64_t length, uint64_t key) {
  const uint64_t *words = (const uint64_t *)churner->client.bytes;
  for (uint64_t i = 0; i < length / 8; i++)
    if (words[i] != words[0])
      return false;
  return words[0] % 256 == key && length == CHURN_BLOCK;
}

static void churn_once(struct churner *churner) {
  char name[16];
  uint64_t key = next_random(&churner->random) % churner->keys, length = CHURN_BLOCK;
  uint64_t *words = (uint64_t *)churner->client.bytes;
  snprintf(name, sizeof name, "churn%d", (int)key);
  if (churner->writes) {
    uint64_t value = next_random(&churner->random) << 8 | key;
    for (uint64_t i = 0; i < CHURN_BLOCK / 8; i++)
      words[i] = value;
    if (cache_put(&churner->client, name, 0, CHURN_BLOCK, 0))
      abort();
    return;
  }
  int code = cache_get(&churner->client, name, 0, &length);
  if (code == HAUL_EBUSY)
    return;
  if (code)
    fprintf(stderr, "%s: %s\n", name, haul_error_last()->text);
  if (code || !is_of_key(churner, length, key))
    abort();
  churner->hits++;
}

static void *churn(void *argument) {
  struct churner *churner = argument;
  if (churner->writes) {
    for (int i = 0; i < CHURN_ROUNDS; i++)
      churn_once(churner);
    atomic_fetch_sub(&churn_writers, 1);
  }
  while (!churner->writes && atomic_load(&churn_writers) > 0)
    churn_once(churner);
  return NULL;
}

/* Two threads put and two get; all keys have been put before, and none is lost. */
static void run_churn(uint64_t keys) {
  struct churner churners[CHURN_THREADS] = {0};
  pthread_t threads[CHURN_THREADS];
  uint64_t hits = 0;
  cache_client_begin(&t.client, &t.stores[0], 1, 1, t.only, REGION);
  for (uint64_t key = 0; key < keys; key++) {
    char name[16];
    snprintf(name, sizeof name, "churn%d", (int)key);
    for (uint64_t i = 0; i < CHURN_BLOCK / 8; i++)
      ((uint64_t *)t.client.bytes)[i] = key;
    assert_works(cache_put(&t.client, name, 0, CHURN_BLOCK, 0));
  }
  atomic_store(&churn_writers, CHURN_THREADS / 2);
  for (uint64_t i = 0; i < CHURN_THREADS; i++) {
    churners[i] = (struct churner){.random = test_seed() + i + 1, .keys = keys, .writes = i % 2};
    cache_client_begin(&churners[i].client, &t.stores[0], 1, 1, t.only, REGION);
    pthread_create(&threads[i], NULL, churn, &churners[i]);
  }
  for (int i = 0; i < CHURN_THREADS; i++) {
    pthread_join(threads[i], NULL);
    hits += churners[i].hits;
    cache_client_end(&churners[i].client);
  }
  assert_true(hits > 0);
  print_message("%d reads of %d puts\n", (int)hits, CHURN_ROUNDS * CHURN_THREADS / 2);
}

static struct haul_cache_stats stats(void) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  assert_works(haul_cache_stat(t.client.cache, 0, BOUND, &stats));
  return stats;
}

/* Room for four blocks in each of the upper tiers. */
static void no_key_is_absent_while_blocks_move(void **state) {
  (void)state;
  cache_store_begin_device(&t.stores[0], cache_case_address(), 128 * KIB, 128 * KIB, 8 * MIB);
  run_churn(CHURN_KEYS);
  struct haul_cache_stats now = stats();
  assert_int_equal(now.device.blocks + now.memory.blocks + now.file.blocks, CHURN_KEYS);
  assert_int_equal(now.file.evictions, 0);
  assert_true(now.file.puts > CHURN_KEYS);
}

/* All in the device, where blocks take each other's room at once. */
static void readers_see_one_put_or_another(void **state) {
  (void)state;
  cache_store_begin_device(&t.stores[0], cache_case_address(), 192 * KIB, MIB, 0);
  run_churn(3);
  assert_int_equal(stats().device.blocks, 3);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], CACHE_STORE_MODE) == 0)
    return cache_store_main();
  const struct CMUnitTest tests[] = {
      TCP(a_device_that_does_not_exist_is_told), BOTH(a_header_that_does_not_fit_is_refused),
      BOTH(malformed_slots_harm_no_client),      BOTH(no_key_is_absent_while_blocks_move),
      BOTH(readers_see_one_put_or_another),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
