/* SPDX-License-Identifier: MIT
 * Ordered ranges, compared with a plain list. */
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>

#include "core/ranges.h"

#define RANGES 300
#define SPACE  2000

static struct range items[RANGES];
static bool present[RANGES];

static uint32_t random_below(uint32_t *seed, uint32_t bound) {
  *seed = *seed * 1664525 + 1013904223;
  return (uint32_t)((uint64_t)*seed * bound >> 32);
}

static struct range *plain_last_from(uint32_t kind, uint64_t address) {
  struct range *found = NULL;
  for (size_t i = 0; i < RANGES; i++)
    if (present[i] && items[i].kind == kind && items[i].start <= address &&
        (!found || items[i].start > found->start))
      found = &items[i];
  return found;
}

static struct range *plain_first_beyond(uint32_t kind, uint64_t address) {
  struct range *found = NULL;
  for (size_t i = 0; i < RANGES; i++)
    if (present[i] && items[i].kind == kind && items[i].end > address &&
        (!found || items[i].end < found->end))
      found = &items[i];
  return found;
}

static bool nests(const struct range *range) {
  for (size_t i = 0; i < RANGES; i++)
    if (present[i] && items[i].kind == range->kind &&
        ((items[i].start <= range->start && range->end <= items[i].end) ||
         (range->start <= items[i].start && items[i].end <= range->end)))
      return true;
  return false;
}

static void check_order(const struct ranges *ranges) {
  size_t count = 0, wanted = 0;
  for (size_t i = 0; i < RANGES; i++)
    wanted += present[i];
  const struct range *before = NULL;
  for (const struct range *at = ranges->first; at; before = at, at = at->after, count++) {
    assert_ptr_equal(at->before, before);
    if (before && before->kind == at->kind)
      assert_true(before->start < at->start && before->end < at->end);
    else if (before)
      assert_true(before->kind < at->kind);
  }
  assert_int_equal(count, wanted);
}

static void an_empty_set_finds_nothing(void **state) {
  (void)state;
  struct ranges ranges = {0};
  assert_null(ranges_last_from(&ranges, 0, UINT64_MAX));
  assert_null(ranges_first_beyond(&ranges, 0, 0));
  assert_null(ranges_cover(&ranges, 0, 0, 1));
}

static void kinds_are_separate(void **state) {
  (void)state;
  struct ranges ranges = {0};
  struct range one = {.start = 10, .end = 20, .kind = 1}, two = {.start = 10, .end = 20, .kind = 2};
  ranges_add(&ranges, &two);
  ranges_add(&ranges, &one);
  assert_ptr_equal(ranges_cover(&ranges, 1, 10, 20), &one);
  assert_ptr_equal(ranges_cover(&ranges, 2, 19, 20), &two);
  assert_null(ranges_cover(&ranges, 0, 10, 20));
  assert_null(ranges_cover(&ranges, 3, 10, 20));
  assert_null(ranges_last_from(&ranges, 2, 9));
  assert_null(ranges_first_beyond(&ranges, 1, 20));
  assert_null(range_after(&one));
  assert_null(range_before(&two));
  assert_ptr_equal(one.after, &two);
}

static void agrees_with_a_plain_list(void **state) {
  (void)state;
  struct ranges ranges = {0};
  uint32_t seed = 7;
  for (unsigned step = 0; step < 30000; step++) {
    size_t i = random_below(&seed, RANGES);
    if (present[i]) {
      ranges_remove(&ranges, &items[i]);
      present[i] = false;
    } else {
      items[i].kind = random_below(&seed, 2);
      items[i].start = random_below(&seed, SPACE);
      items[i].end = items[i].start + 1 + random_below(&seed, 60);
      if (!nests(&items[i])) {
        ranges_add(&ranges, &items[i]);
        present[i] = true;
      }
    }
    uint32_t kind = random_below(&seed, 2), address = random_below(&seed, SPACE + 60);
    assert_ptr_equal(ranges_last_from(&ranges, kind, address), plain_last_from(kind, address));
    assert_ptr_equal(ranges_first_beyond(&ranges, kind, address),
                     plain_first_beyond(kind, address));
    if (step % 64 == 0)
      check_order(&ranges);
  }
}

static unsigned depth(const struct range *tree) {
  if (!tree)
    return 0;
  unsigned low = depth(tree->lower), high = depth(tree->upper);
  return 1 + (low > high ? low : high);
}

static void stays_balanced_for_rising_addresses(void **state) {
  (void)state;
  enum { MANY = 20000 };
  struct ranges ranges = {0};
  struct range *many = calloc(MANY, sizeof *many);
  for (size_t i = 0; i < MANY; i++) {
    many[i].start = i * 10;
    many[i].end = many[i].start + 15;
    ranges_add(&ranges, &many[i]);
  }
  assert_true(depth(ranges.root) < 60);
  for (size_t i = 0; i < MANY; i++)
    ranges_remove(&ranges, &many[i]);
  assert_null(ranges.root);
  assert_null(ranges.first);
  free(many);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_empty_set_finds_nothing),
      cmocka_unit_test(kinds_are_separate),
      cmocka_unit_test(agrees_with_a_plain_list),
      cmocka_unit_test(stays_balanced_for_rising_addresses),
  };
  return cmocka_run_group_tests_name("core/ranges", tests, NULL, NULL);
}
