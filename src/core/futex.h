/* SPDX-License-Identifier: MIT
 * Sleeping until a word changes. */
#ifndef HAUL_CORE_FUTEX_H
#define HAUL_CORE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleeps while *word == expected, at most until `until` (CLOCK_MONOTONIC nanoseconds). May return
 * early. Private to this process. */
void futex_wait(const _Atomic uint32_t *word, uint32_t expected, int64_t until);

/* Wakes every sleeper. */
void futex_wake(_Atomic uint32_t *word);

#endif
