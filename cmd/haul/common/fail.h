/* SPDX-License-Identifier: MIT
 * Errors for people: one line on standard error, "haul: put: what failed: why (object)", and a
 * second one, "hint: what to do", where there is a remedy. All functions return EXIT_FAILED, so
 * that a caller can `return fail_…(…)`. */
#ifndef HAUL_COMMAND_FAIL_H
#define HAUL_COMMAND_FAIL_H

#include <stddef.h>

/* Sets the subcommand that later lines name. */
void fail_set_command(const char *name);

/* A library call failed: the reason is haul_error_last() of this thread. The object is added only
 * if neither the format nor the reason names it. */
int fail_library(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A system call failed with `error`. */
int fail_system(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The command itself failed; `hint` may be NULL. */
int fail_because(const char *hint, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets the state that a failure from here on leaves behind, for its hint. */
void fail_leaves(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints a note, which is no failure. */
void fail_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The hints of the library name its C API. Replaces the names, in place, by command-line terms, and
 * cuts the text at `size`. */
void use_command_terms(char *text, size_t size);

#endif
