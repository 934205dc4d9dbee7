/* SPDX-License-Identifier: MIT
 * The calls of cmocka that the suites use, for hosts without cmocka. A crash ends the program,
 * while cmocka continues with the next test. */
#ifndef HAUL_COMPAT_CMOCKA_H
#define HAUL_COMPAT_CMOCKA_H

#include <stddef.h>
#include <stdint.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state); /* 0: success */

struct CMUnitTest {
  const char *name;
  CMUnitTestFunction test_func;
  CMFixtureFunction setup_func;
  CMFixtureFunction teardown_func;
  void *initial_state;
};

#define cmocka_unit_test(test)                                                                     \
  { #test, test, NULL, NULL, NULL }
#define cmocka_unit_test_setup(test, up)                                                           \
  { #test, test, up, NULL, NULL }
#define cmocka_unit_test_teardown(test, down)                                                      \
  { #test, test, NULL, down, NULL }
#define cmocka_unit_test_setup_teardown(test, up, down)                                            \
  { #test, test, up, down, NULL }
#define cmocka_unit_test_prestate_setup_teardown(test, up, down, state)                            \
  { #test, test, up, down, state }

/* The number of failed tests; all if the group's set-up failed. */
#define cmocka_run_group_tests(tests, up, down)                                                    \
  _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), up, down)
#define cmocka_run_group_tests_name(name, tests, up, down)                                         \
  _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof((tests)[0]), up, down)

int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                            CMFixtureFunction up, CMFixtureFunction down);

/* Ends the test of this thread; in another thread or outside a test it ends the program. */
_Noreturn void _fail(const char *file, int line);
_Noreturn void _skip(const char *file, int line);

void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define skip() _skip(__FILE__, __LINE__)
#define fail() _fail(__FILE__, __LINE__)
#define fail_msg(...)                                                                              \
  do {                                                                                             \
    print_error(__VA_ARGS__);                                                                      \
    print_error("\n");                                                                             \
    fail();                                                                                        \
  } while (0)

/* Assertions: failed ones print both sides and the place, and end the test */

void compat_true(int holds, const char *text, const char *file, int line);
void compat_equal(uintmax_t left, uintmax_t right, int wanted, const char *file, int line);
void compat_same_text(const char *left, const char *right, int wanted, const char *file, int line);
void compat_same_bytes(const void *left, const void *right, size_t length, int wanted,
                       const char *file, int line);
void compat_within(uintmax_t value, uintmax_t lowest, uintmax_t highest, const char *file,
                   int line);

#define assert_true(c)     compat_true(!!(c), #c, __FILE__, __LINE__)
#define assert_false(c)    compat_true(!(c), "not " #c, __FILE__, __LINE__)
#define assert_non_null(c) compat_true((c) != NULL, #c " is not NULL", __FILE__, __LINE__)
#define assert_null(c)     compat_true((c) == NULL, #c " is NULL", __FILE__, __LINE__)

#define assert_int_equal(a, b) compat_equal((uintmax_t)(a), (uintmax_t)(b), 1, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)                                                                 \
  compat_equal((uintmax_t)(a), (uintmax_t)(b), 0, __FILE__, __LINE__)
#define assert_ptr_equal(a, b) compat_equal((uintptr_t)(a), (uintptr_t)(b), 1, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b)                                                                 \
  compat_equal((uintptr_t)(a), (uintptr_t)(b), 0, __FILE__, __LINE__)
#define assert_in_range(a, lowest, highest)                                                        \
  compat_within((uintmax_t)(a), (uintmax_t)(lowest), (uintmax_t)(highest), __FILE__, __LINE__)

#define assert_string_equal(a, b)             compat_same_text(a, b, 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b)         compat_same_text(a, b, 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, length)     compat_same_bytes(a, b, length, 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, length) compat_same_bytes(a, b, length, 0, __FILE__, __LINE__)

#endif
