/* SPDX-License-Identifier: MIT
 * Settling a slot of the ring reports the result of its transfer, also if it ends just after a
 * wait. The library is a mock that returns scripted results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "command.h"
#include "common/fail.h"
#include "common/process.h"
#include "common/ring.h"

#define FAILED 77 /* exit status of the mocked fail functions */

static struct {
  int waited, again; /* results of the first wait and of later ones */
  int tested;        /* result of each haul_transfer_test */
  unsigned waits, tests;
  bool interrupts, released;
} script;

int haul_transfer_wait(haul_transfer *transfer, haul_deadline until) {
  (void)transfer, (void)until;
  return script.waits++ == 0 ? script.waited : script.again;
}

int haul_transfer_test(haul_transfer *transfer) {
  (void)transfer;
  script.tests++;
  return script.tested;
}

int haul_transfer_report(haul_transfer *transfer, struct haul_report *report) {
  (void)transfer;
  report->bytes = 8;
  return 0;
}

void haul_transfer_release(haul_transfer *transfer) {
  (void)transfer;
  script.released = true;
}

int haul_transfer_cancel(haul_transfer *transfer) {
  (void)transfer;
  return 0;
}

haul_deadline haul_deadline_in(int64_t ns) {
  return ns;
}

int haul_region_alloc(haul_node *node, struct haul_place place, size_t length, unsigned flags,
                      haul_region **region) {
  (void)node, (void)place, (void)length, (void)flags, (void)region;
  return 0;
}

void haul_region_release(haul_region *region) {
  (void)region;
}

int haul_write(haul_remote *to, haul_region *from, const struct haul_piece *pieces, size_t count,
               const struct haul_transfer_options *options, haul_transfer **transfer) {
  (void)to, (void)from, (void)pieces, (void)count, (void)options, (void)transfer;
  return 0;
}

int haul_read(haul_region *to, haul_remote *from, const struct haul_piece *pieces, size_t count,
              const struct haul_transfer_options *options, haul_transfer **transfer) {
  (void)to, (void)from, (void)pieces, (void)count, (void)options, (void)transfer;
  return 0;
}

int fail_library(const char *format, ...) {
  (void)format;
  return FAILED;
}

int fail_because(const char *hint, const char *format, ...) {
  (void)hint, (void)format;
  return FAILED;
}

void fail_leaves(const char *format, ...) {
  (void)format;
}

const struct haul_error *haul_error_last(void) {
  static const struct haul_error failure = {.code = HAUL_EPEER};
  return &failure;
}

bool interrupted(void) {
  return script.interrupts;
}

void tally_begin(struct tally *tally) {
  (void)tally;
}

void tally_add(struct tally *tally, const struct haul_report *report) {
  tally->transfers++;
  (void)report;
}

void progress_update(struct progress *progress, uint64_t done) {
  (void)progress, (void)done;
}

void progress_hide(void) {}

static int settle(struct ring *ring) {
  static char transfer;
  *ring = (struct ring){.operation = HAUL_OP_WRITE, .target = "peer/name"};
  ring->slots[0].transfer = (haul_transfer *)&transfer;
  script.waits = script.tests = 0;
  script.released = false;
  return ring_settle(ring, &ring->slots[0]);
}

static void a_transfer_ending_after_a_wait_succeeds(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = 0;
  script.again = HAUL_ETIMEDOUT;
  assert_int_equal(settle(&ring), EXIT_DONE);
  assert_true(script.released);
  assert_int_equal(ring.done, 8);
  assert_int_equal(ring.tally.transfers, 1);
}

static void a_transfer_failing_after_a_wait_fails(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = HAUL_EPEER;
  assert_int_equal(settle(&ring), FAILED);
  assert_int_equal(script.waits, 1);
  assert_int_equal(ring.tally.transfers, 0);
}

static void a_transfer_in_flight_is_waited_for_again(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = 1;
  script.again = 0;
  assert_int_equal(settle(&ring), EXIT_DONE);
  assert_int_equal(script.waits, 2);
}

static void a_passed_deadline_fails(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = HAUL_ETIMEDOUT;
  assert_int_equal(settle(&ring), FAILED);
}

static void a_signal_ends_the_wait(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = 1;
  script.interrupts = true;
  assert_int_equal(settle(&ring), FAILED);
  assert_int_equal(script.waits, 1);
  assert_false(script.released); /* ring_close cancels it */
  script.interrupts = false;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_transfer_ending_after_a_wait_succeeds),
      cmocka_unit_test(a_transfer_failing_after_a_wait_fails),
      cmocka_unit_test(a_transfer_in_flight_is_waited_for_again),
      cmocka_unit_test(a_passed_deadline_fails),
      cmocka_unit_test(a_signal_ends_the_wait),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
