/* SPDX-License-Identifier: MIT
 * A slot of the command's ring is settled by how its transfer ended, whenever it ended. The library
 * is a double: it says the results that a test lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "command.h"
#include "common/fail.h"
#include "common/process.h"
#include "common/ring.h"

#define FAILED 77 /* the double's exit status of a failure */

static struct {
  int waited, tested; /* what the calls return: the first two waits, and each test */
  int again;
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

static void a_transfer_that_ends_just_after_a_wait_has_ended(void **state) {
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

static void one_that_fails_just_after_a_wait_has_failed(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = HAUL_EPEER;
  assert_int_equal(settle(&ring), FAILED);
  assert_int_equal(script.waits, 1);
  assert_int_equal(ring.tally.transfers, 0);
}

static void one_that_is_still_on_its_way_is_waited_for_again(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = 1;
  script.again = 0;
  assert_int_equal(settle(&ring), EXIT_DONE);
  assert_int_equal(script.waits, 2);
}

static void its_own_deadline_is_a_failure(void **state) {
  struct ring ring;
  (void)state;
  script.waited = HAUL_ETIMEDOUT;
  script.tested = HAUL_ETIMEDOUT;
  assert_int_equal(settle(&ring), FAILED);
}

static void an_interruption_ends_the_wait(void **state) {
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
      cmocka_unit_test(a_transfer_that_ends_just_after_a_wait_has_ended),
      cmocka_unit_test(one_that_fails_just_after_a_wait_has_failed),
      cmocka_unit_test(one_that_is_still_on_its_way_is_waited_for_again),
      cmocka_unit_test(its_own_deadline_is_a_failure),
      cmocka_unit_test(an_interruption_ends_the_wait),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
