/* SPDX-License-Identifier: MIT
 * An ordered set of ranges, none of which lies within another. So the order by start is also the
 * order by end, and one search finds a range that covers another. Ranges may overlap. A treap: each
 * operation is O(log n), allocates nothing and cannot fail. The caller locks. */
#ifndef HAUL_CORE_RANGES_H
#define HAUL_CORE_RANGES_H

#include <stddef.h>
#include <stdint.h>

/* [start, end) in the space `kind`. Embedded by its owner, which sets these three fields before
 * ranges_add and does not change them until ranges_remove. */
struct range {
  uint64_t start, end;
  uint32_t kind;
  uint32_t rank;
  struct range *before, *after; /* the neighbours in order of kind and start, NULL at the ends */
  struct range *lower, *upper;
};

/* Zeroed: empty. */
struct ranges {
  struct range *root, *first;
  uint32_t ranks;
};

void ranges_add(struct ranges *ranges, struct range *range);
void ranges_remove(struct ranges *ranges, struct range *range);

/* The last range of the kind that starts at `address` or before; NULL when there is none. */
struct range *ranges_last_from(const struct ranges *ranges, uint32_t kind, uint64_t address);
/* The first range of the kind that ends behind `address`; NULL when there is none. */
struct range *ranges_first_beyond(const struct ranges *ranges, uint32_t kind, uint64_t address);

/* The one that covers [start, end) and starts last, or NULL. */
static inline struct range *ranges_cover(const struct ranges *ranges, uint32_t kind, uint64_t start,
                                         uint64_t end) {
  struct range *range = ranges_last_from(ranges, kind, start);
  return range && end <= range->end ? range : NULL;
}

/* The neighbours of the same kind. */
static inline struct range *range_before(const struct range *range) {
  return range->before && range->before->kind == range->kind ? range->before : NULL;
}
static inline struct range *range_after(const struct range *range) {
  return range->after && range->after->kind == range->kind ? range->after : NULL;
}

static inline uint64_t range_length(const struct range *range) {
  return range->end - range->start;
}

#endif
