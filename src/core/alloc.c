/* SPDX-License-Identifier: MIT */
#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

#define SMALL 4096u /* bytes that are zeroed sooner than fresh pages are got */

/* By a pointer, or the compiler makes a calloc of it and memset. */
static void *(*volatile get)(size_t size) = malloc;

/* glibc's calloc takes nothing from the thread's cache of freed blocks (before 2.41), and what is
 * freed fills it and then takes the slow way out. Small blocks are those that come and go with each
 * transfer. */
static void *zeroed(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > SMALL)
    return calloc(count, size);
  void *block = get(bytes);
  return block ? memset(block, 0, bytes) : NULL;
}

struct alloc_ops alloc_ops = {.calloc = zeroed, .realloc = realloc, .free = free};

char *alloc_string(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = alloc_zero(1, size);
  if (copy)
    memcpy(copy, text, size);
  return copy;
}
