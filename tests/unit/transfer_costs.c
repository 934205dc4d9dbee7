/* SPDX-License-Identifier: MIT
 * Costs of paths by size: estimates, and their correction by measured transfers. */
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
      .open = true, .zero_copy = true, .lines[SEND_DIRECT] = {UINT64_MAX, 3000, 0.1}};
  t.estimates[TCP] = (struct estimate){.open = true,
                                       .lines[SEND_BUFFERED] = {65535, 30000, 0.5},
                                       .lines[SEND_DIRECT] = {UINT64_MAX, 30000, 0.5}};
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

/* Records `count` transfers by `path`, each of which takes `times` its estimate. */
static void record(struct costs *costs, int path, uint64_t bytes, double times, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    double ns = lines_ns(t.estimates[path].lines, bytes) * times;
    t.now += 2 * MS;
    costs_record(costs, (size_t)path, bytes, (int64_t)ns, t.now);
  }
}

#define MIB ((uint64_t)1 << 20)

static void one_outlier_changes_nothing(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, RDMA, MIB, 1, 20);
  record(costs, RDMA, MIB, 1000, 1);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  assert_true(costs_correction(costs, RDMA, MIB, NULL) < 1.2);
}

static void three_transfers_are_not_enough(void **state) {
  (void)state;
  struct costs *costs = make();
  bool known;
  record(costs, RDMA, MIB, 15, 3);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  assert_true(costs_correction(costs, RDMA, MIB, &known) == 1);
  assert_false(known);
}

/* The first transfers include registrations and the growth of windows. */
static void the_least_of_the_first_four_counts(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, RDMA, MIB, 15, 3);
  record(costs, RDMA, MIB, 1, 1);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  assert_true(costs_correction(costs, RDMA, MIB, NULL) < 1.01);
}

static void a_correction_is_bounded(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, TCP, MIB, 1e9, 40);
  assert_true(costs_correction(costs, TCP, MIB, NULL) <= COST_BOUND);
  record(costs, RDMA, MIB, 1e-9, 40);
  assert_true(costs_correction(costs, RDMA, MIB, NULL) >= 1 / COST_BOUND);
  costs_record(costs, RDMA, MIB, INT64_MAX, t.now += MS);
  costs_record(costs, RDMA, UINT64_MAX, 1, t.now += MS);
  costs_record(costs, RDMA, 0, 1, t.now += MS);
  costs_record(costs, RDMA, MIB, 0, t.now += MS);
  costs_record(costs, RDMA, MIB, -1, t.now += MS);
  costs_record(costs, MAP, MIB, 1, t.now += MS); /* closed */
  assert_int_equal(costs_best(costs, MIB), RDMA);
}

/* Noise must not switch between paths that are about as fast. */
static void a_slightly_faster_path_is_not_chosen(void **state) {
  (void)state;
  struct costs *costs = make();
  double same = lines_ns(t.estimates[TCP].lines, MIB) / lines_ns(t.estimates[RDMA].lines, MIB);
  for (unsigned i = 0; i < 50; i++) {
    record(costs, RDMA, MIB, same * 1.05, 1);
    assert_int_equal(costs_best(costs, MIB), RDMA);
  }
}

/* No other path does less work, even if a loaded processor slows this one down. */
static void the_single_copy_path_within_the_host_is_kept(void **state) {
  (void)state;
  t.estimates[MAP] = (struct estimate){
      .open = true, .zero_copy = true, .lines[SEND_SHORT] = {UINT64_MAX, 100, 0.1}};
  struct costs *costs = make();
  record(costs, MAP, MIB, 16, 100);
  assert_int_equal(costs_best(costs, MIB), MAP);
  assert_int_equal(costs_best(costs, 8), MAP);
}

static void a_path_on_request_only_is_not_chosen(void **state) {
  (void)state;
  t.estimates[RDMA].explicit_only = true;
  assert_int_equal(costs_best(make(), 8), TCP);
}

static void without_an_open_path_none_is_chosen(void **state) {
  (void)state;
  t.estimates[RDMA].open = t.estimates[TCP].open = false;
  struct costs *costs = make();
  assert_int_equal(costs_best(costs, 8), -1);
  costs_record(costs, TCP, 8, 100, t.now);
  assert_int_equal(costs_best(costs, 8), -1);
}

static void the_number_of_costs_of_a_link_is_bounded(void **state) {
  (void)state;
  struct haul_place there = {HAUL_SIM, 0};
  for (unsigned i = 0; i < COSTS_MAX; i++)
    assert_non_null(costs_of(&t.link, i, there, t.estimates));
  assert_null(costs_of(&t.link, COSTS_MAX, there, t.estimates));
  assert_non_null(costs_of(&t.link, 7, there, t.estimates)); /* exists already */
}

static void without_memory_no_costs_are_made(void **state) {
  (void)state;
  seams_refuse(1);
  assert_null(costs_of(&t.link, 1, (struct haul_place){HAUL_HOST, 0}, t.estimates));
  assert_true(seams_restore());
  make();
}

static void at_first_the_estimates_decide(void **state) {
  (void)state;
  t.estimates[RDMA].lines[SEND_DIRECT].latency_ns = 60000;
  struct costs *costs = make();
  assert_int_equal(costs_best(costs, 8), TCP);
  assert_int_equal(costs_best(costs, 32768), TCP);
  assert_int_equal(costs_best(costs, 131072), RDMA); /* they cross at 75,000 bytes */
  assert_int_equal(costs_best(costs, UINT64_MAX), RDMA);
}

static void a_path_slower_than_estimated_is_abandoned(void **state) {
  (void)state;
  struct costs *costs = make();
  bool known;
  record(costs, RDMA, MIB, 10, 4);
  assert_int_equal(costs_best(costs, MIB), TCP);
  assert_true(costs_correction(costs, RDMA, MIB, &known) > 9.9);
  assert_true(known);
}

/* Both are slower than estimated. */
static void of_two_slow_paths_the_cheaper_is_chosen(void **state) {
  (void)state;
  struct costs *costs = make();
  double times[] = {[RDMA] = 8, [TCP] = 6};
  for (unsigned i = 0; i < 40; i++) {
    int best = costs_best(costs, MIB);
    record(costs, best, MIB, times[best], 1);
  }
  assert_int_equal(costs_best(costs, MIB), RDMA);
}

static void corrections_apply_to_near_sizes_only(void **state) {
  (void)state;
  struct costs *costs = make();
  bool known;
  record(costs, RDMA, MIB, 10, 4);
  assert_int_equal(costs_best(costs, MIB * 4), TCP);
  assert_int_equal(costs_best(costs, MIB / 4), TCP);
  assert_int_equal(costs_best(costs, MIB * 8), RDMA);
  assert_int_equal(costs_best(costs, MIB / 8), RDMA);
  costs_correction(costs, RDMA, MIB * 4, &known);
  assert_false(known);
}

static void a_change_is_noticed_after_60_samples(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, RDMA, MIB, 1, 100);
  record(costs, RDMA, MIB, 10, 60);
  assert_int_equal(costs_best(costs, MIB), TCP);
}

/* A sample expires after a minute plus 1024 times its cost; then the path is tried again. */
static void old_samples_expire(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, RDMA, MIB, 10, 4);
  record(costs, TCP, MIB, 1, 4);
  t.now += MIN / 2;
  record(costs, TCP, MIB, 1, 1);
  assert_int_equal(costs_best(costs, MIB), TCP);
  t.now += MIN;
  record(costs, TCP, MIB, 1, 1);
  assert_int_equal(costs_best(costs, MIB), RDMA);
  record(costs, RDMA, MIB, 10, 4);
  assert_int_equal(costs_best(costs, MIB), TCP);
}

static void slow_paths_are_retried_seldom(void **state) {
  (void)state;
  struct costs *costs = make();
  uint64_t large = 1024 * MIB; /* 1 s each: forgotten after some 20 minutes */
  record(costs, RDMA, large, 10, 4);
  t.now += 10 * MIN;
  record(costs, TCP, large, 1, 1);
  assert_int_equal(costs_best(costs, large), TCP);
  t.now += 20 * MIN;
  record(costs, TCP, large, 1, 1);
  assert_int_equal(costs_best(costs, large), RDMA);
}

/* Two threads read the clock in one order and record in the other. */
static void a_late_record_expires_nothing(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, RDMA, MIB, 10, 4);
  costs_record(costs, TCP, MIB, 1000000, t.now - 2 * MS);
  assert_int_equal(costs_best(costs, MIB), TCP);
}

static void small_corrections_grow_again(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, TCP, MIB, 1e-9, 4);
  record(costs, TCP, MIB, 1, 400);
  assert_true(costs_correction(costs, TCP, MIB, NULL) > 0.9);
}

/* Only one sample of a millisecond counts. */
static void a_burst_counts_once(void **state) {
  (void)state;
  struct costs *costs = make();
  record(costs, RDMA, 4096, 1, 10);
  for (unsigned i = 0; i < 1000; i++)
    costs_record(costs, RDMA, 4096, 100000, t.now);
  assert_int_equal(costs_best(costs, 4096), RDMA);
}

static void remotes_of_a_link_share_costs(void **state) {
  (void)state;
  struct costs *costs = make();
  assert_ptr_equal(make(), costs);
  snprintf(t.estimates[RDMA].detail, sizeof t.estimates[RDMA].detail, "staged remotely");
  assert_ptr_not_equal(make(), costs); /* another estimate */
}

static void the_mode_is_the_first_for_the_size(void **state) {
  (void)state;
  t.estimates[RDMA].lines[SEND_SHORT] = (struct line){220, 3000, 0.1};
  assert_int_equal(lines_mode(t.estimates[RDMA].lines, 220), SEND_SHORT);
  assert_int_equal(lines_mode(t.estimates[RDMA].lines, 221), SEND_DIRECT);
  assert_int_equal(lines_mode(t.estimates[TCP].lines, 1), SEND_BUFFERED);
  assert_int_equal(lines_mode(t.estimates[TCP].lines, 65536), SEND_DIRECT);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(one_outlier_changes_nothing),
      CASE(three_transfers_are_not_enough),
      CASE(the_least_of_the_first_four_counts),
      CASE(a_correction_is_bounded),
      CASE(a_slightly_faster_path_is_not_chosen),
      CASE(the_single_copy_path_within_the_host_is_kept),
      CASE(a_path_on_request_only_is_not_chosen),
      CASE(without_an_open_path_none_is_chosen),
      CASE(the_number_of_costs_of_a_link_is_bounded),
      CASE(without_memory_no_costs_are_made),
      CASE(at_first_the_estimates_decide),
      CASE(a_path_slower_than_estimated_is_abandoned),
      CASE(of_two_slow_paths_the_cheaper_is_chosen),
      CASE(corrections_apply_to_near_sizes_only),
      CASE(a_change_is_noticed_after_60_samples),
      CASE(old_samples_expire),
      CASE(slow_paths_are_retried_seldom),
      CASE(a_late_record_expires_nothing),
      CASE(small_corrections_grow_again),
      CASE(a_burst_counts_once),
      CASE(remotes_of_a_link_share_costs),
      CASE(the_mode_is_the_first_for_the_size),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
