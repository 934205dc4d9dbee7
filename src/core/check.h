/* SPDX-License-Identifier: MIT
 * Fills in the result of a check of this host (haul_check_list). */
#ifndef HAUL_CORE_CHECK_H
#define HAUL_CORE_CHECK_H

#include "haul/haul.h"

/* Names the check "BACKEND.NAME", in state HAUL_CHECK_OK. */
void check_begin(struct haul_check *check, const char *backend, const char *name);
/* Runs the checks of a backend into at most `room` entries; returns `count`. */
struct check_entry {
  const char *name;
  void (*run)(struct haul_check *check);
};
size_t check_run(const char *backend, const struct check_entry *entries, size_t count,
                 struct haul_check *checks, size_t room);
/* `state`: HAUL_CHECK_OK, … */
void check_set(struct haul_check *check, int state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The command or the advice that fixes it. */
void check_hint(struct haul_check *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* HAUL_CHECK_MISSING with text and hint of the thread's last error. */
void check_set_error(struct haul_check *check);

#endif
