/* SPDX-License-Identifier: MIT
 * Shared by all tests: cmocka, assertions about errors, byte patterns. */
#ifndef HAUL_TESTS_CHECK_H
#define HAUL_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "haul/haul.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The call fails with this code, and the detail has code, text and hint. */
#define assert_fails(code, call) check_failure((call), (code), #call, __FILE__, __LINE__)
/* The call returns 0; else prints the detail. */
#define assert_works(call) check_success((call), #call, __FILE__, __LINE__)

void check_failure(int status, int code, const char *call, const char *file, int line);
void check_success(int status, const char *call, const char *file, int line);

/* Bytes depend on seed and position, so that misplaced ones are found. */
void pattern_fill(void *bytes, size_t length, uint64_t seed);
void pattern_check(const void *bytes, size_t length, uint64_t seed);

#endif
