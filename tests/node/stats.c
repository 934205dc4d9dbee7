/* SPDX-License-Identifier: MIT
 * What a node says that it is doing, to this process and to peers, and to whom it says it. */
#include "support/check.h"

#include <haul/access.h>
#include <haul/stats.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/owner.h"
#include "support/tree.h"

#define BOUND  (20 * S)
#define LENGTH ((size_t)100000)
#define MANY   40 /* more than two pages */

static char folder[64];
static struct haul_node *server, *client;
static haul_peer *peer;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static struct haul_node *named(const char *name, const char *key, int any_observer) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_node *node;
  config.name = name;
  config.key = key;
  config.any_observer = any_observer;
  assert_works(haul_node_open(&config, &node));
  return node;
}

static const char *listening(const char *address) {
  static char found[160];
  assert_works(haul_node_listen(server, address));
  assert_works(haul_node_address(server, 0, found, sizeof found));
  return found;
}

static void connect_to(const char *address) {
  assert_works(haul_peer_connect(client, address, soon(), &peer));
}

static int close_nodes(void **state) {
  (void)state;
  haul_peer_close(peer);
  haul_node_close(client);
  haul_node_close(server);
  peer = NULL;
  client = server = NULL;
  return 0;
}

static const struct haul_path_stats *path_of(const struct haul_path_stats *paths,
                                             const char *name) {
  for (int i = 0; i < HAUL_STATS_PATHS; i++)
    if (strcmp(paths[i].path, name) == 0)
      return &paths[i];
  fail_msg("there is no path %s", name);
  return NULL;
}

/* A write and a read of the server's region over the path. */
static void move(haul_region *target, const char *path) {
  haul_remote *remote;
  haul_transfer *transfer;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, LENGTH}, half = {0, 0, LENGTH / 2};
  haul_region *local = region_make(client, KIND_PRIVATE, LENGTH);
  options.only = path;
  assert_works(haul_region_publish(target, "target", HAUL_READ | HAUL_WRITE));
  assert_works(haul_peer_lookup(peer, "target", soon(), &remote));
  assert_works(haul_write(remote, local, &piece, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  assert_works(haul_read(local, remote, &half, 1, &options, &transfer));
  assert_works(haul_transfer_wait(transfer, soon()));
  haul_transfer_release(transfer);
  haul_remote_release(remote);
  region_drop(local, KIND_PRIVATE);
}

static void both_sides_count_the_bytes_over(const char *name) {
  struct haul_node_stats stats;
  struct haul_peer_stats one;
  size_t count = 1;
  server = named("server", NULL, 0);
  client = named("client", NULL, 0);
  connect_to(listening("tcp://127.0.0.1:0"));
  haul_region *target = region_make(server, KIND_HOST, LENGTH);
  move(target, name);
  assert_works(haul_node_stats(client, &stats, &one, &count));
  assert_int_equal(count, 1);
  assert_string_equal(stats.name, "client");
  assert_string_equal(one.name, "server");
  assert_int_equal(one.initiator, 1);
  assert_int_equal(one.same_host, 1);
  const struct haul_path_stats *path = path_of(one.paths, name);
  assert_int_equal(path->open, 1);
  assert_int_equal(path->bytes_out, LENGTH);
  assert_int_equal(path->bytes_in, LENGTH / 2);
  assert_int_equal(path_of(stats.paths, name)->bytes_out, LENGTH);
  count = 1;
  assert_works(haul_peer_stats_of(peer, soon(), &stats, &one, &count));
  assert_int_equal(count, 1);
  assert_string_equal(stats.name, "server");
  assert_int_equal(stats.published, 1);
  assert_true(stats.uptime_ns > 0 && stats.uptime_ns < (uint64_t)(3600 * S));
  assert_string_equal(one.name, "client");
  assert_int_equal(one.initiator, 0);
  path = path_of(one.paths, name);
  assert_int_equal(path->served_in, LENGTH);
  assert_int_equal(path->served_out, LENGTH / 2);
  assert_true(path->served >= 2);
  region_drop(target, KIND_HOST);
}

static void both_sides_count_the_bytes(void **state) {
  (void)state;
  both_sides_count_the_bytes_over("tcp");
}

/* The server takes no part in copies over map: it reads counters of the client. */
static void both_sides_count_mapped_bytes(void **state) {
  (void)state;
  both_sides_count_the_bytes_over("map");
}

static void ended_peers_stay_in_the_sums_of(const char *path) {
  struct haul_node_stats stats;
  size_t count = 0;
  server = named("server", NULL, 0);
  client = named("client", NULL, 0);
  connect_to(listening("tcp://127.0.0.1:0"));
  haul_region *target = region_make(server, KIND_HOST, LENGTH);
  move(target, path);
  haul_peer_close(peer);
  peer = NULL;
  for (int i = 0; i < 400; i++) {
    count = 0;
    assert_works(haul_node_stats(server, &stats, NULL, &count));
    if (count == 0)
      break;
    usleep(20000);
  }
  assert_int_equal(count, 0);
  assert_int_equal(stats.peers, 0);
  assert_int_equal(path_of(stats.paths, path)->served_in, LENGTH);
  region_drop(target, KIND_HOST);
}

static void ended_peers_stay_in_the_sums(void **state) {
  (void)state;
  ended_peers_stay_in_the_sums_of("tcp");
}

static void ended_peers_stay_in_the_sums_of_map(void **state) {
  (void)state;
  ended_peers_stay_in_the_sums_of("map");
}

static void many_peers_are_reported_page_by_page(void **state) {
  static haul_peer *peers[MANY];
  static struct haul_peer_stats all[MANY + 8];
  struct haul_node_stats stats;
  size_t count = MANY + 8;
  (void)state;
  server = named("server", NULL, 0);
  client = named("client", NULL, 0);
  const char *address = listening("tcp://127.0.0.1:0");
  connect_to(address);
  for (int i = 0; i < MANY - 1; i++)
    assert_works(haul_peer_connect(client, address, soon(), &peers[i]));
  assert_works(haul_peer_stats_of(peer, soon(), &stats, all, &count));
  assert_int_equal(count, MANY);
  assert_int_equal(stats.peers, MANY);
  for (size_t i = 1; i < count; i++)
    assert_true(all[i].number > all[i - 1].number);
  count = 20; /* too few */
  assert_works(haul_peer_stats_of(peer, soon(), &stats, all, &count));
  assert_int_equal(count, MANY);
  count = 0;
  assert_works(haul_peer_stats_of(peer, soon(), &stats, NULL, &count));
  assert_int_equal(count, MANY);
  for (int i = 0; i < MANY - 1; i++)
    haul_peer_close(peers[i]);
}

static int ask(void) {
  struct haul_node_stats stats;
  struct haul_peer_stats one;
  size_t count = 1;
  return haul_peer_stats_of(peer, soon(), &stats, &one, &count);
}

static const char *key(void) {
  static char path[160];
  if (!folder[0]) {
    snprintf(folder, sizeof folder, "/tmp/haul-stats-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/key", folder);
    assert_works(haul_key_new(path, "alice"));
  }
  return path;
}

static void with_a_key_only_observers_get_statistics(void **state) {
  (void)state;
  server = named("server", key(), 0);
  client = named("client", key(), 0);
  connect_to(listening("tcp://127.0.0.1:0"));
  assert_fails(HAUL_EACCESS, ask());
}

static void unless_that_is_set(void **state) {
  (void)state;
  server = named("server", key(), 1);
  client = named("client", key(), 0);
  connect_to(listening("tcp://127.0.0.1:0"));
  assert_works(ask());
}

static void its_own_user_may_observe_over_a_unix_socket(void **state) {
  (void)state;
  char address[64];
  snprintf(address, sizeof address, "unix://@haul-stats-%d", (int)getpid());
  server = named("server", key(), 0);
  client = named("client", NULL, 0);
  connect_to(listening(address));
  assert_works(ask());
}

static void wrong_arguments(void **state) {
  struct haul_node_stats stats;
  size_t count = 1;
  (void)state;
  server = named("server", NULL, 0);
  assert_fails(HAUL_EINVAL, haul_node_stats(NULL, &stats, NULL, &count));
  assert_fails(HAUL_EINVAL, haul_node_stats(server, NULL, NULL, &count));
  assert_fails(HAUL_EINVAL, haul_node_stats(server, &stats, NULL, &count));
  assert_fails(HAUL_EINVAL, haul_peer_stats_of(NULL, soon(), &stats, NULL, &count));
}

static int remove_folder(void **state) {
  (void)state;
  if (folder[0])
    tree_remove(folder);
  return 0;
}

#define TEST(test) cmocka_unit_test_teardown(test, close_nodes)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(both_sides_count_the_bytes),
      TEST(both_sides_count_mapped_bytes),
      TEST(ended_peers_stay_in_the_sums),
      TEST(ended_peers_stay_in_the_sums_of_map),
      TEST(many_peers_are_reported_page_by_page),
      TEST(with_a_key_only_observers_get_statistics),
      TEST(unless_that_is_set),
      TEST(its_own_user_may_observe_over_a_unix_socket),
      TEST(wrong_arguments),
  };
  return cmocka_run_group_tests_name("stats", tests, NULL, remove_folder);
}
