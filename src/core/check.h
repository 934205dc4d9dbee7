/* SPDX-License-Identifier: MIT
 * Filling in what a check of this host found. */
#ifndef HAUL_CORE_CHECK_H
#define HAUL_CORE_CHECK_H

#include "haul/haul.h"

/* "BACKEND.NAME", with nothing wrong yet. */
void check_begin(struct haul_check *check, const char *backend, const char *name);
/* `state`: HAUL_CHECK_OK, … */
void check_set(struct haul_check *check, int state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The command, or the advice, that mends it. */
void check_hint(struct haul_check *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What the thread's last error says is missing, and its hint mends. */
void check_set_error(struct haul_check *check);

#endif
