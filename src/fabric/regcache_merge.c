/* SPDX-License-Identifier: MIT
 * Range merging: neighbouring ranges that the application announced are registered together. */
#include "core/alloc.h"
#include "fabric/regcache_internal.h"

static struct announced *announced_of(struct range *range) {
  return list_entry(range, struct announced, range);
}

static uint64_t lower_of(uint64_t one, uint64_t other) {
  return one < other ? one : other;
}

static uint64_t higher_of(uint64_t one, uint64_t other) {
  return one > other ? one : other;
}

static uint64_t page_down(const struct range_merge *merge, uint64_t address) {
  return address & ~(merge->page - 1);
}

static uint64_t page_up(const struct range_merge *merge, uint64_t address) {
  return page_down(merge, address + merge->page - 1);
}

static void push(struct announced *announced, struct announced **out) {
  announced->next = *out;
  *out = announced;
}

static void unlink_announced(struct range_merge *merge, struct range *at, struct announced **out) {
  ranges_remove(&merge->ranges, at);
  push(announced_of(at), out);
}

void merge_add(struct range_merge *merge, struct announced *announced, struct announced **out) {
  const struct range *range = &announced->range;
  struct range *within = ranges_cover(&merge->ranges, range->kind, range->start, range->end);
  if (within) {
    announced_of(within)->alone = false;
    push(announced, out);
    return;
  }
  struct range *at = ranges_first_beyond(&merge->ranges, range->kind, range->start);
  while (at && at->end <= range->end) {
    struct range *after = range_after(at);
    if (at->start >= range->start)
      unlink_announced(merge, at, out);
    at = after;
  }
  ranges_add(&merge->ranges, &announced->range);
}

void merge_drop(struct range_merge *merge, const struct range *range, const uint64_t *keep,
                struct announced **out) {
  struct range *at = ranges_first_beyond(&merge->ranges, range->kind, range->start);
  while (at && at->start < range->end) {
    struct range *after = range_after(at);
    if (!keep || announced_of(at)->buffer != *keep)
      unlink_announced(merge, at, out);
    at = after;
  }
}

void merge_free(struct announced *chain) {
  while (chain) {
    struct announced *next = chain->next;
    alloc_free(chain);
    chain = next;
  }
}

void merge_refused(struct range_merge *merge, const struct range *pages, bool room) {
  if (room) {
    merge->block = page_down(merge, merge->block / 2);
    return;
  }
  struct range *at = ranges_first_beyond(&merge->ranges, pages->kind, pages->start);
  for (; at && at->start < pages->end; at = range_after(at))
    announced_of(at)->alone = true;
}

static bool may_join(struct range *range, uint64_t buffer) {
  const struct announced *announced = announced_of(range);
  return !announced->alone && announced->buffer == buffer;
}

/* The end of the run of announced ranges that touch each other and the pages. Ranges touch when no
 * page lies between them. */
static uint64_t run_end(const struct range_merge *merge, uint64_t buffer,
                        const struct range *pages) {
  uint64_t end = pages->end, page = merge->page;
  struct range *at = ranges_first_beyond(&merge->ranges, pages->kind,
                                         pages->start < page ? 0 : pages->start - page);
  for (; at && page_down(merge, at->start) <= end; at = range_after(at))
    if (may_join(at, buffer))
      end = higher_of(end, page_up(merge, at->end));
  return end;
}

static uint64_t run_start(const struct range_merge *merge, uint64_t buffer,
                          const struct range *pages) {
  uint64_t start = pages->start;
  struct range *at = ranges_last_from(&merge->ranges, pages->kind, pages->end + (merge->page - 1));
  for (; at && page_up(merge, at->end) >= start; at = range_before(at))
    if (may_join(at, buffer))
      start = lower_of(start, page_down(merge, at->start));
  return start;
}

/* How far up to `end` the pages grow before they meet a larger registration. */
static uint64_t grown_end(const struct ranges *live, const struct range *pages, uint64_t end) {
  const struct range *at = ranges_first_beyond(live, pages->kind, pages->end);
  for (; at && at->start < end; at = range_after(at)) {
    uint64_t reached = higher_of(pages->end, at->start);
    if (range_length(at) > reached - pages->start)
      return reached;
  }
  return end;
}

static uint64_t grown_start(const struct ranges *live, const struct range *pages, uint64_t start) {
  const struct range *at =
      pages->start ? ranges_last_from(live, pages->kind, pages->start - 1) : NULL;
  for (; at && at->end > start; at = range_before(at)) {
    uint64_t reached = lower_of(pages->start, at->end);
    if (range_length(at) > pages->end - reached)
      return reached;
  }
  return start;
}

/* Extends the pages over registrations that overlap them and are not larger. */
static void join_live(const struct ranges *live, uint64_t most, struct range *pages) {
  const struct range own = *pages;
  const struct range *at = ranges_first_beyond(live, own.kind, own.start);
  for (; at && at->start < own.end; at = range_after(at)) {
    uint64_t start = lower_of(pages->start, at->start), end = higher_of(pages->end, at->end);
    if (range_length(at) <= range_length(&own) && end - start <= most) {
      pages->start = start;
      pages->end = end;
    }
  }
}

void merge_widen(const struct range_merge *merge, const struct ranges *live, uint64_t buffer,
                 struct range *pages) {
  join_live(live, merge->block, pages);
  if (merge->block == 0)
    return;
  uint64_t block = pages->start - pages->start % merge->block;
  if (pages->end - block > merge->block)
    return;
  uint64_t top = page_down(merge, UINT64_MAX);
  uint64_t block_end = block > top - merge->block ? top : block + merge->block;
  uint64_t end = lower_of(run_end(merge, buffer, pages), block_end);
  uint64_t start = higher_of(run_start(merge, buffer, pages), block);
  pages->end = grown_end(live, pages, end);
  pages->start = grown_start(live, pages, start);
}
