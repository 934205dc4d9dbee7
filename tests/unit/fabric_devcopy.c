/* SPDX-License-Identifier: MIT
 * fabric/devcopy.h over a mock engine whose copies end as the test says. */
#include "support/check.h"

#include <string.h>

#include "fabric/devcopy.h"

#include "core/error.h"

static struct {
  unsigned starts, cancels;
  unsigned fail_start; /* the n-th start fails; 0: none */
  int result;          /* what copy_poll returns: 1 while it runs */
  bool needs_bounce, gathers;
  uint32_t offered;  /* further segments, with the last start */
  uint64_t gathered; /* their bytes, in all starts */
  struct copy_segment last;
  uint64_t from_offsets[8], to_offsets[8], lengths[8];
} engine;

static int mock_start(struct copy *copy) {
  if (engine.needs_bounce && !copy->through[0])
    return 1;
  if (++engine.starts == engine.fail_start)
    return error_set(HAUL_ELIMIT, 0, "mock", NULL, "no start");
  unsigned i = engine.starts - 1;
  engine.from_offsets[i] = copy->from_offset;
  engine.to_offsets[i] = copy->to_offset;
  engine.lengths[i] = copy->length;
  engine.offered = copy->more_count;
  copy->gathers = engine.gathers;
  for (uint32_t more = 0; more < copy->more_count && engine.gathers; more++)
    engine.gathered += copy->more[more].length, engine.last = copy->more[more];
  return 0;
}

static int mock_poll(struct copy *copy) {
  (void)copy;
  return engine.result < 0 ? error_set(engine.result, 0, "mock", NULL, "no copy") : engine.result;
}

static void mock_cancel(struct copy *copy) {
  (void)copy;
  engine.cancels++;
}

static const struct provider mock = {
    .name = "mock",
    .copy_start = mock_start,
    .copy_poll = mock_poll,
    .copy_cancel = mock_cancel,
    .wakes = true,
};

static const struct provider gatherer = {
    .name = "gatherer",
    .copy_start = mock_start,
    .copy_poll = mock_poll,
    .copy_cancel = mock_cancel,
    .wakes = true,
    .gathers = true,
};

static const uint64_t lengths[] = {10, 20, 30};

static struct copy_segment next_segment(const struct devcopy *copy, uint32_t index,
                                        uint64_t before) {
  (void)copy;
  return (struct copy_segment){
      .to_offset = before, .from_offset = 1000 * (index + 1), .length = lengths[index]};
}

static struct devcopy make(void) {
  memset(&engine, 0, sizeof engine);
  return (struct devcopy){.engine = &mock, .count = 3, .segment = next_segment};
}

static void segments_are_copied_in_order(void **state) {
  (void)state;
  struct devcopy copy = make();
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 3);
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(engine.from_offsets[i], 1000 * (i + 1));
    assert_int_equal(engine.lengths[i], lengths[i]);
  }
  assert_int_equal(engine.to_offsets[2], 30);
  assert_int_equal(copy.copied, 60);
}

static void each_started_segment_is_fenced_once(void **state) {
  (void)state;
  struct devcopy copy = make();
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.cancels, 3);
  devcopy_cancel(&copy);
  assert_int_equal(engine.cancels, 3);
}

static void one_segment_is_in_flight_at_a_time(void **state) {
  (void)state;
  struct devcopy copy = make();
  engine.result = 1;
  assert_int_equal(devcopy_poll(&copy), 1);
  assert_int_equal(devcopy_poll(&copy), 1);
  assert_int_equal(engine.starts, 1);
  assert_true(copy.in_flight);
  devcopy_cancel(&copy);
  assert_int_equal(engine.cancels, 1);
  assert_false(copy.in_flight);
}

static void a_long_copy_wakes_the_loop(void **state) {
  (void)state;
  struct devcopy copy = make();
  engine.result = 1;
  assert_int_equal(devcopy_poll(&copy), 1);
  assert_true(devcopy_is_polled(&copy));
  copy.started -= DEVCOPY_POLLED;
  assert_int_equal(devcopy_poll(&copy), 1);
  assert_true(copy.copy.wakes);
  assert_false(devcopy_is_polled(&copy));
  devcopy_cancel(&copy);
}

static void a_failed_copy_is_fenced_and_has_a_detail(void **state) {
  (void)state;
  struct devcopy copy = make();
  engine.result = HAUL_ESYSTEM;
  assert_fails(HAUL_ESYSTEM, devcopy_poll(&copy));
  assert_string_equal(haul_error_last()->object, "mock");
  assert_int_equal(engine.cancels, 1);
}

static void a_failed_start_leaves_nothing_in_flight(void **state) {
  (void)state;
  struct devcopy copy = make();
  engine.fail_start = 2;
  assert_fails(HAUL_ELIMIT, devcopy_poll(&copy));
  assert_int_equal(engine.cancels, 1); /* the first segment's fence */
  assert_false(copy.in_flight);
}

static void an_engine_may_require_bounce_buffers(void **state) {
  (void)state;
  struct devcopy copy = make();
  struct memory buffers[2];
  engine.needs_bounce = true;
  assert_int_equal(devcopy_poll(&copy), DEVCOPY_NEEDS_BOUNCE);
  assert_false(copy.in_flight);
  copy.bounce[0] = &buffers[0];
  copy.bounce[1] = &buffers[1];
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 3);
}

static void an_engine_may_gather_segments(void **state) {
  (void)state;
  struct devcopy copy = make();
  copy.engine = &gatherer;
  engine.gathers = true;
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 1);
  assert_int_equal(engine.offered, 2);
  assert_int_equal(engine.gathered, 50);
  assert_int_equal(engine.last.to_offset, 30);
  assert_int_equal(engine.last.from_offset, 3000);
  assert_int_equal(copy.copied, 60);
  assert_int_equal(copy.index, 3);
}

static void an_engine_may_leave_what_is_offered(void **state) {
  (void)state;
  struct devcopy copy = make();
  copy.engine = &gatherer;
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 3);
  assert_int_equal(engine.to_offsets[2], 30);
  assert_int_equal(copy.copied, 60);
}

static struct copy_segment small_segment(const struct devcopy *copy, uint32_t index,
                                         uint64_t before) {
  (void)copy;
  return (struct copy_segment){.to_offset = before, .from_offset = index, .length = 1};
}

static struct copy_segment large_segment(const struct devcopy *copy, uint32_t index,
                                         uint64_t before) {
  (void)copy;
  return (struct copy_segment){
      .to_offset = before, .from_offset = index, .length = COPY_GROUP_BYTES / 2};
}

static void a_group_has_bounds(void **state) {
  (void)state;
  struct devcopy copy = make();
  copy.engine = &gatherer;
  engine.gathers = true;
  copy.count = 3 * DEVCOPY_GROUP;
  copy.segment = small_segment;
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 3);
  assert_int_equal(copy.copied, 3 * DEVCOPY_GROUP);
  copy = make();
  copy.engine = &gatherer;
  engine.gathers = true;
  copy.count = 4;
  copy.segment = large_segment;
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 2);
  assert_int_equal(copy.copied, 2 * COPY_GROUP_BYTES);
}

static void a_canceled_group_is_fenced(void **state) {
  (void)state;
  struct devcopy copy = make();
  copy.engine = &gatherer;
  engine.gathers = true;
  engine.result = 1;
  assert_int_equal(devcopy_poll(&copy), 1);
  devcopy_cancel(&copy);
  assert_int_equal(engine.cancels, 1);
  assert_null(copy.more);
  devcopy_cancel(&copy);
  assert_int_equal(engine.cancels, 1);
}

static void a_copy_without_segments_has_ended(void **state) {
  (void)state;
  struct devcopy copy = make();
  copy.count = 0;
  assert_int_equal(devcopy_poll(&copy), 0);
  assert_int_equal(engine.starts, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(segments_are_copied_in_order),
      cmocka_unit_test(each_started_segment_is_fenced_once),
      cmocka_unit_test(one_segment_is_in_flight_at_a_time),
      cmocka_unit_test(a_long_copy_wakes_the_loop),
      cmocka_unit_test(a_failed_copy_is_fenced_and_has_a_detail),
      cmocka_unit_test(a_failed_start_leaves_nothing_in_flight),
      cmocka_unit_test(an_engine_may_require_bounce_buffers),
      cmocka_unit_test(an_engine_may_gather_segments),
      cmocka_unit_test(an_engine_may_leave_what_is_offered),
      cmocka_unit_test(a_group_has_bounds),
      cmocka_unit_test(a_canceled_group_is_fenced),
      cmocka_unit_test(a_copy_without_segments_has_ended),
  };
  return cmocka_run_group_tests_name("devcopy", tests, NULL, NULL);
}
