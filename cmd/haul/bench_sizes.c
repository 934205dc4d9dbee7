/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "bench.h"
#include "common/units.h"

static bool add(struct bench_sizes *sizes, uint64_t size) {
  if (size == 0 || sizes->count == BENCH_SIZES_MAX)
    return false;
  sizes->list[sizes->count++] = size;
  return true;
}

/* Doubles from the first to the last, which is always there. */
static bool add_range(struct bench_sizes *sizes, uint64_t first, uint64_t last) {
  if (first == 0 || first > last)
    return false;
  for (uint64_t size = first; size < last; size *= 2) {
    if (!add(sizes, size))
      return false;
    if (size > UINT64_MAX / 2)
      break;
  }
  return add(sizes, last);
}

static bool add_item(struct bench_sizes *sizes, char *item) {
  uint64_t first, last;
  char *dots = strstr(item, "..");
  if (!dots)
    return size_parse(item, &first) && add(sizes, first);
  *dots = '\0';
  return size_parse(item, &first) && size_parse(dots + 2, &last) && add_range(sizes, first, last);
}

bool bench_sizes_parse(const char *text, struct bench_sizes *sizes) {
  char copy[512];
  size_t length = strlen(text);
  sizes->count = 0;
  if (length >= sizeof(copy))
    return false;
  memcpy(copy, text, length + 1);
  char *rest = copy;
  for (char *item; (item = strsep(&rest, ",")) != NULL;)
    if (!add_item(sizes, item))
      return false;
  return sizes->count > 0;
}
