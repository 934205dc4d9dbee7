/* SPDX-License-Identifier: MIT
 * What paths take by size: as they are estimated, and as transfers correct that. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

#include "support/seams.h"
#include "transfer/costs.h"

enum { MAP, RDMA, TCP };
#define MS  INT64_C(1000000)
#define MIN (60000 * MS)

static struct {
  struct link link;
  struct estimate estimates[TRANSPORTS_MAX];
  int64_t now;
} t;

/* As between two hosts: rdma 3 us and 10 GB/s, tcp 30 us and 2 GB/s, map closed. */
static int setup(void **state) {
  (void)state;
  memset(&t, 0, sizeof t);
  t.now = 100000 * MS;
  t.estimates[RDMA] = (struct estimate){
      .open = true, .zero_copy = true, .lines[SEND_ZERO_COPY] = {UINT64_MAX, 3000, 0.1}};
  t.estimates[TCP] = (struct estimate){.open = true,
                                       .lines[SEND_BUFFERED] = {65535, 30000, 0.5},
                                       .lines[SEND_ZERO_COPY] = {UINT64_MAX, 30000, 0.5}};
  return 0;
}

static int teardown(void **state) {
  (void)state;
  costs_free(&t.link);
  return 0;
}

static struct costs *make(void) {
  struct costs *costs = costs_of(&t.link, 1, (struct haul_place){HAUL_HOST, 0}, t.estimates);
  assert_non_null(costs);
  return costs;
}

/* `count` transfers by the chosen path, or by `path`, each of which takes `times` its estimate. */
static void tell(struct costs *costs, int path, uint64_t bytes, double times, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    double ns = lines_ns(t.estimates[path].lines, bytes) * times;
    t.now += 2 * MS;
    costs_tell(costs, (size_t)path, bytes, (int64_t)ns, t.now);
  }
}

#define MIB ((uint64_t)1 << 20)

/* ---- What cannot mislead ---- */

static void one_outlier_changes_nothing(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, RDMA, MIB, 1, 20);
  tell(costs, RDMA, MIB, 1000, 1);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  assert_true(costs_correction(costs, RDMA, MIB, NULL) < 1.2);
}

static void three_transfers_are_not_enough(void **state) {
  (void)state;
  struct costs *costs = make();
  bool known;
  tell(costs, RDMA, MIB, 15, 3);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  assert_true(costs_correction(costs, RDMA, MIB, &known) == 1);
  assert_false(known);
}

/* The first ones also pay for registrations and windows. */
static void the_least_of_the_first_four_counts(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, RDMA, MIB, 15, 3);
  tell(costs, RDMA, MIB, 1, 1);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  assert_true(costs_correction(costs, RDMA, MIB, NULL) < 1.01);
}

static void a_correction_is_bounded(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, TCP, MIB, 1e9, 40);
  assert_true(costs_correction(costs, TCP, MIB, NULL) <= COST_BOUND);
  tell(costs, RDMA, MIB, 1e-9, 40);
  assert_true(costs_correction(costs, RDMA, MIB, NULL) >= 1 / COST_BOUND);
  costs_tell(costs, RDMA, MIB, INT64_MAX, t.now += MS);
  costs_tell(costs, RDMA, UINT64_MAX, 1, t.now += MS);
  costs_tell(costs, RDMA, 0, 1, t.now += MS);
  costs_tell(costs, RDMA, MIB, 0, t.now += MS);
  costs_tell(costs, RDMA, MIB, -1, t.now += MS);
  costs_tell(costs, MAP, MIB, 1, t.now += MS); /* closed */
  assert_int_equal(costs_best(costs, MIB), RDMA);
}

/* About as fast is no reason to change, again and again, as noise likes. */
static void what_is_little_faster_does_not_take_over(void **state) {
  (void)state;
  struct costs *costs = make();
  double same = lines_ns(t.estimates[TCP].lines, MIB) / lines_ns(t.estimates[RDMA].lines, MIB);
  for (unsigned i = 0; i < 50; i++) {
    tell(costs, RDMA, MIB, same * 1.05, 1);
    assert_int_equal(costs_best(costs, MIB), RDMA);
  }
}

/* Within the host no other path does less, whatever a loaded processor makes of it. */
static void the_straight_path_within_the_host_stands(void **state) {
  (void)state;
  t.estimates[MAP] = (struct estimate){
      .open = true, .zero_copy = true, .lines[SEND_SHORT] = {UINT64_MAX, 100, 0.1}};
  struct costs *costs = make();
  tell(costs, MAP, MIB, 16, 100);
  assert_int_equal(costs_best(costs, MIB), MAP);
  assert_int_equal(costs_best(costs, 8), MAP);
}

static void what_takes_only_those_who_ask_is_not_chosen(void **state) {
  (void)state;
  t.estimates[RDMA].explicit_only = true;
  assert_int_equal(costs_best(make(), 8), TCP);
}

static void without_an_open_path_there_is_none(void **state) {
  (void)state;
  t.estimates[RDMA].open = t.estimates[TCP].open = false;
  struct costs *costs = make();
  assert_int_equal(costs_best(costs, 8), -1);
  costs_tell(costs, TCP, 8, 100, t.now);
  assert_int_equal(costs_best(costs, 8), -1);
}

static void a_link_has_a_bounded_number(void **state) {
  (void)state;
  struct haul_place there = {HAUL_SIM, 0};
  for (unsigned i = 0; i < COSTS_MAX; i++)
    assert_non_null(costs_of(&t.link, i, there, t.estimates));
  assert_null(costs_of(&t.link, COSTS_MAX, there, t.estimates));
  assert_non_null(costs_of(&t.link, 7, there, t.estimates)); /* there already */
}

static void without_memory_there_are_none(void **state) {
  (void)state;
  seams_refuse(1);
  assert_null(costs_of(&t.link, 1, (struct haul_place){HAUL_HOST, 0}, t.estimates));
  assert_true(seams_restore());
  make();
}

/* ---- What corrects ---- */

static void at_first_the_estimates_decide(void **state) {
  (void)state;
  t.estimates[RDMA].lines[SEND_ZERO_COPY].latency_ns = 60000;
  struct costs *costs = make();
  assert_int_equal(costs_best(costs, 8), TCP);
  assert_int_equal(costs_best(costs, 32768), TCP);
  assert_int_equal(costs_best(costs, 131072), RDMA); /* they cross at 75,000 bytes */
  assert_int_equal(costs_best(costs, UINT64_MAX), RDMA);
}

static void a_path_that_disappoints_is_left(void **state) {
  (void)state;
  struct costs *costs = make();
  bool known;
  tell(costs, RDMA, MIB, 10, 4);
  assert_int_equal(costs_best(costs, MIB), TCP);
  assert_true(costs_correction(costs, RDMA, MIB, &known) > 9.9);
  assert_true(known);
}

/* Both disappoint: the one that does less is taken in the end. */
static void the_better_of_two_that_disappoint_is_taken(void **state) {
  (void)state;
  struct costs *costs = make();
  double times[] = {[RDMA] = 8, [TCP] = 6};
  for (unsigned i = 0; i < 40; i++) {
    int best = costs_best(costs, MIB);
    tell(costs, best, MIB, times[best], 1);
  }
  assert_int_equal(costs_best(costs, MIB), RDMA);
}

static void sizes_near_by_follow_and_far_ones_do_not(void **state) {
  (void)state;
  struct costs *costs = make();
  bool known;
  tell(costs, RDMA, MIB, 10, 4);
  assert_int_equal(costs_best(costs, MIB * 4), TCP);
  assert_int_equal(costs_best(costs, MIB / 4), TCP);
  assert_int_equal(costs_best(costs, MIB * 8), RDMA);
  assert_int_equal(costs_best(costs, MIB / 8), RDMA);
  costs_correction(costs, RDMA, MIB * 4, &known);
  assert_false(known);
}

static void what_changes_is_known_after_some_dozens(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, RDMA, MIB, 1, 100);
  tell(costs, RDMA, MIB, 10, 60);
  assert_int_equal(costs_best(costs, MIB), TCP);
}

/* A minute and a thousand times what it takes: then the path has its chance again. */
static void what_is_old_is_forgotten(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, RDMA, MIB, 10, 4);
  tell(costs, TCP, MIB, 1, 4);
  t.now += MIN / 2;
  tell(costs, TCP, MIB, 1, 1);
  assert_int_equal(costs_best(costs, MIB), TCP);
  t.now += MIN;
  tell(costs, TCP, MIB, 1, 1);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  tell(costs, RDMA, MIB, 10, 4);
  assert_int_equal(costs_best(costs, MIB), TCP);
}

static void what_takes_long_is_tried_seldom(void **state) {
  (void)state;
  struct costs *costs = make();
  uint64_t large = 1024 * MIB; /* 1 s each: forgotten after some 20 minutes */
  tell(costs, RDMA, large, 10, 4);
  t.now += 10 * MIN;
  tell(costs, TCP, large, 1, 1);
  assert_int_equal(costs_best(costs, large), TCP);
  t.now += 20 * MIN;
  tell(costs, TCP, large, 1, 1);
  assert_int_equal(costs_best(costs, large), RDMA);
}

/* Two threads' clocks are read in one order, and told in the other. */
static void a_late_teller_forgets_nothing(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, RDMA, MIB, 10, 4);
  costs_tell(costs, TCP, MIB, 1000000, t.now - 2 * MS);
  assert_int_equal(costs_best(costs, MIB), TCP);
}

static void small_corrections_rise_again(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, TCP, MIB, 1e-9, 4);
  tell(costs, TCP, MIB, 1, 400);
  assert_true(costs_correction(costs, TCP, MIB, NULL) > 0.9);
}

/* A thousand in a millisecond say no more than one. */
static void a_burst_counts_once(void **state) {
  (void)state;
  struct costs *costs = make();
  tell(costs, RDMA, 4096, 1, 10);
  for (unsigned i = 0; i < 1000; i++)
    costs_tell(costs, RDMA, 4096, 100000, t.now);
  assert_int_equal(costs_best(costs, 4096), RDMA);
}

static void all_remotes_of_a_link_share_them(void **state) {
  (void)state;
  struct costs *costs = make();
  assert_ptr_equal(make(), costs);
  snprintf(t.estimates[RDMA].detail, sizeof t.estimates[RDMA].detail, "staged there");
  assert_ptr_not_equal(make(), costs); /* another way to go */
}

/* ---- How it is sent ---- */

static void the_mode_is_the_first_for_the_size(void **state) {
  (void)state;
  t.estimates[RDMA].lines[SEND_SHORT] = (struct line){220, 3000, 0.1};
  assert_int_equal(lines_mode(t.estimates[RDMA].lines, 220), SEND_SHORT);
  assert_int_equal(lines_mode(t.estimates[RDMA].lines, 221), SEND_ZERO_COPY);
  assert_int_equal(lines_mode(t.estimates[TCP].lines, 1), SEND_BUFFERED);
  assert_int_equal(lines_mode(t.estimates[TCP].lines, 65536), SEND_ZERO_COPY);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(one_outlier_changes_nothing),
      CASE(three_transfers_are_not_enough),
      CASE(the_least_of_the_first_four_counts),
      CASE(a_correction_is_bounded),
      CASE(what_is_little_faster_does_not_take_over),
      CASE(the_straight_path_within_the_host_stands),
      CASE(what_takes_only_those_who_ask_is_not_chosen),
      CASE(without_an_open_path_there_is_none),
      CASE(a_link_has_a_bounded_number),
      CASE(without_memory_there_are_none),
      CASE(at_first_the_estimates_decide),
      CASE(a_path_that_disappoints_is_left),
      CASE(the_better_of_two_that_disappoint_is_taken),
      CASE(sizes_near_by_follow_and_far_ones_do_not),
      CASE(what_changes_is_known_after_some_dozens),
      CASE(what_is_old_is_forgotten),
      CASE(what_takes_long_is_tried_seldom),
      CASE(a_late_teller_forgets_nothing),
      CASE(small_corrections_rise_again),
      CASE(a_burst_counts_once),
      CASE(all_remotes_of_a_link_share_them),
      CASE(the_mode_is_the_first_for_the_size),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
