/* SPDX-License-Identifier: MIT
 * Faults of a NIC. A transfer that is limited to rdma fails with a code and the reason. Otherwise
 * tcp carries the bytes, and the report has the reason. The node survives, and nothing leaks. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (16 * MIB)
#define BOUND  (10 * S)

/* Microseconds for each of 64 parts of 256 KiB: slow enough to interfere. */
#define SLOW   "slow:2000"
#define SLOWER "slow:20000"

static struct pair t;
static unsigned descriptors;

static void begin(void) {
  pair_open(&t, NULL, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 1);
}

/* With an owner that has this fault from its start on. */
static void begin_with_owners_fault(const char *fault) {
  nic_fault_of_children(fault);
  begin();
}

static int set_up(void **state) {
  (void)state;
  nic_fault("");
  descriptors = open_descriptors();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  pair_close(&t);
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(haul_mappings(), 0);
  return 0;
}

static struct haul_transfer *start(enum haul_operation operation, const char *only) {
  struct haul_transfer *transfer;
  struct haul_piece piece = {0, 0, LENGTH};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = only;
  options.deadline = haul_deadline_in(BOUND);
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(t.remote, t.region, &piece, 1, &options, &transfer)
                   : haul_read(t.region, t.remote, &piece, 1, &options, &transfer));
  return transfer;
}

/* Its code; fails the test where it did not end by its deadline. */
static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(2 * BOUND));
  assert_int_not_equal(haul_transfer_test(transfer), 1);
  assert_int_not_equal(code, HAUL_ETIMEDOUT);
  haul_transfer_release(transfer);
  return code;
}

/* Over any path. */
static void move(enum haul_operation operation, struct haul_report *report) {
  struct haul_transfer *transfer = start(operation, NULL);
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  *report = (struct haul_report)HAUL_REPORT_INIT;
  assert_works(haul_transfer_report(transfer, report));
  haul_transfer_release(transfer);
}

/* tcp carried it, and the report has this reason for rdma. */
static void assert_report(const struct haul_report *report, const char *reason) {
  assert_string_equal(report->paths[0].name, "tcp");
  for (size_t i = 1; i < report->path_count; i++) {
    if (strcmp(report->paths[i].name, "rdma") != 0)
      continue;
    if (!strstr(report->paths[i].reason, reason))
      fail_msg("the report says of rdma '%s', not '%s'", report->paths[i].reason, reason);
    return;
  }
  fail_msg("the report says nothing of rdma");
}

static void assert_arrived(enum haul_operation operation, uint64_t seed) {
  struct haul_region *copy = region_make(t.node, KIND_HOST, LENGTH);
  region_fill(t.node, copy, 0, LENGTH, seed);
  uint64_t sum = region_sum(t.node, copy, 0, LENGTH);
  assert_true((operation == HAUL_OP_WRITE ? owner_sum(&t.owner, 0, 0, LENGTH)
                                          : region_sum(t.node, t.region, 0, LENGTH)) == sum);
  haul_region_release(copy);
}

/* The initial state of a test. */
struct fault {
  const char *words, *reason;
  bool read; /* else a write */
};

static enum haul_operation operation_of(void **state) {
  return ((const struct fault *)*state)->read ? HAUL_OP_READ : HAUL_OP_WRITE;
}

/* The NIC fails during a transfer: it continues over tcp with the reason, and so does the next. */
static void check_failover(void **state) {
  const struct fault *fault = *state;
  enum haul_operation operation = operation_of(state);
  struct haul_report report;
  begin();
  owner_fill(&t.owner, 0, 0, LENGTH, 2);
  nic_fault(fault->words);
  move(operation, &report);
  assert_true(report.retries > 0);
  assert_report(&report, fault->reason);
  assert_arrived(operation, operation == HAUL_OP_WRITE ? 1 : 2);
  assert_works(finish(start(HAUL_OP_WRITE, "tcp")));
  assert_works(haul_peer_status(t.peer));
}

/* The same limited to rdma: it fails, within the deadline. */
static void check_only_rdma(void **state) {
  const struct fault *fault = *state;
  begin();
  nic_fault(fault->words);
  assert_fails(HAUL_ENOPATH, finish(start(HAUL_OP_WRITE, "rdma")));
  if (!strstr(haul_error_last()->hint, fault->reason))
    fail_msg("the hint is '%s', without '%s'", haul_error_last()->hint, fault->reason);
  assert_works(finish(start(HAUL_OP_WRITE, NULL)));
  assert_works(haul_peer_status(t.peer));
}

static void transfers_go_over_rdma(void **state) {
  (void)state;
  struct haul_report report;
  begin();
  move(HAUL_OP_WRITE, &report);
  assert_string_equal(report.paths[0].name, "rdma");
  assert_int_equal(report.retries, 0);
  assert_arrived(HAUL_OP_WRITE, 1);
}

#define RETRY_REASON   "does not acknowledge"
#define RNR_REASON     "receive queue stayed empty"
#define REMOVED_REASON "removed"

static void a_refused_key_is_stale(void **state) {
  (void)state;
  begin();
  nic_fault("access:2");
  assert_fails(HAUL_ESTALE, finish(start(HAUL_OP_WRITE, NULL)));
  assert_works(finish(start(HAUL_OP_WRITE, NULL)));
  assert_works(haul_peer_status(t.peer));
}

/* Posted works end and waiting ones are not posted: the owner's release succeeds. */
static void check_freed(void **state) {
  enum haul_operation operation = operation_of(state);
  begin();
  nic_fault(SLOWER);
  struct haul_transfer *transfer = start(operation, "rdma");
  assert_int_equal(owner_release(&t.owner, 0), 0);
  assert_fails(HAUL_ESTALE, finish(transfer));
  assert_int_equal(owner_publish(&t.owner, 1, KIND_HOST, LENGTH, "other", HAUL_READ | HAUL_WRITE),
                   0);
  haul_remote_release(t.remote);
  assert_works(haul_peer_lookup(t.peer, "other", haul_deadline_in(BOUND), &t.remote));
  nic_fault("");
  assert_works(finish(start(operation, "rdma")));
}

static void check_killed(void **state) {
  enum haul_operation operation = operation_of(state);
  begin();
  nic_fault(SLOW);
  struct haul_transfer *transfer = start(operation, NULL);
  nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  owner_kill(&t.owner);
  t.owner.pid = 0;
  assert_fails(HAUL_EPEER, finish(transfer));
  for (haul_deadline until = haul_deadline_in(BOUND);
       haul_peer_status(t.peer) == 0 && haul_deadline_in(0) < until;)
    nanosleep(&(struct timespec){0, MS}, NULL);
  assert_fails(HAUL_EPEER, haul_peer_status(t.peer));
  pair_close(&t);
  begin();
  assert_works(finish(start(operation, "rdma")));
}

/* The transfer ends by its deadline; the NIC may use its bytes until the queue pair is destroyed.
 */
static void a_stuck_nic_does_not_delay_a_deadline(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, MIB};
  begin();
  nic_fault("slow:60000000"); /* a minute */
  options.only = "rdma";
  options.deadline = haul_deadline_in(200 * MS);
  haul_deadline from = haul_deadline_in(0);
  assert_fails(HAUL_ETIMEDOUT, haul_write(t.remote, t.region, &piece, 1, &options, NULL));
  assert_in_range(haul_deadline_in(0) - from, 200 * MS, 5 * S);
  nic_fault("");
  assert_works(haul_peer_status(t.peer));
  options.deadline = 0;
  assert_fails(HAUL_ENOPATH, haul_write(t.remote, t.region, &piece, 1, &options, NULL));
  assert_non_null(strstr(haul_error_last()->hint, "completes none"));
  assert_works(finish(start(HAUL_OP_WRITE, NULL)));
}

static void polling_does_not_delay_a_stuck_nics_end(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, MIB};
  struct haul_transfer *transfer;
  begin();
  nic_fault("slow:60000000");
  options.only = "rdma";
  options.deadline = haul_deadline_in(200 * MS);
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  haul_deadline bound = haul_deadline_in(4 * S); /* below the liveness timeout */
  while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < bound)
    haul_transfer_wait(transfer, haul_deadline_in(50 * MS));
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(transfer));
  haul_transfer_release(transfer);
  nic_fault("");
}

#define PIN_REASON "the memory cannot be pinned"

/* Transfers use tcp, with this reason against rdma. */
static void assert_tcp_because(const char *reason) {
  struct haul_report report;
  move(HAUL_OP_WRITE, &report);
  assert_report(&report, reason);
  assert_arrived(HAUL_OP_WRITE, 1);
  assert_fails(HAUL_ENOPATH,
               haul_write(t.remote, t.region, &(struct haul_piece){0, 0, 1}, 1,
                          &(struct haul_transfer_options){
                              .size = sizeof(struct haul_transfer_options), .only = "rdma"},
                          NULL));
  assert_non_null(strstr(haul_error_last()->hint, reason));
  assert_works(haul_peer_status(t.peer));
}

static void local_memory_over_the_lock_limit_uses_tcp(void **state) {
  (void)state;
  begin();
  nic_fault("memlock:1");
  assert_tcp_because(PIN_REASON);
  nic_fault("");
  assert_works(finish(start(HAUL_OP_WRITE, "rdma"))); /* the limit was raised */
}

static void remote_memory_over_the_lock_limit_uses_tcp(void **state) {
  (void)state;
  begin_with_owners_fault("memlock:3"); /* the first two are for messages */
  assert_tcp_because(PIN_REASON);
}

static void a_peer_over_the_lock_limit_reports_it(void **state) {
  (void)state;
  begin_with_owners_fault("memlock:1");
  assert_tcp_because("the peer says \"" PIN_REASON);
}

static void a_local_port_without_gid_closes_the_path(void **state) {
  (void)state;
  nic_fault("nogid");
  begin();
  assert_tcp_because("no GID");
}

static void a_remote_port_without_gid_closes_the_path(void **state) {
  (void)state;
  begin_with_owners_fault("nogid");
  assert_tcp_because("the peer says \"");
  assert_tcp_because("no GID");
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
  setenv("HAUL_RDMA_TIMEOUT", "14", 1); /* half a second, not nine, until the NIC gives up */
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define CASE(name, test, ...)                                                                      \
  {                                                                                                \
    name, test, set_up, tear_down, &(struct fault) {                                               \
      __VA_ARGS__                                                                                  \
    }                                                                                              \
  }
  const struct CMUnitTest tests[] = {
      TEST(transfers_go_over_rdma),
      CASE("failover: retries exhausted", check_failover, "retry:3", RETRY_REASON, false),
      CASE("failover: retries exhausted by a read", check_failover, "retry:3", RETRY_REASON, true),
      CASE("failover: receiver not ready", check_failover, "rnr:2", RNR_REASON, false),
      CASE("failover: device removed during a write", check_failover, "remove:4", "", false),
      CASE("failover: device removed during a read", check_failover, "remove:4", "", true),
      CASE("failover: removed without completions", check_failover, "vanish:4", REMOVED_REASON,
           false),
      CASE("failover: completion queue overrun", check_failover, "overrun:3", "overran", false),
      CASE("failover: stuck NIC, no cancel", check_failover, "slow:60000000", "completes none",
           false),
      CASE("only rdma: retries exhausted", check_only_rdma, "retry:1", RETRY_REASON, false),
      CASE("only rdma: device removed", check_only_rdma, "vanish:1", REMOVED_REASON, false),
      TEST(a_refused_key_is_stale),
      CASE("region freed during a write", check_freed, "", "", false),
      CASE("region freed during a read", check_freed, "", "", true),
      CASE("owner killed during a write", check_killed, "", "", false),
      CASE("owner killed during a read", check_killed, "", "", true),
      TEST(a_stuck_nic_does_not_delay_a_deadline),
      TEST(polling_does_not_delay_a_stuck_nics_end),
      TEST(local_memory_over_the_lock_limit_uses_tcp),
      TEST(remote_memory_over_the_lock_limit_uses_tcp),
      TEST(a_peer_over_the_lock_limit_reports_it),
      TEST(a_local_port_without_gid_closes_the_path),
      TEST(a_remote_port_without_gid_closes_the_path),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
