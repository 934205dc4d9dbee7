/* SPDX-License-Identifier: MIT
 *
 * Text, memory and time; sizes, rates and times as people write and read them.
 */
#ifndef HAUL_COMMAND_TEXT_H
#define HAUL_COMMAND_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of the UTF-8 character at `text`, by table 3-7 of the Unicode Standard; 0: it is none.
 */
size_t text_character(const char *text);
/* One that a terminal obeys: of ASCII, or of the 32 from U+0080 on. */
bool text_is_control(const char *character);
/* Replaces what is one of those, or no character, by '?': names come from peers and files. */
void text_clean(char *text);
/* Takes that end off; false: the text has another. */
bool text_cut_end(char *text, const char *end);

/* As realloc, and ends the command when there is no memory left. */
void *must_realloc(void *memory, size_t size);
char *must_strdup(const char *text);

/* CLOCK_MONOTONIC, in nanoseconds: the clock of haul_deadline. */
int64_t now_ns(void);

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
