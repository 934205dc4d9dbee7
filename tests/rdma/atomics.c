/* SPDX-License-Identifier: MIT
 * Atomic operations by the capabilities of the two NICs: the chosen path and the report's reasons.
 * An atomic that was posted to a NIC is never repeated, whatever fails. */
#include "support/check.h"

#include <string.h>
#include <time.h>

#include "support/nic.h"
#include "support/pair.h"
#include "support/seams.h"

#define LENGTH 65536u
#define BOUND  (10 * S)

static struct pair t;
static unsigned descriptors;

/* With faults of the NICs (doubles/ibverbs-moving/door.h). */
static void begin(const char *own, const char *theirs) {
  nic_fault(own);
  nic_fault_of_children(theirs);
  pair_open(&t, NULL, LENGTH);
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

static int add_to(struct haul_region *region, const char *only, struct haul_report *report) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_transfer *transfer;
  options.only = only;
  options.deadline = haul_deadline_in(BOUND);
  int code = haul_fetch_add(region, 0, t.remote, 0, 1, &options, &transfer);
  if (code)
    return code;
  code = haul_transfer_wait(transfer, haul_deadline_in(2 * BOUND));
  *report = (struct haul_report)HAUL_REPORT_INIT;
  haul_transfer_report(transfer, report);
  haul_transfer_release(transfer);
  return code;
}

static int add(const char *only, struct haul_report *report) {
  return add_to(t.region, only, report);
}

static void set_number(uint64_t number) {
  memcpy(haul_region_address(t.region), &number, 8);
  assert_works(haul_write(t.remote, t.region, &(struct haul_piece){0, 0, 8}, 1, NULL, NULL));
}

static uint64_t number(void) {
  uint64_t got;
  assert_works(haul_read(t.region, t.remote, &(struct haul_piece){8, 0, 8}, 1, NULL, NULL));
  memcpy(&got, (char *)haul_region_address(t.region) + 8, 8);
  return got;
}

/* Another path was taken, and the report has this reason for rdma. */
static void assert_reason(const struct haul_report *report, const char *reason) {
  assert_string_equal(report->paths[0].name, "tcp");
  for (size_t i = 1; i < report->path_count; i++)
    if (strcmp(report->paths[i].name, "rdma") == 0 && strstr(report->paths[i].reason, reason))
      return;
  fail_msg("the report does not say of rdma '%s'", reason);
}

static void hca_atomics_are_used_on_request(void **state) {
  (void)state;
  struct haul_report report;
  begin("", "");
  set_number(4);
  assert_works(add(NULL, &report));
  assert_reason(&report,
                "atomic only among its own operations (IBV_ATOMIC_HCA); set only = \"rdma\"");
  assert_works(add("rdma", &report));
  assert_string_equal(report.paths[0].name, "rdma");
  assert_int_equal(report.paths[0].zero_copy, 1);
  assert_true(number() == 6);
}

/* Only the owner's NIC counts. */
static void global_atomics_are_used(void **state) {
  (void)state;
  struct haul_report report;
  begin("", "global");
  set_number(4);
  assert_works(add(NULL, &report));
  assert_string_equal(report.paths[0].name, "rdma");
  assert_works(add("tcp", &report));
  assert_true(number() == 6);
}

static void global_atomics_of_the_client_do_not_count(void **state) {
  (void)state;
  struct haul_report report;
  begin("global", "");
  assert_works(add(NULL, &report));
  assert_string_equal(report.paths[0].name, "tcp");
}

static void a_remote_nic_without_atomics_closes_the_path(void **state) {
  (void)state;
  struct haul_report report;
  begin("", "noatomics");
  assert_works(add(NULL, &report));
  assert_reason(&report, "the peer's NIC has no atomics");
  assert_fails(HAUL_ENOPATH, add("rdma", &report));
  assert_works(haul_write(t.remote, t.region, &(struct haul_piece){0, 0, 8}, 1, NULL, NULL));
}

static void a_local_nic_without_atomics_closes_the_path(void **state) {
  (void)state;
  struct haul_report report;
  begin("noatomics", "global");
  assert_works(add(NULL, &report));
  assert_reason(&report, "this side's NIC has no atomics");
  assert_fails(HAUL_ENOPATH, add("rdma", &report));
}

/* The initial state of a test. */
struct fault {
  const char *words, *only;
  unsigned times; /* that the atomic takes place */
};

/* The atomic is not repeated, and the next one goes over tcp. */
static void check_in_doubt(void **state) {
  const struct fault *fault = *state;
  unsigned times = fault->times;
  struct haul_report report;
  begin("", "global");
  set_number(4);
  nic_fault(fault->words);
  assert_fails(HAUL_EPATH, add(fault->only, &report));
  assert_non_null(strstr(haul_error_last()->text, "may or may not have taken place"));
  assert_int_equal(report.retries, 0);
  assert_true(number() == 4 + times);
  assert_works(add(NULL, &report));
  assert_string_equal(report.paths[0].name, "tcp");
  assert_true(number() == 5 + times);
  assert_works(haul_peer_status(t.peer));
}

static void a_refused_key_is_stale(void **state) {
  (void)state;
  struct haul_report report;
  begin("", "global");
  set_number(4);
  nic_fault("access:1");
  assert_fails(HAUL_ESTALE, add(NULL, &report));
  assert_true(number() == 4);
}

/* Nothing was posted, so another path may take it. */
static void an_atomic_that_was_not_posted_takes_another_path(void **state) {
  (void)state;
  struct haul_report report;
  begin("", "global");
  set_number(4);
  assert_works(add(NULL, &report));
  assert_string_equal(report.paths[0].name, "rdma");
  nic_fault("memlock:1");
  struct haul_region *wrapped = region_make(t.node, KIND_WRAPPED, LENGTH);
  assert_works(add_to(wrapped, NULL, &report));
  assert_reason(&report, "the memory cannot be pinned");
  assert_int_equal(report.retries, 1);
  region_drop(wrapped, KIND_WRAPPED);
  assert_true(number() == 6);
}

static void a_killed_owner_is_reported(void **state) {
  (void)state;
  struct haul_transfer *transfer;
  begin("", "global");
  nic_fault("late:50000"); /* microseconds */
  assert_works(haul_fetch_add(t.region, 0, t.remote, 0, 1, NULL, &transfer));
  owner_kill(&t.owner);
  t.owner.pid = 0;
  int code = haul_transfer_wait(transfer, haul_deadline_in(BOUND));
  assert_true(code == 0 || code == HAUL_EPEER || code == HAUL_EPATH);
  haul_transfer_release(transfer);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  if (!nic_is_there())
    return 77;
  seams_no_unix_sockets();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define CASE(name, test, ...)                                                                      \
  {                                                                                                \
    name, test, set_up, tear_down, &(struct fault) {                                               \
      __VA_ARGS__                                                                                  \
    }                                                                                              \
  }
  const struct CMUnitTest tests[] = {
      TEST(hca_atomics_are_used_on_request),
      TEST(global_atomics_are_used),
      TEST(global_atomics_of_the_client_do_not_count),
      TEST(a_remote_nic_without_atomics_closes_the_path),
      TEST(a_local_nic_without_atomics_closes_the_path),
      CASE("not repeated: unacknowledged", check_in_doubt, "retry:1", NULL, 0),
      CASE("not repeated: unacknowledged, only rdma", check_in_doubt, "retry:1", "rdma", 0),
      CASE("not repeated: completion lost", check_in_doubt, "overrun:1", NULL, 1),
      CASE("not repeated: device removed", check_in_doubt, "vanish:1", NULL, 0),
      TEST(a_refused_key_is_stale),
      TEST(an_atomic_that_was_not_posted_takes_another_path),
      TEST(a_killed_owner_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
