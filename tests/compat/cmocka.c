/* SPDX-License-Identifier: MIT */
#include "compat/cmocka.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASSED, FAILED, SKIPPED }; /* PASSED is setjmp's own 0 */

static _Thread_local jmp_buf end_of_step;
static _Thread_local bool in_step;

static void print(FILE *stream, const char *format, va_list arguments) {
  vfprintf(stream, format, arguments);
  fflush(stream); /* flush, as later forks or crashes would lose it */
}

void print_message(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print(stdout, format, arguments);
  va_end(arguments);
}

void print_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print(stderr, format, arguments);
  va_end(arguments);
}

static _Noreturn void end_step(int result) {
  if (!in_step)
    exit(EXIT_FAILURE);
  longjmp(end_of_step, result);
}

void _fail(const char *file, int line) {
  print_error("%s:%d: failed\n", file, line);
  end_step(FAILED);
}

void _skip(const char *file, int line) {
  (void)file;
  (void)line;
  end_step(SKIPPED);
}

void compat_true(int holds, const char *text, const char *file, int line) {
  if (holds)
    return;
  print_error("does not hold: %s\n", text);
  _fail(file, line);
}

void compat_equal(uintmax_t left, uintmax_t right, int wanted, const char *file, int line) {
  if ((left == right) == wanted)
    return;
  print_error("%#jx %s %#jx\n", left, wanted ? "!=" : "==", right);
  _fail(file, line);
}

void compat_same_text(const char *left, const char *right, int wanted, const char *file, int line) {
  if ((strcmp(left, right) == 0) == wanted)
    return;
  print_error("\"%s\" %s \"%s\"\n", left, wanted ? "!=" : "==", right);
  _fail(file, line);
}

void compat_same_bytes(const void *left, const void *right, size_t length, int wanted,
                       const char *file, int line) {
  const unsigned char *one = left, *other = right;
  size_t at = 0;
  while (at < length && one[at] == other[at])
    at++;
  if ((at == length) == wanted)
    return;
  if (wanted)
    print_error("byte %zu of %zu: %#x != %#x\n", at, length, one[at], other[at]);
  else
    print_error("%zu bytes are the same\n", length);
  _fail(file, line);
}

void compat_within(uintmax_t value, uintmax_t lowest, uintmax_t highest, const char *file,
                   int line) {
  if (value >= lowest && value <= highest)
    return;
  print_error("%ju is not within %ju to %ju\n", value, lowest, highest);
  _fail(file, line);
}

/* A step of a test: set-up, body or teardown. */
static int run_step(CMUnitTestFunction test, CMFixtureFunction fixture, void **state) {
  volatile int fixture_code = 0;
  in_step = true;
  int result = setjmp(end_of_step);
  if (result == PASSED) {
    if (test)
      test(state);
    else if (fixture)
      fixture_code = fixture(state);
  }
  in_step = false;
  return fixture_code ? FAILED : result;
}

static int run_test(const struct CMUnitTest *test, void *group_state) {
  void *state = group_state ? group_state : test->initial_state;
  int result = run_step(NULL, test->setup_func, &state);
  if (result != PASSED)
    return result;
  result = run_step(test->test_func, NULL, &state);
  return run_step(NULL, test->teardown_func, &state) == FAILED ? FAILED : result;
}

int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                            CMFixtureFunction up, CMFixtureFunction down) {
  static const char *const words[] = {"ok", "FAILED", "skipped"};
  int results[] = {0, 0, 0};
  void *state = NULL;
  print_message("== %s: %zu tests\n", name, count);
  if (run_step(NULL, up, &state) != PASSED) {
    print_error("FAILED   the set-up of %s\n", name);
    return count > 0 ? (int)count : 1;
  }
  for (size_t i = 0; i < count; i++) {
    int result = run_test(&tests[i], state);
    results[result]++;
    print_message("%-8s %s\n", words[result], tests[i].name);
  }
  if (run_step(NULL, down, &state) != PASSED) {
    print_error("FAILED   the tear-down of %s\n", name);
    results[FAILED]++;
  }
  print_message("== %s: %d passed, %d failed, %d skipped\n", name, results[PASSED], results[FAILED],
                results[SKIPPED]);
  return results[FAILED];
}
