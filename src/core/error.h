/* SPDX-License-Identifier: MIT
 * Failures: one code, and the detail that stays with the thread. */
#ifndef HAUL_CORE_ERROR_H
#define HAUL_CORE_ERROR_H

#include "haul/haul.h"

/* Names the public call that the thread is in; `call` is a literal. Returns 0, or HAUL_EFORK with
 * the detail set in a child of the process that loaded the library. */
int error_enter(const char *call);

/* Sets the thread's detail and returns `code`. `system` is an errno or 0. `object` may be NULL.
 * `hint` NULL means the code's usual one. Bytes that a peer sent go into the
 * text through error_quote, never into the hint. */
int error_set(int code, int system, const char *object, const char *hint, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* A hint with values in it, for error_set. It lies in memory of the thread until the next one. */
const char *error_hint(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sets the thread's detail to the code's own text and hint, and returns `code`. */
int error_code(int code, const char *object);

/* Words that a peer sent, as a part of an error's text: in quotation marks, with every byte that is
 * not printable ASCII as \xNN. The result lies in memory of the thread until the next call. */
const char *error_quote(const char *words);

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
