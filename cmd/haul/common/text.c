/* SPDX-License-Identifier: MIT */
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"

/* Of the lead bytes: how many follow, and what the first of those may be. */
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

bool text_is_control(const char *character) {
  unsigned char first = (unsigned char)character[0];
  return first < 0x20 || first == 0x7f || (first == 0xc2 && (unsigned char)character[1] < 0xa0);
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

void *must_realloc(void *memory, size_t size) {
  void *bigger = realloc(memory, size ? size : 1);
  if (!bigger)
    exit(fail_because(NULL, "no memory left"));
  return bigger;
}

char *must_strdup(const char *text) {
  size_t size = strlen(text) + 1;
  return memcpy(must_realloc(NULL, size), text, size);
}

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

bool text_cut_end(char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  if (length < tail || strcmp(text + length - tail, end) != 0)
    return false;
  text[length - tail] = '\0';
  return true;
}
