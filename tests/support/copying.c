/* SPDX-License-Identifier: MIT */
#include "support/copying.h"

#include "memory/copy.h"
#include "memory/region.h"

int copy_wait(struct memory *to, uint64_t to_offset, struct memory *from, uint64_t from_offset,
              uint64_t length, haul_deadline until) {
  struct heap *heap;
  int code = heap_open(NULL, 0, &heap);
  if (code)
    return code;
  code = copy_sync(heap_staging(heap), to, to_offset, from, from_offset, length, until);
  heap_close(heap);
  return code;
}
