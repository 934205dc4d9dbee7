/* SPDX-License-Identifier: MIT */
#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

struct alloc_ops alloc_ops = {.calloc = calloc, .realloc = realloc, .free = free};

char *alloc_string(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = alloc_zero(1, size);
  if (copy)
    memcpy(copy, text, size);
  return copy;
}
