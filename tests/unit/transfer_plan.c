/* SPDX-License-Identifier: MIT
 * Properties of plans: they move exactly the given bytes and keep every bound. And the size of
 * slices: tuned where it matters, else WORK_BYTES_MAX. */
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

/* Makes a plan in arrays of exactly the promised lengths, so that a sanitizer sees an overflow. */
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

/* The plan moves the bytes of the pieces in their order. */
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

static void only_ranges_that_touch_on_both_sides_are_merged(void **state) {
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

static void a_work_has_at_most_work_pieces_max(void **state) {
  (void)state;
  struct haul_piece pieces[2 * WORK_PIECES_MAX + 1];
  for (size_t i = 0; i < COUNT(pieces); i++)
    pieces[i] = (struct haul_piece){i * 16, i * 16, 8};
  for (size_t count = WORK_PIECES_MAX - 1; count <= COUNT(pieces); count++)
    check(pieces, count);
}

/* Random pieces; `touching` of 8 begin at the end of the piece before. */
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

/* The worst case for the number of works: full by bytes and full by pieces in turn. */
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

#define KIB   ((uint64_t)1 << 10)
#define WHOLE ((uint64_t)WORK_BYTES_MAX)

/* Slices are tuned from two of the smallest ones up to the bytes that fill the pipeline. */
static const uint64_t tuned[] = {256 * KIB, 256 * KIB + 1, WHOLE, 8 * WHOLE - 1};
static const uint64_t untuned[] = {0, 1, 64 * KIB, 256 * KIB - 1, 8 * WHOLE, UINT64_MAX};

/* Records `count` transfers; costs: ns a byte for each size. Returns the size of the last one. */
static uint32_t run_transfers(struct tune *tune, const int64_t *costs, unsigned count) {
  struct slice got = {.bytes = 0};
  for (unsigned i = 0; i < count; i++) {
    got = slice_choose(tune, WHOLE, true);
    tune_record(got.tune, got.way, 1000, costs[got.way] * 1000);
  }
  return got.bytes;
}

static void other_sizes_are_not_tuned(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[TUNE_WAYS] = {9, 9, 9, 4};
  run_transfers(&tune, costs, 100);
  uint32_t turns = tune.turns;
  for (size_t i = 0; i < COUNT(untuned); i++) {
    struct slice got = slice_choose(&tune, untuned[i], true);
    assert_int_equal(got.bytes, WHOLE);
    assert_null(got.tune);
    assert_int_equal(slice_best(&tune, untuned[i]), WHOLE);
  }
  assert_int_equal(tune.turns, turns);
}

static void slices_are_whole_before_measurements(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  for (size_t i = 0; i < COUNT(tuned); i++) {
    assert_int_equal(slice_best(&tune, tuned[i]), WHOLE);
    assert_int_equal(slice_choose(&tune, tuned[i], false).bytes, WHOLE);
  }
}

/* Each size four times: 1 MiB, halved down to 128 KiB. */
static void each_size_is_tried_first(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[TUNE_WAYS] = {9, 9, 9, 9};
  unsigned tried[TUNE_WAYS] = {0};
  for (unsigned i = 0; i < TUNE_WAYS * MEASURE_FIRST; i++) {
    struct slice got = slice_choose(&tune, WHOLE, true);
    assert_ptr_equal(got.tune, &tune);
    assert_int_equal(got.bytes, WHOLE >> got.way);
    tried[got.way]++;
    tune_record(got.tune, got.way, 1000, costs[got.way] * 1000);
  }
  for (unsigned way = 0; way < TUNE_WAYS; way++)
    assert_int_equal(tried[way], MEASURE_FIRST);
  assert_int_equal(WHOLE >> (TUNE_WAYS - 1), 128 * KIB);
}

static void then_the_fastest_size_is_chosen(void **state) {
  (void)state;
  for (unsigned fastest = 0; fastest < TUNE_WAYS; fastest++) {
    struct tune tune = {.turns = 0};
    int64_t costs[TUNE_WAYS] = {9, 9, 9, 9};
    costs[fastest] = 6;
    assert_int_equal(run_transfers(&tune, costs, TUNE_WAYS * MEASURE_FIRST + 1), WHOLE >> fastest);
    for (size_t i = 0; i < COUNT(tuned); i++)
      assert_int_equal(slice_best(&tune, tuned[i]), WHOLE >> fastest);
  }
}

/* A transfer with a checksum is not measured, so it tries no other size. */
static void an_unmeasured_transfer_takes_the_fastest(void **state) {
  (void)state;
  struct tune tune = {.turns = 0};
  const int64_t costs[TUNE_WAYS] = {9, 9, 6, 9};
  run_transfers(&tune, costs, TUNE_WAYS * MEASURE_FIRST);
  uint32_t turns = tune.turns;
  for (unsigned i = 0; i < 200; i++) {
    struct slice got = slice_choose(&tune, WHOLE, false);
    assert_null(got.tune);
    assert_int_equal(got.bytes, WHOLE >> 2);
  }
  assert_int_equal(tune.turns, turns);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_byte_is_one_work),
      cmocka_unit_test(slices_at_the_bound),
      cmocka_unit_test(only_ranges_that_touch_on_both_sides_are_merged),
      cmocka_unit_test(a_work_has_at_most_work_pieces_max),
      cmocka_unit_test(random_pieces),
      cmocka_unit_test(full_by_bytes_and_full_by_pieces_in_turn),
      cmocka_unit_test(other_sizes_are_not_tuned),
      cmocka_unit_test(slices_are_whole_before_measurements),
      cmocka_unit_test(each_size_is_tried_first),
      cmocka_unit_test(then_the_fastest_size_is_chosen),
      cmocka_unit_test(an_unmeasured_transfer_takes_the_fastest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
