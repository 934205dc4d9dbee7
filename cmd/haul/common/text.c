/* SPDX-License-Identifier: MIT */
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"

void text_clean(char *text) {
  for (unsigned char *at = (unsigned char *)text; *at; at++)
    if (*at < 0x20 || *at == 0x7f)
      *at = '?';
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
