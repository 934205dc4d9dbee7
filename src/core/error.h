/* SPDX-License-Identifier: MIT
 * Failures: a code, and the detail that is kept per thread. Functions that set a detail are cold:
 * the compiler optimises the branches that call them for size. */
#ifndef HAUL_CORE_ERROR_H
#define HAUL_CORE_ERROR_H

#include "core/fork.h"
#include "haul/haul.h"

/* Notes the public call that the thread is in; `call` is a literal. Returns 0, or HAUL_EFORK with
 * the detail in a fork of the process that opened the first node. */
int error_enter(const char *call);

/* The same without a call, for haul_region_alloc, which takes nanoseconds. initial-exec saves a
 * call to __tls_get_addr; eight bytes fit the static TLS that the loader reserves for dlopen. */
extern _Thread_local __attribute__((tls_model("initial-exec"))) const char *error_call;
int error_forked(void) __attribute__((cold, noinline)); /* HAUL_EFORK, with the detail */
static inline __attribute__((always_inline)) int error_enter_inline(const char *call) {
  error_call = call;
  return __builtin_expect(*fork_mark == 0, 0) ? error_forked() : 0;
}

/* Sets the thread's detail and returns `code`. `system` is an errno or 0. `object` may be NULL.
 * `hint` NULL: the code's default hint. Bytes from a peer go into the text through error_quote,
 * never into the hint. */
int error_set(int code, int system, const char *object, const char *hint, const char *format, ...)
    __attribute__((cold, format(printf, 5, 6)));

/* Formats a hint for error_set, in a buffer of the thread that the next call overwrites. */
const char *error_hint(const char *format, ...) __attribute__((cold, format(printf, 1, 2)));

/* Formats an object, likewise. */
const char *error_object(const char *format, ...) __attribute__((cold, format(printf, 1, 2)));

/* Sets the detail to the code's default text and hint, and returns `code`. */
int error_code(int code, const char *object);

/* Quotes bytes from a peer for an error's text: in quotation marks, bytes that are not printable
 * ASCII as \xNN. The result is a buffer of the thread that the next call overwrites. */
const char *error_quote(const char *words);

/* HAUL_ETIMEDOUT if the deadline of a call has passed before it does anything; else 0. */
int error_if_passed(haul_deadline until, const char *object);

/* Maps the errno of a system call: EMFILE and ENFILE to HAUL_ELIMIT, ENOMEM and ENOSPC to
 * HAUL_ENOMEM, others to HAUL_ESYSTEM. */
int error_system(int system, const char *object, const char *call) __attribute__((cold));

/* Out of memory while allocating `what`. */
int error_memory(const char *what) __attribute__((cold));

/* Sets the object of the thread's failure if it has none. */
void error_about(const char *object);

/* Move a failure from the thread where it happened to another. */
void error_save(struct haul_error *into);
int error_restore(const struct haul_error *from);
/* Takes back the failures since `before` was saved, which the call survives. */
void error_reset(const struct haul_error *before);

#endif
