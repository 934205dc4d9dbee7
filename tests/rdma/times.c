/* SPDX-License-Identifier: MIT
 * Times in reports, over an emulated NIC of a set speed: set-up within the call, queueing, wire. */
#include "support/check.h"

#include <string.h>

#include "core/sys.h"
#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define LENGTH ((uint64_t)16 << 20)
#define MIB    ((uint64_t)1 << 20)
#define BOUND  (100 * S)

static struct pair t;

static int set_up(void **state) {
  (void)state;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  pair_open(&t, &config, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 7);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  pair_close(&t);
  return 0;
}

static struct haul_transfer *start(const char *path, uint64_t bytes, int priority) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, 0, bytes};
  struct haul_transfer *transfer;
  options.only = path;
  options.priority = priority;
  options.deadline = haul_deadline_in(BOUND);
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  return transfer;
}

/* With the invariants between its times. */
static struct haul_report report_of(struct haul_transfer *transfer) {
  struct haul_report report = HAUL_REPORT_INIT;
  assert_works(haul_transfer_report(transfer, &report));
  assert_true(report.setup_ns >= 0);
  assert_true(report.setup_ns <= report.queued_ns);
  assert_true(report.wire_ns >= 0);
  return report;
}

static struct haul_report finish(struct haul_transfer *transfer) {
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  struct haul_report report = report_of(transfer);
  haul_transfer_release(transfer);
  return report;
}

/* The first transfer of a region has its memory registered within the call. */
static void registration_counts_as_set_up(void **state) {
  (void)state;
  nic_fault("pin:20000");
  struct haul_report report = finish(start("rdma", 4096, HAUL_PRIORITY_NORMAL));
  assert_true(report.setup_ns >= 20 * MS);
  /* A second one registers nothing. No upper bound: the machine may be busy. */
  report = finish(start("rdma", 4096, HAUL_PRIORITY_NORMAL));
  assert_true(report.setup_ns > 0);
}

/* Their sum covers the call to the end: at most the measured time, at least the NIC's. */
static void the_parts_sum_to_the_whole(void **state) {
  (void)state;
  static const char *const paths[] = {"rdma", "tcp"};
  nic_fault("slow:5000"); /* each 256 KiB */
  for (size_t i = 0; i < COUNT(paths); i++) {
    int64_t before = clock_now();
    struct haul_report report = finish(start(paths[i], MIB, HAUL_PRIORITY_NORMAL));
    int64_t whole = clock_now() - before;
    assert_true(report.setup_ns > 0);
    assert_true(report.wire_ns > 0);
    assert_true(report.queued_ns + report.wire_ns <= whole);
    if (i == 0)
      assert_true(report.wire_ns >= 4 * 5 * MS);
  }
}

/* Without progress the second transfer is queued behind its call. */
static void waiting_counts_as_queued(void **state) {
  (void)state;
  nic_fault("slow:5000");
  struct haul_transfer *first = start("rdma", LENGTH, HAUL_PRIORITY_HIGH); /* fills the window */
  struct haul_transfer *low = start("rdma", 4096, HAUL_PRIORITY_LOW);
  struct haul_report waiting = report_of(low);
  assert_int_equal(waiting.status, 1);
  assert_int_equal(waiting.wire_ns, 0); /* not yet */
  struct haul_report other = finish(first), report = finish(low);
  assert_int_equal(report.setup_ns, waiting.setup_ns);
  assert_true(report.queued_ns > report.setup_ns);
  assert_true(report.queued_ns > other.queued_ns);
  assert_true(report.queued_ns - report.setup_ns >= 5 * MS);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
  const struct CMUnitTest tests[] = {
      TEST(registration_counts_as_set_up),
      TEST(the_parts_sum_to_the_whole),
      TEST(waiting_counts_as_queued),
  };
  return cmocka_run_group_tests_name("times", tests, NULL, NULL);
}
