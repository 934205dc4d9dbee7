/* SPDX-License-Identifier: MIT
 *
 * Sizes, rates and times as people write and read them.
 */
#ifndef HAUL_COMMAND_UNITS_H
#define HAUL_COMMAND_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/* "64", "64K", "64KiB" (1024 each), "64KB" (1000 each), and so on to T. */
bool size_parse(const char *text, uint64_t *size);

/* "2", "0.5": seconds, more than 0, at most ten years; into nanoseconds. */
bool seconds_parse(const char *text, int64_t *nanoseconds);

/* A value as text; it lives as long as the expression that it stands in. */
struct unit_text {
  char text[32];
};

struct unit_text size_text(uint64_t bytes);                      /* "1.50 GiB" */
struct unit_text rate_text(uint64_t bytes, int64_t nanoseconds); /* "4.10 GB/s" */
struct unit_text time_text(double nanoseconds);                  /* "12.3 us" */
struct unit_text clock_text(int64_t nanoseconds);                /* "1:05" */

/* Gigabytes (1e9) a second; 0 where no time passed. */
double gigabytes_per_second(uint64_t bytes, int64_t nanoseconds);

#endif
