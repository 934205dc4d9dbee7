/* SPDX-License-Identifier: MIT
 * Text, memory and time; sizes, rates and times as people write and read them. */
#ifndef HAUL_COMMAND_TEXT_H
#define HAUL_COMMAND_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the UTF-8 character at `text`, by table 3-7 of the Unicode Standard; 0: invalid. */
size_t text_character(const char *text);
/* The number of the valid character at `character`. */
unsigned text_code_point(const char *character);
/* Whether the valid character orders a terminal to do something: control characters, marks of the
 * writing direction, separators of lines and paragraphs, and the byte order mark. */
bool text_is_control(const char *character);
/* Printable ASCII without blanks and '/', of any length but 0. */
bool text_is_name(const char *text);
/* Replaces such characters and invalid UTF-8 by '?': names come from peers and files. */
void text_clean(char *text);
/* Removes the suffix; false: the text has another one. */
bool text_cut_end(char *text, const char *end);

/* Whether `word` is likely a misspelt `name`: at most two edits, one in a name below four bytes. */
bool text_resembles(const char *word, const char *name);

/* Like realloc, but ends the command if memory is exhausted. */
void *must_realloc(void *memory, size_t size);
/* Doubles the room of a list if it is full. */
void *must_grow(void *list, size_t count, size_t *room, size_t size);
char *must_strdup(const char *text);

/* Fills `list`, which has room for *count entries, and sets *count to their number, which may be
 * more. Returns 0 or a code of the library. */
typedef int list_function(void *context, void *list, size_t *count);

/* Calls `fill` until all entries of `size` bytes fit, as their number may grow between two calls.
 * The caller frees the list; NULL and *count 0 after a failure of `fill`. */
void *load_list(list_function *fill, void *context, size_t size, size_t *count);

/* CLOCK_MONOTONIC, in nanoseconds: the clock of haul_deadline. */
int64_t now_ns(void);
/* CPU time of this process. */
int64_t cpu_ns(void);

/* "64", "64K", "64KiB" (factor 1024), "64KB" (factor 1000), up to T. */
bool size_parse(const char *text, uint64_t *size);

/* Seconds, more than 0, at most ten years, for example "0.5"; in nanoseconds. */
bool seconds_parse(const char *text, int64_t *nanoseconds);

/* A value as text, returned by value: its lifetime is the full expression of the call. */
struct unit_text {
  char text[32];
};

struct unit_text size_text(uint64_t bytes);                      /* "1.50 GiB" */
struct unit_text rate_text(uint64_t bytes, int64_t nanoseconds); /* "4.10 GB/s" */
struct unit_text time_text(double nanoseconds);                  /* "12.3 us" */
struct unit_text number_text(long number);                       /* "-" below 0 */
struct unit_text line_rate_text(double bits);                    /* "100 Gb/s"; "-" up to 0 */
struct unit_text clock_text(int64_t nanoseconds);                /* "1:05" */

/* Gigabytes (1e9) a second; 0 if no time passed. */
double gigabytes_per_second(uint64_t bytes, int64_t nanoseconds);

#endif
