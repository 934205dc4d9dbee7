/* SPDX-License-Identifier: MIT */
#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

#define SMALL 4096u /* bytes that are zeroed sooner than fresh pages are got */

/* glibc's calloc takes nothing from the thread's cache of freed blocks (before 2.41), and what is
 * freed fills it and then takes the slow way out: a transfer is made and freed a thousand times a
 * second, and its blocks are small. */
static void *zeroed(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > SMALL)
    return calloc(count, size);
  void *block = malloc(bytes);
  __asm__("" : "+r"(block)); /* or the compiler makes a calloc of the two calls */
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
