/* SPDX-License-Identifier: MIT
 * Plans, by their properties: nothing is lost, nothing is added, no bound is broken. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "transfer/transfer.h"

#define MIB ((uint64_t)1 << 20)

static uint32_t slice = WORK_BYTES_MAX;

/* xorshift64 (Marsaglia 2003): the same pieces at every run. */
static uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t below(uint64_t limit) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed % limit;
}

static uint64_t sum(const struct haul_piece *pieces, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++)
    bytes += pieces[i].length;
  return bytes;
}

static bool touch(const struct haul_piece *before, const struct haul_piece *after) {
  return before->local + before->length == after->local &&
         before->remote + before->length == after->remote;
}

/* Made in arrays of just the promised sizes, so that the sanitizer sees a write behind them. */
static struct plan plan_of(const struct haul_piece *pieces, size_t count) {
  uint64_t bytes = sum(pieces, count);
  struct plan plan = {.pieces = calloc(plan_pieces(count, bytes, slice), sizeof *plan.pieces),
                      .works = calloc(plan_works(count, bytes, slice), sizeof *plan.works)};
  assert_non_null(plan.pieces);
  assert_non_null(plan.works);
  plan_make(&plan, pieces, count, slice);
  assert_true(plan.work_count >= 1 && plan.work_count <= plan_works(count, bytes, slice));
  return plan;
}

static void drop(struct plan *plan) {
  free(plan->pieces);
  free(plan->works);
}

static void check_work(const struct plan *plan, uint32_t i) {
  const struct work *work = &plan->works[i];
  assert_true(work->bytes > 0 && work->bytes <= slice);
  assert_true(work->count > 0 && work->count <= WORK_PIECES_MAX);
  assert_true(work->bytes == sum(work->pieces, work->count));
  for (uint32_t k = 1; k < work->count; k++)
    assert_false(touch(&work->pieces[k - 1], &work->pieces[k]));
  if (i + 1 < plan->work_count)
    assert_true(work->bytes == slice || work->count == WORK_PIECES_MAX);
}

/* The plan is the pieces, in their order, byte for byte. */
static void check_bytes(const struct plan *plan, const struct haul_piece *pieces, size_t count) {
  struct haul_piece left = pieces[0];
  size_t at = 0;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    for (uint32_t k = 0; k < plan->works[i].count; k++) {
      struct haul_piece got = plan->works[i].pieces[k];
      while (got.length > 0) {
        assert_true(at < count);
        assert_true(got.local == left.local && got.remote == left.remote);
        uint64_t both = got.length < left.length ? got.length : left.length;
        got = (struct haul_piece){got.local + both, got.remote + both, got.length - both};
        left = (struct haul_piece){left.local + both, left.remote + both, left.length - both};
        if (left.length == 0 && ++at < count)
          left = pieces[at];
      }
    }
  }
  assert_int_equal(at, count);
}

static void check(const struct haul_piece *pieces, size_t count) {
  struct plan plan = plan_of(pieces, count);
  for (uint32_t i = 0; i < plan.work_count; i++)
    check_work(&plan, i);
  check_bytes(&plan, pieces, count);
  drop(&plan);
}

static void one_byte_is_one_work(void **state) {
  (void)state;
  struct haul_piece piece = {5, 7, 1};
  struct plan plan = plan_of(&piece, 1);
  assert_int_equal(plan.work_count, 1);
  assert_memory_equal(plan.works[0].pieces, &piece, sizeof piece);
  drop(&plan);
}

static void slices_at_the_bound(void **state) {
  (void)state;
  static const struct {
    uint64_t length;
    uint32_t works;
  } cases[] = {{MIB - 1, 1}, {MIB, 1}, {MIB + 1, 2}, {64 * MIB, 64}, {64 * MIB + 1, 65}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct haul_piece piece = {3, 9, cases[i].length};
    struct plan plan = plan_of(&piece, 1);
    assert_int_equal(plan.work_count, cases[i].works);
    drop(&plan);
    check(&piece, 1);
  }
}

static void merges_only_what_touches_on_both_sides(void **state) {
  (void)state;
  const struct haul_piece both[] = {{0, 100, 10}, {10, 110, 10}, {20, 120, 1}};
  const struct haul_piece local[] = {{0, 100, 10}, {10, 111, 10}};
  const struct haul_piece remote[] = {{0, 100, 10}, {11, 110, 10}};
  struct plan plan = plan_of(both, 3);
  assert_int_equal(plan.works[0].count, 1);
  assert_true(plan.works[0].pieces[0].length == 21);
  drop(&plan);
  plan = plan_of(local, 2);
  assert_int_equal(plan.works[0].count, 2);
  drop(&plan);
  plan = plan_of(remote, 2);
  assert_int_equal(plan.works[0].count, 2);
  drop(&plan);
}

static void a_work_has_at_most_so_many_pieces(void **state) {
  (void)state;
  struct haul_piece pieces[2 * WORK_PIECES_MAX + 1];
  for (size_t i = 0; i < COUNT(pieces); i++)
    pieces[i] = (struct haul_piece){i * 16, i * 16, 8};
  for (size_t count = WORK_PIECES_MAX - 1; count <= COUNT(pieces); count++)
    check(pieces, count);
}

/* Pieces of one kind of size, each touching the one before it as often as `touching` of 8 say. */
static void fill(struct haul_piece *pieces, size_t count, uint64_t longest, uint64_t touching) {
  struct haul_piece *before = NULL;
  for (size_t i = 0; i < count; i++) {
    bool on = before && below(8) < touching;
    pieces[i].local = on ? before->local + before->length : below(UINT64_C(1) << 40);
    pieces[i].remote = on ? before->remote + before->length : below(UINT64_C(1) << 40);
    pieces[i].length = 1 + below(longest);
    before = &pieces[i];
  }
}

static void random_pieces(void **state) {
  (void)state;
  enum { MOST = 3000 };
  struct haul_piece *pieces = calloc(MOST, sizeof *pieces);
  static const uint64_t longest[] = {1, 64, 5000, WORK_BYTES_MAX, 3 * WORK_BYTES_MAX};
  assert_non_null(pieces);
  for (int round = 0; round < 1500; round++) {
    size_t count = 1 + below(round % 10 == 0 ? MOST : 600);
    fill(pieces, count, longest[below(COUNT(longest))], below(9));
    slice = WORK_BYTES_MAX >> below(4);
    check(pieces, count);
  }
  slice = WORK_BYTES_MAX;
  free(pieces);
}

/* The worst for the number of works: each full one is followed by one that its pieces fill. */
static void full_by_bytes_and_full_by_pieces_in_turn(void **state) {
  (void)state;
  enum { ROUNDS = 20, EACH = WORK_PIECES_MAX };
  struct haul_piece *pieces = calloc(ROUNDS * (EACH + 1), sizeof *pieces);
  size_t count = 0;
  assert_non_null(pieces);
  for (int round = 0; round < ROUNDS; round++) {
    pieces[count] = (struct haul_piece){count * 4 * MIB, count * 4 * MIB, WORK_BYTES_MAX};
    count++;
    for (int i = 0; i < EACH; i++, count++)
      pieces[count] = (struct haul_piece){count * 4 * MIB, count * 4 * MIB, 1};
  }
  check(pieces, count);
  free(pieces);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_byte_is_one_work),
      cmocka_unit_test(slices_at_the_bound),
      cmocka_unit_test(merges_only_what_touches_on_both_sides),
      cmocka_unit_test(a_work_has_at_most_so_many_pieces),
      cmocka_unit_test(random_pieces),
      cmocka_unit_test(full_by_bytes_and_full_by_pieces_in_turn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
