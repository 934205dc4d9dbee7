/* SPDX-License-Identifier: MIT
 * Choosing the fastest of four variants by samples. */
#include "support/check.h"

#include "core/tune.h"

/* Nanoseconds per byte of each variant. */
static unsigned run(struct tune *tune, const int64_t *costs, unsigned turns) {
  unsigned other = 0;
  for (unsigned i = 0; i < turns; i++) {
    unsigned way = tune_next(tune), best = tune_best(tune);
    other += way != best;
    tune_record(tune, way, 1000, costs[way] * 1000);
  }
  return other;
}

static void the_default_is_used_without_samples(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  assert_int_equal(tune_best(&tune), 0);
}

static void the_default_wins_against_small_gains(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[] = {100, 95, 90, 89};
  run(&tune, costs, 200);
  assert_int_equal(tune_best(&tune), 0);
}

static void the_fastest_is_found_and_used(void **state) {
  (void)state;
  for (unsigned fastest = 0; fastest < TUNE_WAYS; fastest++) {
    struct tune tune = {.turns = 0};
    int64_t costs[TUNE_WAYS] = {9, 9, 9, 9};
    costs[fastest] = 7;
    run(&tune, costs, 16);
    assert_int_equal(tune_best(&tune), fastest);
    assert_true(run(&tune, costs, 640) <= 10); /* sampled again */
    assert_int_equal(tune_best(&tune), fastest);
  }
}

/* The first sample of each variant includes set-up. */
static void a_slow_first_sample_does_not_count(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t slow[] = {5, 5, 5000, 5}, costs[] = {5, 5, 4, 5};
  run(&tune, slow, 3);
  run(&tune, costs, 13);
  assert_int_equal(tune_best(&tune), 2);
}

static void outliers_hardly_count(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[] = {10, 6, 12, 14};
  run(&tune, costs, 16);
  tune_record(&tune, 1, 1000, INT64_MAX);
  assert_int_equal(tune_best(&tune), 1);
  tune_record(&tune, 3, 1000, 1);
  assert_int_equal(tune_best(&tune), 1);
}

static void a_change_is_noticed(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t before[] = {10, 8, 12, 14}, after[] = {10, 30, 12, 5};
  run(&tune, before, 16);
  run(&tune, after, 40);
  assert_int_equal(tune_best(&tune), 0); /* the fastest becomes slow */
  run(&tune, after, 64 * 4 * 20);
  assert_int_equal(tune_best(&tune), 3); /* and another becomes fast */
}

static void invalid_samples_are_ignored(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  tune_record(&tune, TUNE_WAYS, 1, 1);
  tune_record(&tune, 0, 0, 1);
  tune_record(&tune, 0, 1, 0);
  tune_record(&tune, 0, 1, -5);
  assert_int_equal(tune.ways[0].count, 0);
  tune_record(&tune, 0, UINT64_MAX, 1); /* almost 0 is not 0 */
  assert_int_equal(tune.ways[0].value, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_default_is_used_without_samples),
      cmocka_unit_test(the_default_wins_against_small_gains),
      cmocka_unit_test(the_fastest_is_found_and_used),
      cmocka_unit_test(a_slow_first_sample_does_not_count),
      cmocka_unit_test(outliers_hardly_count),
      cmocka_unit_test(a_change_is_noticed),
      cmocka_unit_test(invalid_samples_are_ignored),
  };
  return cmocka_run_group_tests_name("core/tune", tests, NULL, NULL);
}
