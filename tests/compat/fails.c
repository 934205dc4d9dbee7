/* SPDX-License-Identifier: MIT
 * Failing tests must fail, and their code must not continue after a failure: each test here is
 * wrong on purpose. Built with the replacement, and with cmocka if installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int went_on, torn_down;

#define FAILS(name, wrong)                                                                         \
  static void name(void **state) {                                                                 \
    (void)state;                                                                                   \
    wrong;                                                                                         \
    went_on++;                                                                                     \
  }

FAILS(is_true, assert_true(went_on < 0))
FAILS(is_false, assert_false(went_on == 0))
FAILS(is_null, assert_null(state))
FAILS(is_not_null, assert_non_null(*state))
FAILS(is_equal, assert_int_equal(1, -1))
FAILS(is_not_equal, assert_int_not_equal(-1, -1))
FAILS(is_same_place, assert_ptr_equal(state, NULL))
FAILS(is_other_place, assert_ptr_not_equal(state, state))
FAILS(is_below, assert_in_range(0, 1, 3))
FAILS(is_above, assert_in_range(4, 1, 3))
FAILS(is_same_text, assert_string_equal("a", "ab"))
FAILS(is_other_text, assert_string_not_equal("a", "a"))
FAILS(is_same_bytes, assert_memory_equal("aab", "aac", 3))
FAILS(are_other_bytes, assert_memory_not_equal("aab", "aac", 2))
FAILS(says_so, fail())
FAILS(says_why, fail_msg("%d of %s", 1, "them"))

static void holds(void **state) {
  assert_true(1);
  assert_int_equal(-1, -1L);
  assert_in_range(3, 1, 3);
  assert_memory_equal("aab", "aac", 2);
  assert_null(*state);
}

static void holds_with_its_state(void **state) {
  assert_string_equal(*state, "given");
}

static void is_skipped(void **state) {
  (void)state;
  skip();
  went_on++;
}

static int fixture_fails(void **state) {
  (void)state;
  return -1;
}

static int tear_down(void **state) {
  (void)state;
  torn_down++;
  return 0;
}

static int unexpected;

static void expect(int failed, int wanted, const char *what) {
  if (failed == wanted)
    return;
  fprintf(stderr, "WRONG: %s: %d failed, not %d\n", what, failed, wanted);
  unexpected++;
}

int main(void) {
  const struct CMUnitTest wrong[] = {
      cmocka_unit_test(is_true),       cmocka_unit_test(is_false),
      cmocka_unit_test(is_null),       cmocka_unit_test(is_not_null),
      cmocka_unit_test(is_equal),      cmocka_unit_test(is_not_equal),
      cmocka_unit_test(is_same_place), cmocka_unit_test(is_other_place),
      cmocka_unit_test(is_below),      cmocka_unit_test(is_above),
      cmocka_unit_test(is_same_text),  cmocka_unit_test(is_other_text),
      cmocka_unit_test(is_same_bytes), cmocka_unit_test(are_other_bytes),
      cmocka_unit_test(says_so),       cmocka_unit_test(says_why),
  };
  const struct CMUnitTest right[] = {
      cmocka_unit_test(holds),
      cmocka_unit_test(is_skipped),
      cmocka_unit_test_prestate_setup_teardown(holds_with_its_state, NULL, NULL, "given"),
  };
  const struct CMUnitTest torn[] = {
      cmocka_unit_test_teardown(is_equal, tear_down),
      cmocka_unit_test_setup_teardown(holds, NULL, tear_down),
  };
  const struct CMUnitTest up[] = {cmocka_unit_test_setup(is_skipped, fixture_fails)};
  const struct CMUnitTest down[] = {cmocka_unit_test_teardown(holds, fixture_fails)};
  const int wrong_count = sizeof wrong / sizeof wrong[0];
  expect(cmocka_run_group_tests(wrong, NULL, NULL), wrong_count, "what is wrong");
  expect(cmocka_run_group_tests(right, NULL, NULL), 0, "what holds");
  expect(cmocka_run_group_tests_name("torn", torn, NULL, NULL), 1, "one of two");
  expect(torn_down, 2, "tear-downs after a failure too");
  expect(cmocka_run_group_tests(up, NULL, NULL), 1, "a failed set-up");
  expect(cmocka_run_group_tests(down, NULL, NULL), 1, "a failed tear-down");
  expect(cmocka_run_group_tests(right, fixture_fails, NULL) > 0, 1, "a group's failed set-up");
  expect(went_on, 0, "code behind a failure ran");
  return unexpected > 0;
}
