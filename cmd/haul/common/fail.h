/* SPDX-License-Identifier: MIT
 *
 * Errors for people: one line on standard error, "haul: put: what failed: why (object)", and a
 * second one, "hint: what to do", where there is something to say. All return EXIT_FAILED, so that
 * a caller can `return fail_…(…)`.
 */
#ifndef HAUL_COMMAND_FAIL_H
#define HAUL_COMMAND_FAIL_H

/* The subcommand named in every line from now on. */
void fail_set_command(const char *name);

/* The library refused: the reason is haul_error_last() of this thread. */
int fail_library(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A system call failed with `error`. */
int fail_system(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The command itself refuses; `hint` may be NULL. */
int fail_because(const char *hint, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Something worth knowing that is no failure. */
void fail_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
