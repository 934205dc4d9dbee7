/* SPDX-License-Identifier: MIT
 * Nothing starves: while transfers of high priority keep a path full, those of lower ones end too,
 * and it is counted how many of the others it took. The node is driven by the test, so that it sees
 * to it after each step that some of high priority still wait. */
#include "support/check.h"

#include <string.h>

#include "support/owner.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (2 * MIB) /* of each: two slices, and more than `map` copies within a call */
#define FLOOD  32u       /* of high priority, under way all the time */
#define FEW    4u        /* of each other */
#define ALL    ((FLOOD + 2 * FEW) * LENGTH) /* each has a part of its own */
#define BOUND  (100 * S)

/* What may go first while all the others wait: each slice of theirs is passed 16 times at most, by
 * one slice each time, and what was under way then ends too. Three times as much is still far from
 * for ever. */
#define MOST (3 * (2 * FEW * (uint64_t)(LENGTH / MIB) * 16 + FLOOD))

static struct {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_remote *remote;
  struct haul_region *region;
} t;

static int set_up(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  uint64_t all = ALL;
  config.progress = HAUL_PROGRESS_CALLER;
  owner_start(&t.owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&t.owner, 0, KIND_HOST, all, "memory", HAUL_READ | HAUL_WRITE), 0);
  assert_works(haul_node_open(&config, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  t.region = region_make(t.node, KIND_HOST, all);
  region_fill(t.node, t.region, 0, all, 3);
  assert_int_equal(owner_fill(&t.owner, 0, 0, all, 4), 0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.region);
  haul_remote_release(t.remote);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  return owner_end(&t.owner);
}

/* Into the i-th part. */
static struct haul_transfer *start(const char *path, enum haul_operation operation, unsigned i,
                                   int priority) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {i * LENGTH, i * LENGTH, LENGTH};
  struct haul_transfer *transfer;
  options.only = path;
  options.priority = priority;
  options.deadline = haul_deadline_in(BOUND);
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(t.remote, t.region, &piece, 1, &options, &transfer)
                   : haul_read(t.region, t.remote, &piece, 1, &options, &transfer));
  return transfer;
}

static bool ended(struct haul_transfer *transfer) {
  int code = haul_transfer_test(transfer);
  if (code == 1)
    return false;
  assert_works(code);
  return true;
}

/* Replaces what has ended of the flood, and returns how many these are. */
static unsigned keep_full(struct haul_transfer **flood, const char *path,
                          enum haul_operation operation) {
  unsigned count = 0;
  for (unsigned i = 0; i < FLOOD; i++) {
    if (!ended(flood[i]))
      continue;
    haul_transfer_release(flood[i]);
    flood[i] = start(path, operation, i, HAUL_PRIORITY_HIGH);
    count++;
  }
  return count;
}

static unsigned count_ended(struct haul_transfer **others, unsigned count) {
  unsigned all = 0;
  for (unsigned i = 0; i < count; i++)
    all += ended(others[i]);
  return all;
}

static void the_others_end_too(const char *path, enum haul_operation operation) {
  struct haul_transfer *flood[FLOOD], *others[2 * FEW];
  uint64_t passed = 0;
  bool drained = false;
  for (unsigned i = 0; i < FLOOD; i++)
    flood[i] = start(path, operation, i, HAUL_PRIORITY_HIGH);
  for (unsigned i = 0; i < COUNT(others); i++)
    others[i] = start(path, operation, FLOOD + i, i % 2 ? HAUL_PRIORITY_LOW : HAUL_PRIORITY_NORMAL);
  while (count_ended(others, COUNT(others)) < COUNT(others) && passed <= MOST) {
    assert_true(haul_node_progress(t.node, haul_deadline_in(BOUND)) >= 0);
    unsigned now = keep_full(flood, path, operation);
    drained |= now == FLOOD;
    passed += now;
  }
  print_message("%s: %llu of high priority ended meanwhile%s\n", path, (unsigned long long)passed,
                drained ? ", once all of them in one step" : "");
  assert_in_range(passed, 0, MOST);
  for (unsigned i = 0; i < COUNT(others); i++)
    haul_transfer_release(others[i]);
  for (unsigned i = 0; i < FLOOD; i++) {
    assert_works(haul_transfer_wait(flood[i], haul_deadline_in(BOUND)));
    haul_transfer_release(flood[i]);
  }
}

static bool is_open(const char *path) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_explain(t.region, t.remote, HAUL_OP_WRITE, LENGTH, NULL, paths, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(paths[i].name, path) == 0)
      return paths[i].open;
  return false;
}

static void low_ones_end_among_high_ones(const char *path) {
  if (!is_open(path)) {
    print_message("%s is not there: tests/doubles/ibverbs-moving/with brings a NIC\n", path);
    skip();
  }
  the_others_end_too(path, HAUL_OP_WRITE);
  assert_true(owner_sum(&t.owner, 0, 0, ALL) == region_sum(t.node, t.region, 0, ALL));
  region_fill(t.node, t.region, 0, ALL, 5);
  the_others_end_too(path, HAUL_OP_READ);
  assert_true(owner_sum(&t.owner, 0, 0, ALL) == region_sum(t.node, t.region, 0, ALL));
}

static void low_ones_end_over_map(void **state) {
  (void)state;
  low_ones_end_among_high_ones("map");
}

static void low_ones_end_over_tcp(void **state) {
  (void)state;
  low_ones_end_among_high_ones("tcp");
}

static void low_ones_end_over_rdma(void **state) {
  (void)state;
  low_ones_end_among_high_ones("rdma");
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(low_ones_end_over_map),
      TEST(low_ones_end_over_tcp),
      TEST(low_ones_end_over_rdma),
  };
  return cmocka_run_group_tests_name("priorities", tests, NULL, NULL);
}
