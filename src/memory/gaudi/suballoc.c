/* SPDX-License-Identifier: MIT */
#include "memory/gaudi/suballoc.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"

int suballoc_open(struct suballoc *suballoc, uint64_t length) {
  *suballoc = (struct suballoc){.length = length, .room = 8, .count = 1};
  suballoc->holes = alloc_zero(suballoc->room, sizeof *suballoc->holes);
  if (!suballoc->holes)
    return error_memory("parts of device memory");
  suballoc->holes[0] = (struct suballoc_hole){0, length};
  return 0;
}

void suballoc_close(struct suballoc *suballoc) {
  alloc_free(suballoc->holes);
  *suballoc = (struct suballoc){0};
}

static size_t best_hole(const struct suballoc *suballoc, uint64_t length) {
  size_t best = suballoc->count;
  for (size_t i = 0; i < suballoc->count; i++)
    if (suballoc->holes[i].length >= length &&
        (best == suballoc->count || suballoc->holes[i].length < suballoc->holes[best].length))
      best = i;
  return best;
}

uint64_t suballoc_fit(const struct suballoc *suballoc, uint64_t length) {
  size_t best = best_hole(suballoc, length);
  return best < suballoc->count ? suballoc->holes[best].length : 0;
}

/* n parts have at most n + 1 holes between them. The room is made here for one more part, so a free
 * needs none. */
static int suballoc_make_room(struct suballoc *suballoc) {
  if (suballoc->parts >= SUBALLOC_PARTS)
    return error_set(HAUL_ELIMIT, 0, NULL, "use fewer and larger regions",
                     "one device page holds %u regions at most", SUBALLOC_PARTS);
  if (suballoc->room >= suballoc->parts + 2)
    return 0;
  struct suballoc_hole *grown =
      alloc_resize(suballoc->holes, 2 * suballoc->room * sizeof *suballoc->holes);
  if (!grown)
    return error_memory("parts of device memory");
  suballoc->holes = grown;
  suballoc->room *= 2;
  return 0;
}

static void remove_hole(struct suballoc *suballoc, size_t i) {
  suballoc->count--;
  memmove(suballoc->holes + i, suballoc->holes + i + 1,
          (suballoc->count - i) * sizeof *suballoc->holes);
}

int suballoc_take(struct suballoc *suballoc, uint64_t length, uint64_t *offset) {
  size_t best = best_hole(suballoc, length);
  if (best == suballoc->count)
    return error_set(HAUL_ENOMEM, 0, NULL, NULL, "no part of the device page has %llu bytes",
                     (unsigned long long)length);
  int code = suballoc_make_room(suballoc);
  if (code)
    return code;
  struct suballoc_hole *hole = &suballoc->holes[best];
  *offset = hole->offset;
  hole->offset += length;
  hole->length -= length;
  if (hole->length == 0)
    remove_hole(suballoc, best);
  suballoc->parts++;
  return 0;
}

/* The first hole that starts behind `offset`. */
static size_t hole_behind(const struct suballoc *suballoc, uint64_t offset) {
  size_t low = 0, high = suballoc->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (suballoc->holes[middle].offset > offset)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

void suballoc_give(struct suballoc *suballoc, uint64_t offset, uint64_t length) {
  struct suballoc_hole *holes = suballoc->holes;
  size_t i = hole_behind(suballoc, offset);
  bool before = i > 0 && holes[i - 1].offset + holes[i - 1].length == offset;
  bool behind = i < suballoc->count && holes[i].offset == offset + length;
  suballoc->parts--;
  if (before) {
    holes[i - 1].length += length + (behind ? holes[i].length : 0);
    if (behind)
      remove_hole(suballoc, i);
  } else if (behind) {
    holes[i].offset = offset;
    holes[i].length += length;
  } else {
    memmove(holes + i + 1, holes + i, (suballoc->count - i) * sizeof *holes);
    holes[i] = (struct suballoc_hole){offset, length};
    suballoc->count++;
  }
}
