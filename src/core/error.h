/* SPDX-License-Identifier: MIT
 * Failures: one code, and the detail that stays with the thread. */
#ifndef HAUL_CORE_ERROR_H
#define HAUL_CORE_ERROR_H

#include "haul/haul.h"

/* Names the public call that the thread is in; `call` is a literal. Returns 0, or HAUL_EFORK with
 * the detail set in a child of the process that loaded the library. */
int error_enter(const char *call);

/* Sets the thread's detail and returns `code`. `system` is an errno or 0. `object` may be NULL.
 * `format` makes "text\0hint"-like halves from one string: the part behind the first '|' is the
 * hint. Where one of them is empty the code's usual one stands in. */
int error_set(int code, int system, const char *object, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The code for a failed system call whose meaning does not depend on the call: EMFILE is a limit,
 * ENOMEM is no memory, the rest HAUL_ESYSTEM. */
int error_system(int system, const char *object, const char *call);

/* Out of memory while allocating `what`. */
int error_memory(const char *what);

/* Names the object of the thread's failure where its place knew none. */
void error_about(const char *object);

/* Carries a failure from the thread where it happened to the one that asks. */
void error_save(struct haul_error *into);
int error_restore(const struct haul_error *from);

#endif
