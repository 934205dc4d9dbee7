/* SPDX-License-Identifier: MIT */
#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

#define SMALL 4096u /* bytes up to which memset is cheaper than fresh pages */

/* A volatile pointer, or the compiler turns malloc and memset into calloc. */
static void *(*volatile get)(size_t size) = malloc;

/* Before 2.41 glibc's calloc bypasses the thread cache (tcache): blocks freed into it fill it up,
 * and then each free takes the slow path. Transfers allocate and free small blocks. */
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
