/* SPDX-License-Identifier: MIT */
#include "text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"

/* Ranges of lead bytes: length of the character, and the range of its second byte. */
static const struct {
  unsigned char from, to, least, most;
  size_t length;
} leads[] = {
    {0x00, 0x7f, 0x00, 0x00, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
    {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
    {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
};

size_t text_character(const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  size_t row = 0, rows = sizeof leads / sizeof leads[0];
  while (row < rows && (*at < leads[row].from || *at > leads[row].to))
    row++;
  if (row == rows)
    return 0;
  for (size_t i = 1; i < leads[row].length; i++) {
    unsigned char least = i == 1 ? leads[row].least : 0x80, most = i == 1 ? leads[row].most : 0xbf;
    if (at[i] < least || at[i] > most)
      return 0;
  }
  return leads[row].length;
}

unsigned text_code_point(const char *character) {
  static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07}; /* of the first byte */
  size_t length = text_character(character);
  unsigned point = (unsigned char)character[0] & masks[length];
  for (size_t i = 1; i < length; i++)
    point = point << 6 | ((unsigned char)character[i] & 0x3f);
  return point;
}

/* The last ones: Bidi_Control of the Unicode Standard, both separators, and the byte order mark. */
static const struct {
  unsigned from, to;
} controls[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0x61c, 0x61c},   {0x200e, 0x200f},
    {0x2028, 0x202e}, {0x2066, 0x2069}, {0xfeff, 0xfeff},
};

bool text_is_control(const char *character) {
  unsigned point = text_code_point(character);
  for (size_t i = 0; i < sizeof controls / sizeof *controls; i++)
    if (point >= controls[i].from && point <= controls[i].to)
      return true;
  return false;
}

bool text_is_name(const char *text) {
  const char *at = text;
  while (*at > ' ' && *at <= '~' && *at != '/')
    at++;
  return at > text && *at == '\0';
}

void text_clean(char *text) {
  while (*text) {
    size_t length = text_character(text);
    if (length > 0 && !text_is_control(text)) {
      text += length;
      continue;
    }
    memset(text, '?', length ? length : 1);
    text += length ? length : 1;
  }
}

#define WORD_MAX 32

/* By Levenshtein: `row` has the distances of the first i bytes of `word` to those of `name`. */
static unsigned edits_between(const char *word, const char *name) {
  unsigned row[WORD_MAX + 1];
  size_t length = strlen(name);
  for (size_t j = 0; j <= length; j++)
    row[j] = (unsigned)j;
  for (size_t i = 0; word[i]; i++) {
    unsigned corner = row[0];
    row[0] = (unsigned)i + 1;
    for (size_t j = 0; j < length; j++) {
      unsigned changed = corner + (word[i] != name[j]);
      unsigned least = row[j] < row[j + 1] ? row[j] : row[j + 1];
      corner = row[j + 1];
      row[j + 1] = changed < least + 1 ? changed : least + 1;
    }
  }
  return row[length];
}

bool text_resembles(const char *word, const char *name) {
  size_t length = strlen(name);
  return length <= WORD_MAX && strlen(word) <= WORD_MAX &&
         edits_between(word, name) <= (length < 4 ? 1 : 2);
}

void *must_realloc(void *memory, size_t size) {
  void *bigger = realloc(memory, size ? size : 1);
  if (!bigger)
    exit(fail_because(NULL, "out of memory"));
  return bigger;
}

void *must_grow(void *list, size_t count, size_t *room, size_t size) {
  if (count < *room)
    return list;
  *room = *room ? 2 * *room : 64;
  return must_realloc(list, *room * size);
}

char *must_strdup(const char *text) {
  size_t size = strlen(text) + 1;
  return memcpy(must_realloc(NULL, size), text, size);
}

void *load_list(list_function *fill, void *context, size_t size, size_t *count) {
  void *list = NULL;
  for (size_t room = 64;; room = *count) {
    *count = room;
    list = must_realloc(list, room * size);
    if (fill(context, list, count)) {
      free(list);
      *count = 0;
      return NULL;
    }
    if (*count <= room)
      return list;
  }
}

static int64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t now_ns(void) {
  return clock_ns(CLOCK_MONOTONIC);
}

int64_t cpu_ns(void) {
  return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

bool text_cut_end(char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  if (length < tail || strcmp(text + length - tail, end) != 0)
    return false;
  text[length - tail] = '\0';
  return true;
}

static const char prefixes[] = "KMGT";

/* The factor of a unit; 0: unknown unit. */
static uint64_t unit_factor(const char *unit) {
  if (!*unit || strcmp(unit, "B") == 0)
    return 1;
  const char *prefix = strchr(prefixes, toupper((unsigned char)*unit));
  if (!prefix)
    return 0;
  const char *rest = unit + 1;
  uint64_t step = strcmp(rest, "B") == 0 ? 1000 : 1024;
  if (*rest && strcmp(rest, "B") != 0 && strcmp(rest, "iB") != 0)
    return 0;
  uint64_t factor = 1;
  for (const char *at = prefixes; at <= prefix; at++)
    factor *= step;
  return factor;
}

bool size_parse(const char *text, uint64_t *size) {
  uint64_t number = 0;
  const char *at = text;
  for (; isdigit((unsigned char)*at); at++) {
    if (__builtin_mul_overflow(number, 10u, &number) ||
        __builtin_add_overflow(number, (unsigned)(*at - '0'), &number))
      return false;
  }
  uint64_t factor = unit_factor(at);
  return at != text && factor && !__builtin_mul_overflow(number, factor, size);
}

bool seconds_parse(const char *text, int64_t *nanoseconds) {
  char *end = NULL;
  if (!isdigit((unsigned char)*text) && *text != '.')
    return false;
  double seconds = strtod(text, &end);
  if (*end || !isfinite(seconds) || seconds > 10 * 365.25 * 86400)
    return false;
  *nanoseconds = (int64_t)(seconds * 1e9);
  return *nanoseconds > 0;
}

struct unit_text size_text(uint64_t bytes) {
  static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  struct unit_text result;
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit < 6; unit++)
    value /= 1024;
  snprintf(result.text, sizeof(result.text), unit ? "%.2f %s" : "%.0f %s", value, names[unit]);
  return result;
}

double gigabytes_per_second(uint64_t bytes, int64_t nanoseconds) {
  return nanoseconds > 0 ? (double)bytes / (double)nanoseconds : 0;
}

struct unit_text rate_text(uint64_t bytes, int64_t nanoseconds) {
  struct unit_text result;
  double rate = gigabytes_per_second(bytes, nanoseconds);
  if (rate >= 1)
    snprintf(result.text, sizeof(result.text), "%.2f GB/s", rate);
  else
    snprintf(result.text, sizeof(result.text), "%.1f MB/s", rate * 1000);
  return result;
}

struct unit_text time_text(double nanoseconds) {
  static const char *const names[] = {"ns", "us", "ms", "s"};
  struct unit_text result;
  double value = nanoseconds;
  size_t unit = 0;
  for (; value >= 1000 && unit < 3; unit++)
    value /= 1000;
  snprintf(result.text, sizeof(result.text), "%.3g %s", value, names[unit]);
  if (value >= 1000)
    snprintf(result.text, sizeof(result.text), "%.0f %s", value, names[unit]);
  return result;
}

struct unit_text number_text(long number) {
  struct unit_text result = {"-"};
  if (number >= 0)
    snprintf(result.text, sizeof(result.text), "%ld", number);
  return result;
}

struct unit_text line_rate_text(double bits) {
  struct unit_text result = {"-"};
  if (bits > 0)
    snprintf(result.text, sizeof(result.text), "%.3g Gb/s", bits / 1e9);
  return result;
}

struct unit_text clock_text(int64_t nanoseconds) {
  struct unit_text result;
  int64_t seconds = (nanoseconds + 500000000) / 1000000000;
  snprintf(result.text, sizeof(result.text), "%lld:%02lld", (long long)(seconds / 60),
           (long long)(seconds % 60));
  return result;
}
