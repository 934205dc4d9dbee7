/* SPDX-License-Identifier: MIT
 * What goes wrong with a NIC, and what a transfer says then. Over the path alone that was asked for
 * the failure has a code and says why; where any path will do, tcp carries the bytes and the report
 * says why rdma did not. The node lives on in any case, and nothing is left behind. */
#include "support/check.h"

#include <string.h>
#include <time.h>

#include "support/nic.h"
#include "support/owner.h"
#include "support/seams.h"

#define MIB    ((uint64_t)1 << 20)
#define LENGTH (16 * MIB)
#define BOUND  (10 * S)
#define BOTH   (HAUL_READ | HAUL_WRITE)

/* 64 pieces of 256 KiB, each that many microseconds: long enough to be caught under way. */
#define SLOW   "slow:2000"
#define SLOWER "slow:20000"

static struct {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region;
  struct haul_remote *remote;
  unsigned descriptors;
} t;

/* ---- Both sides ---- */

static void start_owner(void) {
  owner_start(&t.owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(owner_publish(&t.owner, 0, KIND_HOST, LENGTH, "memory", BOTH), 0);
}

static void begin(void) {
  assert_works(haul_node_open(NULL, &t.node));
  assert_works(haul_peer_connect(t.node, t.owner.address, haul_deadline_in(BOUND), &t.peer));
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(BOUND), &t.remote));
  t.region = region_make(t.node, KIND_HOST, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 1);
}

/* With another owner, for which this goes wrong from the start on. */
static void begin_with_owners_fault(const char *fault) {
  assert_int_equal(owner_end(&t.owner), 0);
  nic_fault_of_children(fault);
  start_owner();
  begin();
}

static int set_up(void **state) {
  (void)state;
  nic_fault("");
  t.descriptors = open_descriptors();
  start_owner();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_remote_release(t.remote);
  haul_region_release(t.region);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  nic_fault_of_children("");
  assert_true(!t.owner.pid || owner_end(&t.owner) == 0);
  nic_check_empty();
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  memset(&t, 0, sizeof t);
  return 0;
}

/* ---- Transfers ---- */

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

/* Its code; it ends by its deadline. */
static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, haul_deadline_in(2 * BOUND));
  assert_int_not_equal(haul_transfer_test(transfer), 1);
  assert_int_not_equal(code, HAUL_ETIMEDOUT);
  haul_transfer_release(transfer);
  return code;
}

/* Over whatever path; it works. */
static void move(enum haul_operation operation, struct haul_report *report) {
  struct haul_transfer *transfer = start(operation, NULL);
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(BOUND)));
  *report = (struct haul_report)HAUL_REPORT_INIT;
  assert_works(haul_transfer_report(transfer, report));
  haul_transfer_release(transfer);
}

/* The report says that tcp carried it, and about rdma this. */
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

/* A transfer during which the NIC fails arrives over tcp, with the reason; and so does the next. */
static void goes_on_over_tcp(const char *fault, enum haul_operation operation, const char *reason) {
  struct haul_report report;
  begin();
  owner_fill(&t.owner, 0, 0, LENGTH, 2);
  nic_fault(fault);
  move(operation, &report);
  assert_true(report.retries > 0);
  assert_report(&report, reason);
  assert_arrived(operation, operation == HAUL_OP_WRITE ? 1 : 2);
  assert_works(finish(start(HAUL_OP_WRITE, "tcp")));
  assert_works(haul_peer_status(t.peer));
}

/* The same with no other path allowed: it fails, within the deadline. */
static void fails_alone(const char *fault, const char *reason) {
  begin();
  nic_fault(fault);
  assert_fails(HAUL_ENOPATH, finish(start(HAUL_OP_WRITE, "rdma")));
  if (!strstr(haul_error_last()->hint, reason))
    fail_msg("the hint is '%s', without '%s'", haul_error_last()->hint, reason);
  assert_works(finish(start(HAUL_OP_WRITE, NULL)));
  assert_works(haul_peer_status(t.peer));
}

/* ---- Without a fault ---- */

static void transfers_go_over_rdma(void **state) {
  (void)state;
  struct haul_report report;
  begin();
  move(HAUL_OP_WRITE, &report);
  assert_string_equal(report.paths[0].name, "rdma");
  assert_int_equal(report.retries, 0);
  assert_arrived(HAUL_OP_WRITE, 1);
}

/* ---- Requests that fail ---- */

#define RETRY_REASON   "does not acknowledge"
#define RNR_REASON     "receive queue stayed empty"
#define REMOVED_REASON "removed"

static void a_peer_that_does_not_answer_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("retry:3", HAUL_OP_WRITE, RETRY_REASON);
}

static void a_peer_that_does_not_answer_a_read_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("retry:3", HAUL_OP_READ, RETRY_REASON);
}

static void a_peer_that_does_not_answer_fails_what_asks_for_rdma_alone(void **state) {
  (void)state;
  fails_alone("retry:1", RETRY_REASON);
}

static void a_receiver_that_is_not_ready_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("rnr:2", HAUL_OP_WRITE, RNR_REASON);
}

static void a_key_that_is_refused_is_stale(void **state) {
  (void)state;
  begin();
  nic_fault("access:2");
  assert_fails(HAUL_ESTALE, finish(start(HAUL_OP_WRITE, NULL)));
  assert_works(finish(start(HAUL_OP_WRITE, NULL)));
  assert_works(haul_peer_status(t.peer));
}

/* ---- The owner ---- */

/* What the NIC has begun ends, what waits for it does not begin: the owner gets its memory back. */
static void freed_under_way(enum haul_operation operation) {
  begin();
  nic_fault(SLOWER);
  struct haul_transfer *transfer = start(operation, "rdma");
  assert_int_equal(owner_release(&t.owner, 0), 0);
  assert_fails(HAUL_ESTALE, finish(transfer));
  assert_int_equal(owner_publish(&t.owner, 1, KIND_HOST, LENGTH, "other", BOTH), 0);
  haul_remote_release(t.remote);
  assert_works(haul_peer_lookup(t.peer, "other", haul_deadline_in(BOUND), &t.remote));
  nic_fault("");
  assert_works(finish(start(operation, "rdma")));
}

static void a_region_freed_during_a_write_is_stale(void **state) {
  (void)state;
  freed_under_way(HAUL_OP_WRITE);
}

static void a_region_freed_during_a_read_is_stale(void **state) {
  (void)state;
  freed_under_way(HAUL_OP_READ);
}

static void killed_under_way(enum haul_operation operation) {
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
  /* The node lives on: with another owner all is well. */
  haul_remote_release(t.remote);
  haul_region_release(t.region);
  haul_peer_close(t.peer);
  haul_node_close(t.node);
  nic_fault("");
  start_owner();
  begin();
  assert_works(finish(start(operation, "rdma")));
}

static void an_owner_killed_during_a_write_is_gone(void **state) {
  (void)state;
  killed_under_way(HAUL_OP_WRITE);
}

static void an_owner_killed_during_a_read_is_gone(void **state) {
  (void)state;
  killed_under_way(HAUL_OP_READ);
}

/* ---- The device ---- */

static void a_device_removed_during_a_write_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("remove:4", HAUL_OP_WRITE, "");
}

static void a_device_removed_during_a_read_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("remove:4", HAUL_OP_READ, "");
}

static void a_device_that_vanished_without_a_completion_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("vanish:4", HAUL_OP_WRITE, REMOVED_REASON);
}

static void a_removed_device_fails_what_asks_for_rdma_alone(void **state) {
  (void)state;
  fails_alone("vanish:1", REMOVED_REASON);
}

static void an_overrun_of_completions_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("overrun:3", HAUL_OP_WRITE, "overran");
}

/* The deadline is the transfer's; the NIC has its bytes until the queue pair is gone. */
static void a_nic_that_ends_nothing_does_not_keep_a_transfer(void **state) {
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
  assert_non_null(strstr(haul_error_last()->hint, "ends none"));
  assert_works(finish(start(HAUL_OP_WRITE, NULL)));
}

/* Nobody wants anything back, and the path breaks all the same, in time for another one. */
static void a_nic_that_ends_nothing_closes_the_path(void **state) {
  (void)state;
  goes_on_over_tcp("slow:60000000", HAUL_OP_WRITE, "ends none");
}

/* Who asks again and again does not put off the end. */
static void asking_does_not_keep_a_nic_that_ends_nothing(void **state) {
  (void)state;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, MIB};
  struct haul_transfer *transfer;
  begin();
  nic_fault("slow:60000000");
  options.only = "rdma";
  options.deadline = haul_deadline_in(200 * MS);
  assert_works(haul_write(t.remote, t.region, &piece, 1, &options, &transfer));
  haul_deadline bound = haul_deadline_in(4 * S); /* before its silence would end it */
  while (haul_transfer_test(transfer) == 1 && haul_deadline_in(0) < bound)
    haul_transfer_wait(transfer, haul_deadline_in(50 * MS));
  assert_fails(HAUL_ETIMEDOUT, haul_transfer_test(transfer));
  haul_transfer_release(transfer);
  nic_fault("");
}

/* ---- Registrations and addresses ---- */

#define PIN_REASON "the memory cannot be pinned"

/* Where a transfer goes now, and why not over rdma. */
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

static void local_memory_that_may_not_be_locked_goes_over_tcp(void **state) {
  (void)state;
  begin();
  nic_fault("memlock:1");
  assert_tcp_because(PIN_REASON);
  nic_fault("");
  assert_works(finish(start(HAUL_OP_WRITE, "rdma"))); /* the limit was raised */
}

static void remote_memory_that_may_not_be_locked_goes_over_tcp(void **state) {
  (void)state;
  begin_with_owners_fault("memlock:2"); /* the first one is for what the nodes say over the rail */
  assert_tcp_because(PIN_REASON);
}

static void a_peer_that_may_lock_nothing_says_so(void **state) {
  (void)state;
  begin_with_owners_fault("memlock:1");
  assert_tcp_because("the peer says \"" PIN_REASON);
}

static void a_port_without_a_gid_is_no_path(void **state) {
  (void)state;
  nic_fault("nogid");
  begin();
  assert_tcp_because("no GID");
}

static void a_peer_whose_port_has_no_gid_has_no_path(void **state) {
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
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(transfers_go_over_rdma),
      TEST(a_peer_that_does_not_answer_closes_the_path),
      TEST(a_peer_that_does_not_answer_a_read_closes_the_path),
      TEST(a_peer_that_does_not_answer_fails_what_asks_for_rdma_alone),
      TEST(a_receiver_that_is_not_ready_closes_the_path),
      TEST(a_key_that_is_refused_is_stale),
      TEST(a_region_freed_during_a_write_is_stale),
      TEST(a_region_freed_during_a_read_is_stale),
      TEST(an_owner_killed_during_a_write_is_gone),
      TEST(an_owner_killed_during_a_read_is_gone),
      TEST(a_device_removed_during_a_write_closes_the_path),
      TEST(a_device_removed_during_a_read_closes_the_path),
      TEST(a_device_that_vanished_without_a_completion_closes_the_path),
      TEST(a_removed_device_fails_what_asks_for_rdma_alone),
      TEST(an_overrun_of_completions_closes_the_path),
      TEST(a_nic_that_ends_nothing_does_not_keep_a_transfer),
      TEST(a_nic_that_ends_nothing_closes_the_path),
      TEST(asking_does_not_keep_a_nic_that_ends_nothing),
      TEST(local_memory_that_may_not_be_locked_goes_over_tcp),
      TEST(remote_memory_that_may_not_be_locked_goes_over_tcp),
      TEST(a_peer_that_may_lock_nothing_says_so),
      TEST(a_port_without_a_gid_is_no_path),
      TEST(a_peer_whose_port_has_no_gid_has_no_path),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
