/* SPDX-License-Identifier: MIT
 * The clocks of two nodes and the two sides of slices, as `haul trace` finds them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trace_clock.h"
#include "trace_link.h"

#define SECOND INT64_C(1000000000)

static struct clock_sample sample(int64_t sent, int64_t received, int64_t theirs) {
  return (struct clock_sample){sent, received, (uint64_t)theirs};
}

static void the_shortest_exchange_counts(void **state) {
  struct clock_sample kept = {0};
  (void)state;
  clock_keep_shorter(&kept, sample(100, 300, 5000));
  clock_keep_shorter(&kept, sample(400, 440, 6000));
  clock_keep_shorter(&kept, sample(500, 600, 7000));
  assert_int_equal(kept.theirs, 6000);
  const struct clock_fit fit = {kept, kept};
  assert_int_equal(clock_offset(&fit), 6000 - 420);
  assert_int_equal(clock_error(&fit), 20);
  assert_int_equal(clock_convert(&fit, 6010), 430);
}

/* A clock that is 100 ppm fast, as bad quartzes are: 1 ms in 10 s. */
static void drift_is_removed(void **state) {
  const struct clock_fit fit = {sample(0, 0, 0), sample(10 * SECOND, 10 * SECOND, 10001000000)};
  (void)state;
  assert_int_equal(clock_error(&fit), 0);
  assert_int_equal(clock_convert(&fit, 0), 0);
  assert_in_range(clock_convert(&fit, 5000500000), 5 * SECOND - 1, 5 * SECOND + 1);
  assert_int_equal(clock_convert(&fit, 10001000000), 10 * SECOND);
  assert_int_equal(clock_convert(&fit, 11001000000), 11 * SECOND); /* after the end: no drift */
}

/* A clock that jumped a second within ten. */
static void a_jump_enlarges_the_error(void **state) {
  const struct clock_fit fit = {sample(0, 20, 0),
                                sample(10 * SECOND, 10 * SECOND + 20, 11 * SECOND)};
  (void)state;
  assert_int_equal(clock_error(&fit), SECOND + 10);
  const struct clock_fit absurd = {sample(0, 20, 0), sample(30, 50, INT64_MIN)};
  assert_true(clock_error(&absurd) > 0);
  clock_convert(&absurd, UINT64_MAX / 3); /* does not overflow */
}

static void add(struct link_list *list, uint64_t peer, uint64_t request, uint64_t from,
                uint64_t to) {
  const struct link_side side = {.request = request,
                                 .bytes = 10,
                                 .peer = peer,
                                 .from = from,
                                 .to = to,
                                 .operation = HAUL_OP_WRITE};
  links_add(list, &side);
}

/* Each connection counts its requests from the same id. */
static void connections_are_told_apart(void **state) {
  static struct haul_peer_stats here[2] = {{.number = 1, .name = "b"}, {.number = 2, .name = "c"}};
  static struct haul_peer_stats there[2] = {{.number = 7, .name = "d"}, {.number = 8, .name = "a"}};
  struct links a = {.name = "a", .peers = here, .peer_count = 2};
  struct links b = {.name = "b", .peers = there, .peer_count = 2};
  (void)state;
  for (uint64_t i = 0; i < 4; i++) {
    add(&a.sent, 1, i, 100 * i, 100 * i + 50);
    add(&a.sent, 2, i, 100 * i, 100 * i + 50);        /* to another node */
    add(&b.served, 7, i, 100 * i + 10, 100 * i + 40); /* of another node */
    add(&b.served, 8, i, 100 * i + 20, 100 * i + 30);
  }
  struct link_pairs pairs = links_find(&a, &b, 5);
  assert_int_equal(pairs.count, 4);
  for (size_t i = 0; i < pairs.count; i++) {
    assert_int_equal(pairs.list[i].peer, 1);
    assert_int_equal(pairs.list[i].other, 8);
    assert_int_equal(a.sent.list[pairs.list[i].sent].request,
                     b.served.list[pairs.list[i].served].request);
  }
  free(pairs.list);
  links_free(&a);
  links_free(&b);
}

/* The clock of the second node is 30 behind, which the error allows. */
static void slices_move_the_times(void **state) {
  struct links a = {.name = "a"}, b = {.name = "b"};
  (void)state;
  add(&a.sent, 1, 1, 1000, 1100);
  add(&b.served, 1, 1, 980, 1060);
  add(&a.sent, 1, 2, 2000, 2100); /* served at another time, too: the id was used before */
  add(&b.served, 1, 2, 5000, 5060);
  struct link_shift shift = {-50, 50}, other = {-50, 50};
  struct link_pairs pairs = links_find(&a, &b, 50);
  assert_int_equal(pairs.count, 1);
  links_narrow(&shift, &a, &b, &pairs, false);
  assert_int_equal(shift.least, 20);
  assert_int_equal(shift.most, 40);
  links_narrow(&other, &a, &b, &pairs, true);
  assert_int_equal(other.least, -40);
  assert_int_equal(other.most, -20);
  free(pairs.list);
  links_free(&a);
  links_free(&b);
}

/* A hostile node repeats an id, with times at the ends of the range. */
static void hostile_times_are_harmless(void **state) {
  struct links a = {.name = "a"}, b = {.name = "b"};
  (void)state;
  add(&a.sent, 1, 1, 0, UINT64_C(1) << 63);
  add(&a.sent, 1, 1, UINT64_MAX, UINT64_C(1) << 63);
  for (uint64_t i = 0; i < 1000; i++)
    add(&b.served, i, 1, UINT64_C(1) << 63, i << 54);
  struct link_shift shift = {-50, 50};
  struct link_pairs pairs = links_find(&a, &b, 50);
  links_narrow(&shift, &a, &b, &pairs, true);
  free(pairs.list);
  links_free(&a);
  links_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_shortest_exchange_counts), cmocka_unit_test(drift_is_removed),
      cmocka_unit_test(a_jump_enlarges_the_error),    cmocka_unit_test(connections_are_told_apart),
      cmocka_unit_test(slices_move_the_times),        cmocka_unit_test(hostile_times_are_harmless),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
