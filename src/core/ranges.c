/* SPDX-License-Identifier: MIT */
#include "core/ranges.h"

#include <stdbool.h>

static bool is_before(const struct range *one, const struct range *other) {
  return one->kind != other->kind ? one->kind < other->kind : one->start < other->start;
}

/* A hashed counter: ranks without a pattern keep the treap balanced for any order of addresses. */
static uint32_t next_rank(struct ranges *ranges) {
  uint32_t rank = ranges->ranks += 0x9e3779b9;
  rank = (rank ^ rank >> 16) * 0x85ebca6b;
  rank = (rank ^ rank >> 13) * 0xc2b2ae35;
  return rank ^ rank >> 16;
}

/* Splits the tree into the ranges before `at` and the rest. */
static void split(struct range *tree, const struct range *at, struct range **low,
                  struct range **high) {
  while (tree) {
    struct range **half = is_before(tree, at) ? &tree->upper : &tree->lower;
    struct range *next = *half;
    if (half == &tree->upper) {
      *low = tree;
      low = half;
    } else {
      *high = tree;
      high = half;
    }
    tree = next;
  }
  *low = *high = NULL;
}

static struct range *join(struct range *low, struct range *high) {
  struct range *tree, **into = &tree;
  while (low && high) {
    if (low->rank >= high->rank) {
      *into = low;
      into = &low->upper;
      low = *into;
    } else {
      *into = high;
      into = &high->lower;
      high = *into;
    }
  }
  *into = low ? low : high;
  return tree;
}

static void link_between(struct ranges *ranges, struct range *range, struct range *before) {
  struct range *after = before ? before->after : ranges->first;
  range->before = before;
  range->after = after;
  if (after)
    after->before = range;
  if (before)
    before->after = range;
  else
    ranges->first = range;
}

__attribute__((cold)) void ranges_add(struct ranges *ranges, struct range *range) {
  struct range **at = &ranges->root, **place = NULL, *before = NULL;
  range->rank = next_rank(ranges);
  while (*at) {
    place = !place && (*at)->rank < range->rank ? at : place;
    bool is_behind = is_before(*at, range);
    before = is_behind ? *at : before;
    at = is_behind ? &(*at)->upper : &(*at)->lower;
  }
  place = place ? place : at;
  link_between(ranges, range, before);
  split(*place, range, &range->lower, &range->upper);
  *place = range;
}

__attribute__((cold)) void ranges_remove(struct ranges *ranges, struct range *range) {
  struct range **at = &ranges->root;
  while (*at != range)
    at = is_before(*at, range) ? &(*at)->upper : &(*at)->lower;
  *at = join(range->lower, range->upper);
  if (range->after)
    range->after->before = range->before;
  if (range->before)
    range->before->after = range->after;
  else
    ranges->first = range->after;
}

struct range *ranges_last_from(const struct ranges *ranges, uint32_t kind, uint64_t address) {
  struct range *found = NULL;
  for (struct range *at = ranges->root; at;) {
    bool fits = at->kind != kind ? at->kind < kind : at->start <= address;
    found = fits ? at : found;
    at = fits ? at->upper : at->lower;
  }
  return found && found->kind == kind ? found : NULL;
}

struct range *ranges_first_beyond(const struct ranges *ranges, uint32_t kind, uint64_t address) {
  struct range *found = NULL;
  for (struct range *at = ranges->root; at;) {
    bool fits = at->kind != kind ? at->kind > kind : at->end > address;
    found = fits ? at : found;
    at = fits ? at->lower : at->upper;
  }
  return found && found->kind == kind ? found : NULL;
}
