/* SPDX-License-Identifier: MIT */
#include "fabric/announced.h"

#include "core/alloc.h"
#include "core/list.h"

static struct announcement *announcement_of(struct range *range) {
  return list_entry(range, struct announcement, range);
}

static uint64_t lower_of(uint64_t one, uint64_t other) {
  return one < other ? one : other;
}

static uint64_t higher_of(uint64_t one, uint64_t other) {
  return one > other ? one : other;
}

static uint64_t page_down(const struct announced *announced, uint64_t address) {
  return address & ~(announced->page - 1);
}

static uint64_t page_up(const struct announced *announced, uint64_t address) {
  return page_down(announced, address + announced->page - 1);
}

/* ---- what is announced ---- */

static void take_out(struct announced *announced, struct announcement *announcement,
                     struct announcement **out) {
  ranges_remove(&announced->ranges, &announcement->range);
  announcement->next = *out;
  *out = announcement;
}

void announced_add(struct announced *announced, struct announcement *announcement,
                   struct announcement **out) {
  const struct range *range = &announcement->range;
  struct range *within = ranges_cover(&announced->ranges, range->kind, range->start, range->end);
  if (within) {
    announcement_of(within)->alone = false;
    announcement->next = *out;
    *out = announcement;
    return;
  }
  struct range *at = ranges_first_beyond(&announced->ranges, range->kind, range->start);
  while (at && at->end <= range->end) {
    struct range *after = range_after(at);
    if (at->start >= range->start)
      take_out(announced, announcement_of(at), out);
    at = after;
  }
  ranges_add(&announced->ranges, &announcement->range);
}

void announced_forget(struct announced *announced, const struct range *range, const uint64_t *keep,
                      struct announcement **out) {
  struct range *at = ranges_first_beyond(&announced->ranges, range->kind, range->start);
  while (at && at->start < range->end) {
    struct range *after = range_after(at);
    if (!keep || announcement_of(at)->buffer != *keep)
      take_out(announced, announcement_of(at), out);
    at = after;
  }
}

void announced_free(struct announcement *chain) {
  while (chain) {
    struct announcement *next = chain->next;
    alloc_free(chain);
    chain = next;
  }
}

void announced_refused(struct announced *announced, const struct range *pages, bool room) {
  if (room) {
    announced->merge = page_down(announced, announced->merge / 2);
    return;
  }
  struct range *at = ranges_first_beyond(&announced->ranges, pages->kind, pages->start);
  for (; at && at->start < pages->end; at = range_after(at))
    announcement_of(at)->alone = true;
}

/* ---- how much is registered together ---- */

static bool may_join(struct range *range, uint64_t buffer) {
  const struct announcement *announcement = announcement_of(range);
  return !announcement->alone && announcement->buffer == buffer;
}

/* The first that touches the pages or lies behind them, and the last that touches them or lies
 * before: pages touch when none is between them. */
static struct range *first_touching(const struct announced *announced, const struct range *pages) {
  uint64_t page = announced->page;
  return ranges_first_beyond(&announced->ranges, pages->kind,
                             pages->start < page ? 0 : pages->start - page);
}

static struct range *last_touching(const struct announced *announced, const struct range *pages) {
  return ranges_last_from(&announced->ranges, pages->kind, pages->end + (announced->page - 1));
}

/* The end of the announced memory that touches the pages, and of what touches that. */
static uint64_t announced_end(const struct announced *announced, uint64_t buffer,
                              const struct range *pages) {
  uint64_t end = pages->end;
  struct range *at = first_touching(announced, pages);
  for (; at && page_down(announced, at->start) <= end; at = range_after(at))
    if (may_join(at, buffer))
      end = higher_of(end, page_up(announced, at->end));
  return end;
}

static uint64_t announced_start(const struct announced *announced, uint64_t buffer,
                                const struct range *pages) {
  uint64_t start = pages->start;
  struct range *at = last_touching(announced, pages);
  for (; at && page_up(announced, at->end) >= start; at = range_before(at))
    if (may_join(at, buffer))
      start = lower_of(start, page_down(announced, at->start));
  return start;
}

/* How far up to `end` the pages can grow without registering anew what is larger than they are. */
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

/* With what overlaps them and is not larger. */
static void join_live(const struct ranges *live, uint64_t most, struct range *pages) {
  const struct range asked = *pages;
  const struct range *at = ranges_first_beyond(live, asked.kind, asked.start);
  for (; at && at->start < asked.end; at = range_after(at)) {
    uint64_t start = lower_of(pages->start, at->start), end = higher_of(pages->end, at->end);
    if (range_length(at) <= range_length(&asked) && end - start <= most) {
      pages->start = start;
      pages->end = end;
    }
  }
}

void announced_widen(const struct announced *announced, const struct ranges *live, uint64_t buffer,
                     struct range *pages) {
  join_live(live, announced->merge, pages);
  if (announced->merge == 0)
    return;
  uint64_t block = pages->start - pages->start % announced->merge;
  if (pages->end - block > announced->merge)
    return;
  uint64_t top = page_down(announced, UINT64_MAX);
  uint64_t block_end = block > top - announced->merge ? top : block + announced->merge;
  uint64_t end = lower_of(announced_end(announced, buffer, pages), block_end);
  uint64_t start = higher_of(announced_start(announced, buffer, pages), block);
  pages->end = grown_end(live, pages, end);
  pages->start = grown_start(live, pages, start);
}
