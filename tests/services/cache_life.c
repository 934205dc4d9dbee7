/* SPDX-License-Identifier: MIT
 * What a store and a client leave: to children of fork, and after a failed open. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "services/rig/cache.h"
#include "support/child.h"
#include "support/owner.h"

#define MIB     ((uint64_t)1 << 20)
#define PATIENT haul_deadline_in(60 * S)

static struct cache_here t;

static int set_up(void **state) {
  (void)state;
  cache_here_begin(&t, MIB, NULL);
  assert_works(cache_put(&t.client, "key", 0, 100, 0)); /* a session waits for more */
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  cache_here_end(&t);
  return 0;
}

static void expect_fork(int code, int number) {
  if (code != HAUL_EFORK || haul_error_last()->code != HAUL_EFORK)
    _exit(number);
}

static void call_all(void *unused) {
  struct haul_cache_item item = {.key = "key", .key_length = 3, .length = 100};
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  haul_cache *cache = t.client.cache;
  haul_region *region = t.client.region;
  const char *member = "unix://@nobody";
  struct haul_cache_config config = HAUL_CACHE_INIT;
  struct haul_cache_store_config store = HAUL_CACHE_STORE_INIT;
  haul_cache *again;
  config.members = &member;
  config.member_count = 1;
  store.path = t.seen.path;
  (void)unused;
  alarm(60);
  expect_fork(haul_cache_open(t.client.node, &config, PATIENT, &again), 8);
  expect_fork(haul_cache_store_open(t.node, &store, &t.store), 9);
  expect_fork(haul_cache_store_stats(t.store, &stats), 10);
  expect_fork(haul_cache_attach(cache, region), 11);
  expect_fork(haul_cache_detach(cache, region), 12);
  expect_fork(haul_cache_put(cache, region, &item, 1, 0, 0, PATIENT), 13);
  expect_fork(haul_cache_get(cache, region, &item, 1, PATIENT), 14);
  expect_fork(haul_cache_exists(cache, &item, 1, PATIENT), 15);
  expect_fork(haul_cache_remove(cache, &item, 1, PATIENT), 16);
  expect_fork(haul_cache_pin(cache, &item, 1, 1, PATIENT), 17);
  expect_fork(haul_cache_stat(cache, 0, PATIENT, &stats), 18);
  expect_fork(haul_cache_repair(cache, 0, PATIENT, NULL, NULL, &result), 19);
}

static void a_child_has_no_store_and_no_client(void **state) {
  (void)state;
  assert_int_equal(child_run(call_all, NULL), 0);
  assert_works(cache_put(&t.client, "key", 0, 200, 0));
}

static void release_all(void *unused) {
  (void)unused;
  alarm(60);
  haul_cache_close(t.client.cache);
  haul_region_release(t.client.region);
  haul_node_close(t.client.node);
  haul_cache_store_close(t.store);
  haul_node_close(t.node);
}

static void releases_in_a_child_leave_the_parent_alone(void **state) {
  (void)state;
  assert_int_equal(child_run(release_all, NULL), 0);
  uint64_t length = MIB;
  assert_works(cache_put(&t.client, "key", 0, 200, 0));
  assert_works(cache_get(&t.client, "key", 0, &length));
  assert_int_equal(length, 200);
}

static void a_failed_open_leaves_no_new_file(void **state) {
  (void)state;
  struct haul_node_config node_config = patient_config();
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  haul_cache_store *store;
  haul_node *node;
  char path[128], file[160];
  cache_path(path);
  snprintf(file, sizeof file, "%s.file", path);
  config.path = path;
  config.capacity = MIB;
  config.file_path = t.seen.path; /* another store has it */
  assert_works(haul_node_open(&node_config, &node));
  assert_fails(HAUL_EBUSY, haul_cache_store_open(node, &config, &store));
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(access(t.seen.path, F_OK), 0);
  config.file_path = file; /* new, without a capacity */
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(access(file, F_OK), -1);
  config.file_path = NULL;
  assert_works(haul_cache_store_open(node, &config, &store));
  haul_cache_store_close(store);
  config.file_path = file;
  assert_fails(HAUL_EINVAL, haul_cache_store_open(node, &config, &store));
  assert_int_equal(access(path, F_OK), 0); /* it was there before */
  unlink(path);
  haul_node_close(node);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      {"a child has no store and no client", a_child_has_no_store_and_no_client, set_up, tear_down,
       NULL},
      {"releases in a child leave the parent alone", releases_in_a_child_leave_the_parent_alone,
       set_up, tear_down, NULL},
      {"a failed open leaves no new file", a_failed_open_leaves_no_new_file, set_up, tear_down,
       NULL},
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
