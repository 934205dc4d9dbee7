/* SPDX-License-Identifier: MIT
 * Whether a busy rail of one host splices or copies. The clock is the test's. */
#include "support/check.h"

#include "fabric/tcp/rails.h"

#define MS INT64_C(1000000)

/* Sends for `ms` at a rate for each way, in bytes a millisecond, a call each millisecond. Returns
 * for how many of these it copied. */
static int run(struct splice_trial *trial, int64_t *now, int ms, uint64_t spliced,
               uint64_t copied) {
  int copies = 0;
  for (int i = 0; i < ms; i++) {
    copies += trial->copies;
    *now += MS;
    splice_trial_count(trial, trial->copies ? copied : spliced, *now);
  }
  return copies;
}

static void it_splices_first_and_copies_on_trial(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  assert_int_equal(run(&trial, &now, 190, 1000, 1000), 0);
  run(&trial, &now, 20, 1000, 1000);
  assert_true(trial.copies);
  assert_false(trial.copy_wins); /* nothing is known yet */
}

static void a_slow_start_does_not_decide(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  run(&trial, &now, 100, 300, 1000); /* untouched memory */
  run(&trial, &now, 300, 1000, 1000);
  assert_false(trial.copy_wins);
}

static void a_small_gain_is_not_worth_the_processor_time(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  int copies = run(&trial, &now, 20000, 1000, 1050);
  assert_false(trial.copy_wins);
  assert_in_range(copies, 100, 20000 / 20);
}

static void copies_win_where_they_are_faster(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  int copies = run(&trial, &now, 20000, 1000, 1500);
  assert_true(trial.copy_wins);
  assert_in_range(copies, 20000 - 20000 / 20, 20000 - 100);
}

static void a_change_of_load_is_noticed(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  run(&trial, &now, 1000, 1000, 1500);
  assert_true(trial.copy_wins);
  run(&trial, &now, 5000, 900, 600); /* another program takes a processor */
  assert_false(trial.copy_wins);
  run(&trial, &now, 10000, 1000, 1500);
  assert_true(trial.copy_wins);
}

static void the_first_half_of_a_trial_does_not_count(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  for (int i = 0; i < 500; i++) { /* after a switch nothing passes for 40 ms */
    bool before = trial.copies;
    run(&trial, &now, 1, 1000, 1500);
    if (trial.copies != before)
      now += 40 * MS;
  }
  assert_true(trial.copy_wins);
}

static void a_trial_begins_anew_when_there_was_no_work(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  for (int i = 0; i < 100; i++) {
    run(&trial, &now, 90, 1000, 1500);
    splice_trial_abandon(&trial); /* by a request when no other is unanswered */
    now += 1000 * MS;
  }
  assert_false(trial.copies);
}

/* A burst after a steady stream would otherwise keep the way that was being tried. */
static void an_abandoned_trial_of_the_slower_way_ends(void **state) {
  (void)state;
  struct splice_trial trial = {0};
  int64_t now = MS;
  while (!trial.copies)
    run(&trial, &now, 1, 1000, 500);
  splice_trial_abandon(&trial);
  assert_false(trial.copies);
  run(&trial, &now, 90, 1000, 500);
  assert_false(trial.copies);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_splices_first_and_copies_on_trial),
      cmocka_unit_test(a_slow_start_does_not_decide),
      cmocka_unit_test(a_small_gain_is_not_worth_the_processor_time),
      cmocka_unit_test(copies_win_where_they_are_faster),
      cmocka_unit_test(a_change_of_load_is_noticed),
      cmocka_unit_test(the_first_half_of_a_trial_does_not_count),
      cmocka_unit_test(a_trial_begins_anew_when_there_was_no_work),
      cmocka_unit_test(an_abandoned_trial_of_the_slower_way_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
