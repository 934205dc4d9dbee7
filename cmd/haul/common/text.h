/* SPDX-License-Identifier: MIT
 *
 * Small helpers around text, memory and time.
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

#endif
