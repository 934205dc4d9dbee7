/* SPDX-License-Identifier: MIT
 * How large the slices are: of one size where a pipeline is full or does not matter, and else of
 * the size that was fastest. */
#include "support/check.h"

#include "transfer/transfer.h"

#define KIB   ((uint64_t)1 << 10)
#define WHOLE ((uint64_t)WORK_BYTES_MAX)

/* Where it matters: from two of the smallest slices on, up to what fills the pipeline. */
static const uint64_t matter[] = {256 * KIB, 256 * KIB + 1, WHOLE, 8 * WHOLE - 1};
static const uint64_t matter_not[] = {0, 1, 64 * KIB, 256 * KIB - 1, 8 * WHOLE, UINT64_MAX};

/* A byte in slices of each size takes so many nanoseconds; returns the size of the last one. */
static uint32_t transfers(struct tune *tune, const int64_t *costs, unsigned count) {
  struct slice slice = {.bytes = 0};
  for (unsigned i = 0; i < count; i++) {
    slice = slice_choose(tune, WHOLE, true);
    tune_record(slice.of, slice.way, 1000, costs[slice.way] * 1000);
  }
  return slice.bytes;
}

static void nothing_is_learned_where_it_does_not_matter(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[TUNE_WAYS] = {9, 9, 9, 4};
  transfers(&tune, costs, 100);
  uint32_t turns = tune.turns;
  for (size_t i = 0; i < COUNT(matter_not); i++) {
    struct slice slice = slice_choose(&tune, matter_not[i], true);
    assert_int_equal(slice.bytes, WHOLE);
    assert_null(slice.of);
    assert_int_equal(slice_best(&tune, matter_not[i]), WHOLE);
  }
  assert_int_equal(tune.turns, turns);
}

static void slices_are_whole_before_anything_is_known(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  for (size_t i = 0; i < COUNT(matter); i++) {
    assert_int_equal(slice_best(&tune, matter[i]), WHOLE);
    assert_int_equal(slice_choose(&tune, matter[i], false).bytes, WHOLE);
  }
}

/* Each size four times: 1 MiB, and half of it, down to 128 KiB. */
static void each_size_is_tried_first(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[TUNE_WAYS] = {9, 9, 9, 9};
  unsigned tried[TUNE_WAYS] = {0};
  for (unsigned i = 0; i < TUNE_WAYS * MEASURE_FIRST; i++) {
    struct slice slice = slice_choose(&tune, WHOLE, true);
    assert_ptr_equal(slice.of, &tune);
    assert_int_equal(slice.bytes, WHOLE >> slice.way);
    tried[slice.way]++;
    tune_record(slice.of, slice.way, 1000, costs[slice.way] * 1000);
  }
  for (unsigned way = 0; way < TUNE_WAYS; way++)
    assert_int_equal(tried[way], MEASURE_FIRST);
  assert_int_equal(WHOLE >> (TUNE_WAYS - 1), 128 * KIB);
}

static void the_fastest_size_is_taken_then(void **state) {
  (void)state;
  for (unsigned fastest = 0; fastest < TUNE_WAYS; fastest++) {
    struct tune tune = {.turns = 0};
    int64_t costs[TUNE_WAYS] = {9, 9, 9, 9};
    costs[fastest] = 6;
    assert_int_equal(transfers(&tune, costs, TUNE_WAYS * MEASURE_FIRST + 1), WHOLE >> fastest);
    for (size_t i = 0; i < COUNT(matter); i++)
      assert_int_equal(slice_best(&tune, matter[i]), WHOLE >> fastest);
  }
}

/* What will not tell, as it sums its bytes on the way, tries nothing out. */
static void who_does_not_tell_takes_the_fastest_and_no_turn(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[TUNE_WAYS] = {9, 9, 6, 9};
  transfers(&tune, costs, TUNE_WAYS * MEASURE_FIRST);
  uint32_t turns = tune.turns;
  for (unsigned i = 0; i < 200; i++) {
    struct slice slice = slice_choose(&tune, WHOLE, false);
    assert_null(slice.of);
    assert_int_equal(slice.bytes, WHOLE >> 2);
  }
  assert_int_equal(tune.turns, turns);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_is_learned_where_it_does_not_matter),
      cmocka_unit_test(slices_are_whole_before_anything_is_known),
      cmocka_unit_test(each_size_is_tried_first),
      cmocka_unit_test(the_fastest_size_is_taken_then),
      cmocka_unit_test(who_does_not_tell_takes_the_fastest_and_no_turn),
  };
  return cmocka_run_group_tests_name("transfer/slice", tests, NULL, NULL);
}
