/* SPDX-License-Identifier: MIT
 * A client follows the stores in its directory, an etcd process of the test. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "services/rig/cache.h"
#include "support/child.h"
#include "support/etcd.h"
#include "support/owner.h"

#define KIB    ((uint64_t)1 << 10)
#define MIB    ((uint64_t)1 << 20)
#define STORES 3
#define KEYS   60
#define BOUND  (30 * S)

static struct {
  struct etcd etcd;
  struct cache_store stores[STORES];
  struct cache_client client;
} t;

static int set_up(void **state) {
  (void)state;
  memset(&t, 0, sizeof t);
  etcd_start(&t.etcd);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  if (t.client.cache)
    cache_client_end(&t.client);
  for (int i = 0; i < STORES; i++) {
    if (t.stores[i].pid)
      cache_store_end(&t.stores[i]);
    if (*t.stores[i].path)
      cache_store_forget(&t.stores[i]);
  }
  if (t.etcd.pid)
    etcd_remove(&t.etcd);
  return 0;
}

static void start_store(int i) {
  const char name[] = {(char)('a' + i), 0};
  cache_store_begin_named(&t.stores[i], t.etcd.directory, name, 4 * MIB);
}

static void start_client(unsigned replicas) {
  cache_client_begin(&t.client, t.stores, STORES, replicas, NULL, MIB);
}

static void put_keys(void) {
  for (uint64_t i = 0; i < KEYS; i++) {
    char key[16];
    snprintf(key, sizeof key, "key%d", (int)i);
    pattern_fill(t.client.bytes, 5000 + i, i);
    assert_works(cache_put(&t.client, key, 0, 5000 + i, 0));
  }
}

static void check_keys(void) {
  for (uint64_t i = 0; i < KEYS; i++) {
    char key[16];
    uint64_t length = 10000;
    snprintf(key, sizeof key, "key%d", (int)i);
    assert_works(cache_get(&t.client, key, 20000, &length));
    assert_int_equal(length, 5000 + i);
    pattern_check(t.client.bytes + 20000, length, i);
  }
}

static int stat_of(unsigned member, struct haul_cache_stats *stats) {
  return haul_cache_stat(t.client.cache, member, haul_deadline_in(BOUND), stats);
}

static void await_member(unsigned member) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  haul_deadline until = haul_deadline_in(BOUND);
  while (!haul_cache_member(t.client.cache, member) || stat_of(member, &stats)) {
    assert_true(haul_deadline_in(0) < until);
    usleep(20000);
  }
}

static void await_departure(unsigned member) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  haul_deadline until = haul_deadline_in(BOUND);
  while (stat_of(member, &stats) == 0 ||
         !strstr(haul_error_last()->text, "entry in the directory is gone")) {
    assert_true(haul_deadline_in(0) < until);
    usleep(20000);
  }
}

static void a_new_store_is_used(void **state) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  (void)state;
  start_store(0);
  start_client(1);
  assert_null(haul_cache_member(t.client.cache, 1));
  put_keys();
  start_store(1);
  await_member(1);
  assert_int_equal(
      strncmp(haul_cache_member(t.client.cache, 1), t.etcd.directory, strlen(t.etcd.directory)), 0);
  check_keys(); /* the second store of a key is asked, too */
  put_keys();
  assert_works(stat_of(1, &stats));
  assert_true(stats.memory.blocks > 0 && stats.memory.blocks < KEYS);
  check_keys();
}

static void a_store_that_left_is_not_tried_until_it_returns(void **state) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  (void)state;
  start_store(0);
  start_store(1);
  start_client(2);
  await_member(1);
  put_keys();
  cache_store_kill(&t.stores[1]);
  unsigned lost =
      strcmp(haul_cache_member(t.client.cache, 0) + strlen(t.etcd.directory), "/b") == 0 ? 0 : 1;
  await_departure(lost);
  check_keys();
  cache_store_again(&t.stores[1]);
  await_member(lost);
  assert_null(haul_cache_member(t.client.cache, 2)); /* it has its number again */
  assert_works(stat_of(lost, &stats));
  assert_int_equal(stats.memory.blocks, KEYS);
}

static void a_client_outlives_its_directory(void **state) {
  (void)state;
  start_store(0);
  start_client(1);
  put_keys();
  etcd_kill(&t.etcd);
  usleep(100000);
  check_keys();
  etcd_start_again(&t.etcd, false);
  start_store(1);
  await_member(1);
  check_keys();
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], CACHE_STORE_MODE) == 0)
    return cache_store_main();
  if (!etcd_is_installed()) {
    printf("skipped cache_members: there is no etcd here: tools/deps\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      TEST(a_new_store_is_used),
      TEST(a_store_that_left_is_not_tried_until_it_returns),
      TEST(a_client_outlives_its_directory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
