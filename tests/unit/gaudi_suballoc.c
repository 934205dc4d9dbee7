/* SPDX-License-Identifier: MIT
 * The suballocator: parts do not overlap, all are freed, and a free needs no memory. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "memory/gaudi/suballoc.h"
#include "support/owner.h"
#include "support/seams.h"

#define KIB ((uint64_t)1024)
#define MIB ((uint64_t)1 << 20)

static struct suballoc open_one(uint64_t length) {
  struct suballoc suballoc;
  assert_works(suballoc_open(&suballoc, length));
  return suballoc;
}

static uint64_t take(struct suballoc *suballoc, uint64_t length) {
  uint64_t offset = UINT64_MAX;
  assert_works(suballoc_take(suballoc, length, &offset));
  return offset;
}

/* One hole, as at the start. */
static void is_whole(const struct suballoc *suballoc) {
  assert_int_equal(suballoc->parts, 0);
  assert_int_equal(suballoc->count, 1);
  assert_int_equal(suballoc->holes[0].offset, 0);
  assert_int_equal(suballoc->holes[0].length, suballoc->length);
}

static void all_of_it_can_be_allocated(void **state) {
  (void)state;
  struct suballoc suballoc = open_one(MIB);
  uint64_t offset;
  assert_int_equal(suballoc_fit(&suballoc, MIB), MIB);
  assert_int_equal(suballoc_fit(&suballoc, MIB + 4 * KIB), 0);
  assert_int_equal(take(&suballoc, MIB), 0);
  assert_int_equal(suballoc_fit(&suballoc, 4 * KIB), 0);
  assert_fails(HAUL_ENOMEM, suballoc_take(&suballoc, 4 * KIB, &offset));
  suballoc_give(&suballoc, 0, MIB);
  is_whole(&suballoc);
  suballoc_close(&suballoc);
}

static void the_smallest_hole_that_fits_is_taken(void **state) {
  (void)state;
  struct suballoc suballoc = open_one(MIB);
  uint64_t a = take(&suballoc, 64 * KIB), keep = take(&suballoc, 4 * KIB);
  uint64_t b = take(&suballoc, 16 * KIB), also = take(&suballoc, 4 * KIB);
  suballoc_give(&suballoc, a, 64 * KIB);
  suballoc_give(&suballoc, b, 16 * KIB);
  assert_int_equal(suballoc_fit(&suballoc, 8 * KIB), 16 * KIB);
  assert_int_equal(take(&suballoc, 8 * KIB), b);
  assert_int_equal(take(&suballoc, 32 * KIB), a);
  assert_int_equal(take(&suballoc, 128 * KIB), also + 4 * KIB);
  assert_true(keep == a + 64 * KIB);
  suballoc_close(&suballoc);
}

/* All cases of a freed part that is adjacent to holes. */
static void adjacent_holes_are_merged(void **state) {
  (void)state;
  const unsigned orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (size_t i = 0; i < COUNT(orders); i++) {
    struct suballoc suballoc = open_one(12 * KIB);
    for (unsigned k = 0; k < 3; k++)
      assert_int_equal(take(&suballoc, 4 * KIB), k * 4 * KIB);
    for (unsigned k = 0; k < 3; k++)
      suballoc_give(&suballoc, orders[i][k] * 4 * KIB, 4 * KIB);
    is_whole(&suballoc);
    suballoc_close(&suballoc);
  }
}

static void fragments_serve_small_requests(void **state) {
  (void)state;
  struct suballoc suballoc = open_one(MIB);
  uint64_t offset;
  for (unsigned i = 0; i < 256; i++)
    take(&suballoc, 4 * KIB);
  for (uint64_t i = 0; i < 256; i += 2)
    suballoc_give(&suballoc, i * 4 * KIB, 4 * KIB);
  assert_int_equal(suballoc.count, 128);
  assert_fails(HAUL_ENOMEM, suballoc_take(&suballoc, 8 * KIB, &offset));
  assert_int_equal(take(&suballoc, 4 * KIB), 0); /* the lowest of equal holes */
  suballoc_give(&suballoc, 4 * KIB, 4 * KIB);
  assert_int_equal(take(&suballoc, 8 * KIB), 4 * KIB);
  suballoc_close(&suballoc);
}

/* Owner of each step; each operation is checked against it. */
#define STEPS 512u
#define PARTS 200u

struct model {
  struct suballoc suballoc;
  uint8_t owned[STEPS];
  uint64_t offsets[PARTS], lengths[PARTS]; /* length 0: free */
};

static void mark(struct model *model, unsigned i, uint8_t before, uint8_t after) {
  assert_int_equal(model->offsets[i] % SUBALLOC_STEP, 0);
  assert_true(model->offsets[i] + model->lengths[i] <= STEPS * SUBALLOC_STEP);
  for (uint64_t k = 0; k < model->lengths[i] / SUBALLOC_STEP; k++) {
    uint8_t *step = &model->owned[model->offsets[i] / SUBALLOC_STEP + k];
    assert_int_equal(*step, before);
    *step = after;
  }
}

static bool has_room(const struct model *model, uint64_t length) {
  uint64_t run = 0;
  for (unsigned k = 0; k < STEPS; k++) {
    run = model->owned[k] ? 0 : run + SUBALLOC_STEP;
    if (run >= length)
      return true;
  }
  return false;
}

static void change_one(struct model *model, uint64_t *seed) {
  unsigned i = (unsigned)(next_random(seed) % PARTS);
  if (model->lengths[i]) {
    mark(model, i, 1, 0);
    suballoc_give(&model->suballoc, model->offsets[i], model->lengths[i]);
    model->lengths[i] = 0;
    return;
  }
  uint64_t length = (1 + next_random(seed) % 12) * SUBALLOC_STEP;
  bool room = has_room(model, length);
  assert_int_equal(suballoc_fit(&model->suballoc, length) > 0, room);
  int code = suballoc_take(&model->suballoc, length, &model->offsets[i]);
  assert_int_equal(code, room ? 0 : HAUL_ENOMEM);
  if (code)
    return;
  model->lengths[i] = length;
  mark(model, i, 0, 1);
}

static void parts_never_overlap(void **state) {
  (void)state;
  uint64_t seed = test_seed();
  struct model *model = calloc(1, sizeof *model);
  model->suballoc = open_one(STEPS * SUBALLOC_STEP);
  for (unsigned round = 0; round < 20000; round++)
    change_one(model, &seed);
  for (unsigned i = 0; i < PARTS; i++)
    if (model->lengths[i])
      suballoc_give(&model->suballoc, model->offsets[i], model->lengths[i]);
  is_whole(&model->suballoc);
  suballoc_close(&model->suballoc);
  free(model);
}

static void frees_need_no_memory(void **state) {
  (void)state;
  struct suballoc suballoc = open_one(MIB);
  uint64_t offset;
  unsigned taken = 0;
  seams_refuse_from(1);
  while (suballoc_take(&suballoc, 4 * KIB, &offset) == 0)
    taken++;
  assert_int_equal(haul_error_last()->code, HAUL_ENOMEM);
  assert_true(taken > 0 && taken < 256);
  assert_int_equal(suballoc.parts, taken);
  for (uint64_t i = 0; i < taken; i += 2) /* the maximum of holes */
    suballoc_give(&suballoc, i * 4 * KIB, 4 * KIB);
  for (uint64_t i = 1; i < taken; i += 2)
    suballoc_give(&suballoc, i * 4 * KIB, 4 * KIB);
  is_whole(&suballoc);
  assert_true(seams_restore());
  suballoc_close(&suballoc);
}

static void the_number_of_parts_is_bounded(void **state) {
  (void)state;
  struct suballoc suballoc = open_one((uint64_t)768 * MIB);
  uint64_t offset;
  for (unsigned i = 0; i < SUBALLOC_PARTS; i++)
    assert_int_equal(suballoc_take(&suballoc, 4 * KIB, &offset), 0);
  assert_fails(HAUL_ELIMIT, suballoc_take(&suballoc, 4 * KIB, &offset));
  suballoc_give(&suballoc, offset, 4 * KIB);
  assert_int_equal(take(&suballoc, 4 * KIB), offset);
  suballoc_close(&suballoc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_of_it_can_be_allocated),
      cmocka_unit_test(the_smallest_hole_that_fits_is_taken),
      cmocka_unit_test(adjacent_holes_are_merged),
      cmocka_unit_test(fragments_serve_small_requests),
      cmocka_unit_test(parts_never_overlap),
      cmocka_unit_test(frees_need_no_memory),
      cmocka_unit_test(the_number_of_parts_is_bounded),
  };
  return cmocka_run_group_tests_name("gaudi/suballoc", tests, NULL, NULL);
}
