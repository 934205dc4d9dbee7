/* SPDX-License-Identifier: MIT
 * Cost feedback between rdma and tcp, over emulated NICs: a NIC slower than its link speed is
 * avoided, and only such a NIC. */
#include "support/check.h"

#include <string.h>
#include <time.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)4 << 20)
#define BOUND  (20 * S)
#define SLOW   "slow:20000" /* 20 ms for each 256 KiB: a hundred times what it should be */

static struct pair t;

static void begin(const char *nic, const struct haul_node_config *config) {
  nic_fault(nic);
  pair_open(&t, config, LENGTH);
}

static int tear_down(void **state) {
  (void)state;
  pair_close(&t);
  return 0;
}

static haul_transfer *start(uint64_t bytes) {
  haul_transfer *transfer;
  assert_works(
      haul_write(t.remote, t.region, &(struct haul_piece){0, 0, bytes}, 1, NULL, &transfer));
  return transfer;
}

static struct haul_path finish(haul_transfer *transfer) {
  struct haul_report report = HAUL_REPORT_INIT;
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  return report.paths[0];
}

static struct haul_path explained(uint64_t bytes, const char *name) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_explain(t.region, t.remote, HAUL_OP_WRITE, bytes, NULL, paths, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(paths[i].name, name) == 0)
      return paths[i];
  fail_msg("no path %s", name);
  return paths[0];
}

/* A duration counts only without other traffic. */
static void concurrent_transfers_are_not_measured(void **state) {
  (void)state;
  haul_transfer *many[4];
  begin(SLOW, NULL);
  for (unsigned round = 0; round < 4; round++) {
    for (unsigned i = 0; i < COUNT(many); i++)
      many[i] = start(1 << 20);
    for (unsigned i = 0; i < COUNT(many); i++)
      assert_string_equal(finish(many[i]).name, "rdma");
  }
  assert_false(explained(1 << 20, "rdma").measured);
}

/* Nor while the caller made no progress calls: they decide the duration. */
static void transfers_that_waited_for_progress_are_not_measured(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  begin("", &config);
  for (unsigned i = 0; i < 8; i++) {
    haul_transfer *transfer = start(1 << 20);
    nanosleep(&(struct timespec){0, 20 * MS}, NULL); /* the caller's own work */
    assert_string_equal(finish(transfer).name, "rdma");
  }
  assert_false(explained(1 << 20, "rdma").measured);
  int64_t end = haul_deadline_in(BOUND); /* a preempted thread is late as well */
  while (!explained(1 << 20, "rdma").measured && haul_deadline_in(0) < end)
    finish(start(1 << 20));
  assert_true(explained(1 << 20, "rdma").measured);
}

/* A test is no wait. */
static void transfers_that_were_only_tested_are_not_measured(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  begin("", &config);
  for (unsigned i = 0; i < 8; i++) {
    haul_transfer *transfer = start(1 << 20);
    haul_transfer_wait(transfer, haul_deadline_in(0));
    nanosleep(&(struct timespec){0, 20 * MS}, NULL);
    while (haul_transfer_test(transfer) == 1)
      haul_node_progress(t.node, haul_deadline_in(MS));
    haul_transfer_release(transfer);
  }
  assert_false(explained(1 << 20, "rdma").measured);
}

static void estimates_only_measures_nothing(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.estimates_only = 1;
  begin(SLOW, &config);
  for (unsigned i = 0; i < 8; i++)
    assert_string_equal(finish(start(1 << 20)).name, "rdma");
  assert_false(explained(1 << 20, "rdma").measured);
}

/* After four measured transfers the next one avoids the NIC, and the report has the reason. One
 * whose thread was preempted is not measured. */
static void a_slow_nic_is_avoided(void **state) {
  (void)state;
  begin(SLOW, NULL);
  for (unsigned i = 0; i < 4; i++)
    assert_string_equal(finish(start(1 << 20)).name, "rdma");
  struct haul_path path = finish(start(1 << 20));
  for (int64_t end = haul_deadline_in(BOUND);
       strcmp(path.name, "tcp") != 0 && haul_deadline_in(0) < end;)
    path = finish(start(1 << 20));
  assert_string_equal(path.name, "tcp");
  for (unsigned i = 0; i < 4; i++)
    path = finish(start(1 << 20));
  assert_string_equal(path.name, "tcp");
  assert_true(path.measured);
  assert_string_equal(path.reason, "by measurement");
  struct haul_path rdma = explained(1 << 20, "rdma");
  assert_true(rdma.open && rdma.measured && rdma.cost_ns > rdma.estimate_ns);
  assert_non_null(strstr(rdma.reason, "measured "));
  /* Neighbouring sizes share the measurement, distant ones do not. */
  assert_true(explained(64, "rdma").chosen);
  assert_true(explained(2 << 20, "tcp").chosen);
}

static void a_slow_nic_is_used_on_request(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 1 << 20};
  haul_transfer *transfer;
  begin(SLOW, NULL);
  for (unsigned i = 0; i < 5; i++)
    finish(start(1 << 20));
  options.only = "rdma";
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  assert_string_equal(finish(transfer).name, "rdma");
  options.only = NULL;
  options.flags = HAUL_REQUIRE_ZERO_COPY;
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  assert_string_equal(finish(transfer).name, "rdma");
}

#define TEST(test) cmocka_unit_test_teardown(test, tear_down)

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
  const struct CMUnitTest tests[] = {
      TEST(concurrent_transfers_are_not_measured),
      TEST(transfers_that_waited_for_progress_are_not_measured),
      TEST(transfers_that_were_only_tested_are_not_measured),
      TEST(estimates_only_measures_nothing),
      TEST(a_slow_nic_is_avoided),
      TEST(a_slow_nic_is_used_on_request),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
