/* SPDX-License-Identifier: MIT
 * A path whose rails broke is connected again in the background, and carries bytes again. */
#include "support/check.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <haul/log.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define LENGTH UINT64_C(65536)

static struct pair t;
static char reason[192];
static _Atomic unsigned lost, restored;

static void note(void *user, const struct haul_log_line *line) {
  (void)user;
  for (size_t i = 0; strcmp(line->event, "path_lost") == 0 && i < line->count; i++)
    if (strcmp(line->fields[i].key, "reason") == 0)
      snprintf(reason, sizeof reason, "%s", line->fields[i].value);
  lost += strcmp(line->event, "path_lost") == 0;
  restored += strcmp(line->event, "path_restored") == 0;
}

static int set_up(void **state) {
  (void)state;
  nic_fault("");
  lost = restored = 0;
  assert_works(haul_log_set(HAUL_LOG_INFO, note, NULL));
  memset(&t, 0, sizeof t);
  pair_open(&t, NULL, LENGTH);
  region_fill(t.node, t.region, 0, LENGTH, 1);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  pair_close(&t);
  return haul_log_set(HAUL_LOG_INFO, NULL, NULL);
}

static int write_over(const char *path, struct haul_report *report) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_transfer *transfer;
  options.only = path;
  int code =
      haul_write(t.remote, t.region, &(struct haul_piece){0, 0, LENGTH}, 1, &options, &transfer);
  if (code)
    return code;
  code = haul_transfer_wait(transfer, haul_deadline_in(60 * S));
  *report = (struct haul_report)HAUL_REPORT_INIT;
  assert_works(haul_transfer_report(transfer, report));
  haul_transfer_release(transfer);
  return code;
}

static void assert_arrived(uint64_t seed) {
  struct haul_report report;
  region_fill(t.node, t.region, 0, LENGTH, seed);
  assert_works(write_over("rdma", &report));
  assert_string_equal(report.paths[0].name, "rdma");
  assert_true(report.paths[0].open);
  assert_int_equal(report.retries, 0);
  assert_true(owner_sum(&t.owner, 0, 0, LENGTH) == region_sum(t.node, t.region, 0, LENGTH));
}

static void await_rdma(void) {
  struct haul_report report;
  haul_deadline until = haul_deadline_in(20 * S);
  while (write_over("rdma", &report) != 0) {
    assert_true(haul_deadline_in(0) < until);
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  }
}

/* tcp carries the write, and the report has this reason for rdma. */
static void break_path(const char *words, const char *why) {
  struct haul_report report;
  nic_fault(words);
  assert_fails(HAUL_ENOPATH, write_over("rdma", &report));
  assert_works(write_over(NULL, &report));
  assert_string_equal(report.paths[0].name, "tcp");
  for (size_t i = 1; i < report.path_count; i++)
    if (strcmp(report.paths[i].name, "rdma") == 0 &&
        (!strstr(report.paths[i].reason, why) ||
         !strstr(report.paths[i].reason, "; connecting again")))
      fail_msg("the reason is '%s'", report.paths[i].reason);
}

static void a_broken_path_carries_bytes_again(void **state) {
  (void)state;
  assert_arrived(1);
  break_path("retry:1", "does not acknowledge");
  nic_fault("");
  await_rdma();
  assert_arrived(2);
  haul_node_progress(t.node, haul_deadline_in(0));
  assert_int_equal(lost, 1);
  assert_int_equal(restored, 1);
  assert_non_null(strstr(reason, "does not acknowledge"));
}

static void it_breaks_again_and_again(void **state) {
  (void)state;
  for (unsigned i = 0; i < 4; i++) {
    break_path("retry:1", "does not acknowledge");
    nic_fault("");
    await_rdma();
    assert_arrived(i);
  }
}

static void an_owner_of_a_refused_write_connects_again(void **state) {
  (void)state;
  struct haul_report report;
  nic_fault("access:1");
  assert_fails(HAUL_ESTALE, write_over("rdma", &report));
  nic_fault("");
  await_rdma();
  assert_arrived(3);
}

/* The queue pairs connect, and no packet arrives: no transfer waits for them. */
static void a_wire_that_stays_cut_delays_no_transfer(void **state) {
  (void)state;
  struct haul_report report;
  break_path("cut", "does not acknowledge");
  for (unsigned i = 0; i < 20; i++) {
    haul_deadline from = haul_deadline_in(0);
    assert_works(write_over(NULL, &report));
    assert_string_equal(report.paths[0].name, "tcp");
    assert_int_equal(report.retries, 0);
    assert_true(haul_deadline_in(0) - from < 400 * MS); /* the NIC would take 590 ms */
    nanosleep(&(struct timespec){0, 100 * MS}, NULL);
  }
  assert_int_equal(restored, 0);
  nic_fault("");
  await_rdma();
  assert_arrived(4);
}

static void a_region_looked_up_meanwhile_uses_the_path_later(void **state) {
  (void)state;
  break_path("cut", "does not acknowledge");
  haul_remote_release(t.remote);
  assert_works(haul_peer_lookup(t.peer, "memory", haul_deadline_in(20 * S), &t.remote));
  nic_fault("");
  await_rdma();
  assert_arrived(5);
}

/* Also when the path is open again before the report is read. */
static void a_report_keeps_the_reason_of_a_retry(void **state) {
  (void)state;
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_transfer *transfer;
  const char *of_rdma = "";
  nic_fault("retry:1");
  assert_works(
      haul_write(t.remote, t.region, &(struct haul_piece){0, 0, LENGTH}, 1, NULL, &transfer));
  assert_works(haul_transfer_wait(transfer, haul_deadline_in(60 * S)));
  nic_fault("");
  await_rdma();
  assert_works(haul_transfer_report(transfer, &report));
  haul_transfer_release(transfer);
  assert_int_equal(report.retries, 1);
  assert_string_equal(report.paths[0].name, "tcp");
  for (size_t i = 1; i < report.path_count; i++)
    if (strcmp(report.paths[i].name, "rdma") == 0)
      of_rdma = report.paths[i].reason;
  assert_non_null(strstr(of_rdma, "does not acknowledge; connected again"));
}

/* The NIC takes no new queue pair for a while. */
static void a_failed_attempt_is_repeated(void **state) {
  (void)state;
  nic_double()->devices[0].errors.qp = ENOMEM;
  break_path("retry:1", "does not acknowledge");
  nanosleep(&(struct timespec){0, 500 * MS}, NULL);
  assert_int_equal(restored, 0);
  nic_double()->devices[0].errors.qp = 0;
  nic_fault("");
  await_rdma();
  assert_arrived(6);
}

static void a_peer_that_leaves_meanwhile_is_dropped(void **state) {
  (void)state;
  break_path("cut", "does not acknowledge");
  owner_kill(&t.owner);
  t.owner.pid = 0;
  haul_deadline until = haul_deadline_in(20 * S);
  while (haul_peer_status(t.peer) == 0 && haul_deadline_in(0) < until)
    nanosleep(&(struct timespec){0, 10 * MS}, NULL);
  assert_fails(HAUL_EPEER, haul_peer_status(t.peer));
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
  setenv("HAUL_RDMA_TIMEOUT", "14", 1); /* the NIC gives up after half a second */
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(a_broken_path_carries_bytes_again),
      TEST(it_breaks_again_and_again),
      TEST(an_owner_of_a_refused_write_connects_again),
      TEST(a_wire_that_stays_cut_delays_no_transfer),
      TEST(a_region_looked_up_meanwhile_uses_the_path_later),
      TEST(a_failed_attempt_is_repeated),
      TEST(a_report_keeps_the_reason_of_a_retry),
      TEST(a_peer_that_leaves_meanwhile_is_dropped),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
