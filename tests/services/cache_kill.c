/* SPDX-License-Identifier: MIT
 * Stores that are killed at random moments, in the midst of puts, and started again: no reader ever
 * gets wrong bytes, and no block that had two replicas is lost. One store is away at a time. In the
 * second test each loses its file, too, and a repair is complete before the next one does. At the
 * end the stores are idle, and sleep.
 *
 *   cache_kill [OPERATIONS [NAMESPACE ADDRESS]...]
 *
 * The stores run in these network namespaces, and listen there. */
#include "support/check.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "services/rig/cache.h"
#include "support/owner.h"

#define STORES   4
#define WORKERS  3
#define KEYS     600 /* with one content each */
#define CHANGING 20  /* with another content at each put */
#define BLOCK    ((uint64_t)40 << 10)
#define CAPACITY ((uint64_t)64 << 20)
#define REGION   (4 * BLOCK)
#define PAUSE_US 50000 /* at most, between two kills */
#define BOUND    (20 * S)

/* Of a store in a second without requests, with a client whose liveness is checked. One that polls
 * every millisecond wakes up a thousand times. */
#define IDLE_WAKES 100
#define IDLE_TICKS 10 /* of 100 in a second of processor time */

static struct {
  char **hosts; /* NAMESPACE and ADDRESS of each store; NULL: this one's, without */
  struct cache_store stores[STORES];
  unsigned operations; /* of each worker */
  unsigned copies;     /* by repairs */
  bool loses;          /* killed stores lose their files */
  atomic_uint kills;   /* twice their number, and odd while a store is being killed */
  atomic_uint working, done, failures;
  atomic_bool replicated[KEYS];
} t = {.operations = SANITIZED ? 700 : 2500};

static uint64_t length_of(uint64_t key) {
  uint64_t state = key + 1;
  next_random(&state);
  return 1 + next_random(&state) % BLOCK;
}

static void name_of(uint64_t key, bool changing, char name[32]) {
  snprintf(name, 32, "%s-%d", changing ? "changing" : "key", (int)key);
}

/* Whether no store was killed since `kills` was read: one may have lost the first replica before
 * the second was stored. */
static bool is_quiet(unsigned kills) {
  return kills % 2 == 0 && atomic_load(&t.kills) == kills;
}

static void put_key(struct cache_client *client, uint64_t key) {
  char name[32];
  struct haul_cache_item item = {.key = name, .length = length_of(key)};
  name_of(key, false, name);
  item.key_length = strlen(name);
  pattern_fill(client->bytes, item.length, key);
  unsigned kills = atomic_load(&t.kills);
  int code = haul_cache_put(client->cache, client->region, &item, 1, 0, HAUL_PRIORITY_NORMAL,
                            haul_deadline_in(BOUND));
  if (code)
    atomic_fetch_add(&t.failures, 1);
  else if (item.replicas == 2 && (!t.loses || is_quiet(kills)))
    atomic_store(&t.replicated[key], true);
}

/* All words of a changing block are the same, and tell key and length. */
static void put_changing(struct cache_client *client, uint64_t key, uint64_t *random) {
  char name[32];
  uint64_t *words = (uint64_t *)client->bytes;
  uint64_t count = 1 + next_random(random) % (BLOCK / 8);
  uint64_t value = next_random(random) << 24 | count << 8 | key;
  name_of(key, true, name);
  for (uint64_t i = 0; i < count; i++)
    words[i] = value;
  if (cache_put(client, name, 0, count * 8, 0))
    atomic_fetch_add(&t.failures, 1);
}

static int get_key(struct cache_client *client, uint64_t key) {
  char name[32];
  uint64_t length = BLOCK;
  name_of(key, false, name);
  int code = cache_get(client, name, BLOCK, &length);
  if (code)
    return code;
  if (length != length_of(key))
    abort();
  pattern_check(client->bytes + BLOCK, length, key);
  return 0;
}

static void get_changing(struct cache_client *client, uint64_t key) {
  char name[32];
  const uint64_t *words = (const uint64_t *)(client->bytes + BLOCK);
  uint64_t length = BLOCK;
  name_of(key, true, name);
  if (cache_get(client, name, BLOCK, &length))
    return;
  if ((words[0] & 255) != key || (words[0] >> 8 & 0xffff) != length / 8)
    abort();
  for (uint64_t i = 0; i < length / 8; i++)
    if (words[i] != words[0])
      abort();
}

struct worker {
  struct cache_client client;
  uint64_t random;
  pthread_t thread;
};

static void *work(void *argument) {
  struct worker *worker = argument;
  struct cache_client *client = &worker->client;
  for (unsigned i = 0; i < t.operations; i++) {
    uint64_t what = next_random(&worker->random) % 8, key = next_random(&worker->random);
    if (what < 3)
      put_key(client, key % KEYS);
    else if (what < 4)
      put_changing(client, key % CHANGING, &worker->random);
    else if (what < 7)
      get_key(client, key % KEYS);
    else
      get_changing(client, key % CHANGING);
    atomic_fetch_add(&t.done, 1);
  }
  atomic_fetch_sub(&t.working, 1);
  return NULL;
}

/* How often the threads of a process have gone to sleep. */
static unsigned long wakes_of(pid_t pid) {
  char path[300], line[128];
  unsigned long sum = 0, count;
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *tasks = opendir(path);
  assert_non_null(tasks);
  for (struct dirent *task; (task = readdir(tasks));) {
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", (int)pid, task->d_name);
    FILE *file = *task->d_name == '.' ? NULL : fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
      if (sscanf(line, "voluntary_ctxt_switches: %lu", &count) == 1)
        sum += count;
    if (file)
      fclose(file);
  }
  closedir(tasks);
  return sum;
}

/* Processor time of a process, in 1/100 s. */
static unsigned long ticks_of(pid_t pid) {
  char path[64];
  unsigned long user = 0, system = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "re");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                          &user, &system),
                   2);
  fclose(file);
  return (user + system) * 100 / (unsigned long)sysconf(_SC_CLK_TCK);
}

static void check_idle(void) {
  unsigned long wakes[STORES], ticks[STORES];
  sleep(1); /* what the last requests left to do ends */
  for (int i = 0; i < STORES; i++) {
    wakes[i] = wakes_of(t.stores[i].pid);
    ticks[i] = ticks_of(t.stores[i].pid);
  }
  sleep(1);
  for (int i = 0; i < STORES; i++) {
    wakes[i] = wakes_of(t.stores[i].pid) - wakes[i];
    ticks[i] = ticks_of(t.stores[i].pid) - ticks[i];
    print_message("an idle store: %lu wake-ups and %lu ms of processor time in a second\n",
                  wakes[i], ticks[i] * 10);
    assert_true(wakes[i] <= IDLE_WAKES);
    assert_true(ticks[i] <= IDLE_TICKS);
  }
}

static void check_all(void) {
  struct cache_client client;
  unsigned checked = 0;
  cache_client_begin(&client, t.stores, STORES, 2, NULL, REGION);
  for (unsigned m = 0; m < STORES; m++) {
    struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
    assert_works(haul_cache_stat(client.cache, m, haul_deadline_in(BOUND), &stats));
    assert_int_equal(stats.memory.evictions, 0);
  }
  for (uint64_t key = 0; key < KEYS; key++)
    if (atomic_load(&t.replicated[key])) {
      assert_works(get_key(&client, key));
      checked++;
    }
  assert_true(checked > 0);
  print_message("%u replicated blocks are there\n", checked);
  check_idle();
  cache_client_end(&client);
}

/* The store with the file that it had. */
static void restart(struct cache_store *store, struct cache_client *client) {
  (void)client;
  cache_store_again(store);
}

/* An empty store, and copies of what the others have until all is there twice. */
static void replace(struct cache_store *store, struct cache_client *client) {
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  char address[sizeof store->address], network[sizeof store->network];
  memcpy(address, store->address, sizeof address);
  memcpy(network, store->network, sizeof network);
  cache_store_forget(store);
  cache_store_begin_in(store, network, address, CAPACITY);
  do {
    assert_works(haul_cache_repair(client->cache, 0, haul_deadline_in(BOUND), NULL, NULL, &result));
    t.copies += (unsigned)result.copies;
  } while (result.away + result.missing + result.changed > 0);
}

static void kill_stores(void (*start_again)(struct cache_store *store,
                                            struct cache_client *client)) {
  struct cache_client client;
  struct worker workers[WORKERS];
  uint64_t random = test_seed() | 1;
  for (int i = 0; i < STORES; i++)
    if (t.hosts)
      cache_store_begin_in(&t.stores[i], t.hosts[2 * i], t.hosts[2 * i + 1], CAPACITY);
    else
      cache_store_begin(&t.stores[i], NULL, CAPACITY);
  for (int i = 0; i < KEYS; i++)
    atomic_store(&t.replicated[i], false);
  atomic_store(&t.done, 0);
  atomic_store(&t.failures, 0);
  atomic_store(&t.kills, 0);
  atomic_store(&t.working, WORKERS);
  cache_client_begin(&client, t.stores, STORES, 2, NULL, REGION);
  for (int i = 0; i < WORKERS; i++) {
    cache_client_begin(&workers[i].client, t.stores, STORES, 2, NULL, REGION);
    workers[i].random = next_random(&random) | 1;
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  }
  while (atomic_load(&t.working) > 0) {
    usleep((useconds_t)(next_random(&random) % PAUSE_US));
    struct cache_store *store = &t.stores[next_random(&random) % STORES];
    atomic_fetch_add(&t.kills, 1);
    cache_store_kill(store);
    atomic_fetch_add(&t.kills, 1);
    usleep((useconds_t)(next_random(&random) % PAUSE_US));
    start_again(store, &client);
  }
  for (int i = 0; i < WORKERS; i++) {
    pthread_join(workers[i].thread, NULL);
    cache_client_end(&workers[i].client);
  }
  cache_client_end(&client);
  print_message("%u operations, %u kills, %u puts failed, %u blocks copied\n", atomic_load(&t.done),
                atomic_load(&t.kills) / 2, atomic_load(&t.failures), t.copies);
  assert_true(atomic_load(&t.kills) > 0);
  check_all();
}

static void killed_stores_lose_no_replicated_block(void **state) {
  (void)state;
  kill_stores(restart);
}

static void lost_stores_are_repaired(void **state) {
  (void)state;
  t.loses = true;
  kill_stores(replace);
  assert_true(t.copies > 0);
}

static int tear_down(void **state) {
  (void)state;
  for (int i = 0; i < STORES; i++) {
    if (t.stores[i].pid)
      assert_int_equal(cache_store_end(&t.stores[i]), 0);
    if (*t.stores[i].path)
      cache_store_forget(&t.stores[i]);
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], CACHE_STORE_MODE) == 0)
    return cache_store_main();
  if (argc > 1)
    t.operations = (unsigned)strtoul(argv[1], NULL, 10) / WORKERS;
  if (argc == 2 + 2 * STORES)
    t.hosts = argv + 2;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(killed_stores_lose_no_replicated_block, tear_down),
      cmocka_unit_test_teardown(lost_stores_are_repaired, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
