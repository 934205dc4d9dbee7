/* SPDX-License-Identifier: MIT
 * How many submissions a ring fetches at a time (io_depth and timeout), with a clock that the test
 * sets. */
#include "support/check.h"

#include <stdlib.h>

#include "storage/ring.h"

#define ENTRIES 8
#define MS      INT64_C(1000000)

static struct {
  void *memory;
  struct ring ring;
  struct ring_view view;
  int64_t now, until;
} t;

static void open_ring(int32_t depth, int32_t timeout_ms) {
  const struct iov_name name = {.ring = true, .depth = depth, .timeout_ms = timeout_ms};
  t.memory = calloc(1, ring_bytes(ENTRIES));
  assert_non_null(t.memory);
  assert_int_equal(ring_open(&t.ring, t.memory, ring_bytes(ENTRIES), &name), 0);
  t.view = t.ring.view;
  t.now = 1000 * MS;
}

static int close_ring(void **state) {
  (void)state;
  if (t.view.slots)
    ring_close(&t.ring);
  t.view.slots = 0;
  free(t.memory);
  return 0;
}

static void submit(int32_t count) {
  int32_t head = atomic_load(&t.view.indices->submit_head);
  for (; count > 0; count--, head = (head + 1) % t.view.slots)
    t.view.submissions[head].index = 1;
  atomic_store(&t.view.indices->submit_head, head);
}

/* Fetches the ready operations; returns their number. */
static int32_t take(void) {
  struct ring_operation entry;
  t.until = INT64_MAX;
  int32_t ready = ring_ready(&t.ring, t.now, &t.until);
  for (int32_t i = 0; i < ready; i++)
    assert_true(ring_fetch(&t.ring, &entry));
  return ready;
}

static void complete(int32_t count) {
  while (count-- > 0)
    ring_complete(&t.ring, 1, 0, 0);
}

static void reap(int32_t count) {
  int32_t tail = atomic_load(&t.view.indices->complete_tail);
  atomic_store(&t.view.indices->complete_tail, (tail + count) % t.view.slots);
}

static void depth_0_fetches_all_submissions(void **state) {
  (void)state;
  open_ring(0, 0);
  assert_int_equal(take(), 0);
  submit(1);
  assert_int_equal(take(), 1);
  submit(5);
  assert_int_equal(take(), 5);
}

static void a_depth_fetches_full_batches(void **state) {
  (void)state;
  open_ring(3, 0);
  submit(2);
  assert_int_equal(take(), 0);
  assert_true(t.until == INT64_MAX); /* nothing changes by itself */
  submit(1);
  assert_int_equal(take(), 3);
  submit(5);
  assert_int_equal(take(), 3);
  assert_int_equal(take(), 0);
}

/* Also if the worker fetches a part of it at a time. */
static void a_begun_batch_is_completed(void **state) {
  (void)state;
  struct ring_operation entry;
  open_ring(4, 0);
  submit(4);
  assert_int_equal(ring_ready(&t.ring, t.now, &t.until), 4);
  assert_true(ring_fetch(&t.ring, &entry));
  assert_int_equal(ring_ready(&t.ring, t.now, &t.until), 3);
  assert_int_equal(take(), 3);
  assert_int_equal(take(), 0);
}

static void a_negative_depth_is_an_upper_bound(void **state) {
  (void)state;
  open_ring(-3, 0);
  submit(2);
  assert_int_equal(take(), 2);
  submit(5);
  assert_int_equal(take(), 3);
  assert_int_equal(take(), 2);
}

static void a_negative_depth_waits_for_a_full_batch_until_its_timeout(void **state) {
  (void)state;
  open_ring(-3, 10);
  submit(1);
  assert_int_equal(take(), 0);
  assert_true(t.until == t.now + 10 * MS);
  t.now += 9 * MS;
  submit(1);
  assert_int_equal(take(), 0);
  assert_true(t.until == t.now + MS); /* since the first submission */
  t.now += MS;
  assert_int_equal(take(), 2);
  submit(3);
  assert_int_equal(take(), 3);
  submit(1);
  assert_int_equal(take(), 0);
  assert_true(t.until == t.now + 10 * MS); /* the timeout starts again */
}

/* Unread completions delay later submissions; none is lost. */
static void fetching_stops_without_room_for_completions(void **state) {
  (void)state;
  open_ring(0, 0);
  submit(8);
  assert_int_equal(take(), 8);
  submit(8);
  assert_int_equal(take(), 0);
  complete(8);
  assert_int_equal(take(), 0);
  reap(3);
  assert_int_equal(take(), 3);
  complete(3);
  reap(8);
  assert_int_equal(take(), 5);
}

static void a_batch_waits_for_room_for_all_completions(void **state) {
  (void)state;
  open_ring(5, 0);
  submit(8);
  assert_int_equal(take(), 5);
  submit(5);
  assert_int_equal(take(), 0);
  complete(5);
  reap(2);
  assert_int_equal(take(), 5);
}

static void a_depth_beyond_the_ring_is_rejected(void **state) {
  (void)state;
  struct ring ring;
  struct iov_name name = {.ring = true, .depth = ENTRIES + 1};
  t.memory = calloc(1, ring_bytes(ENTRIES));
  assert_int_equal(ring_open(&ring, t.memory, ring_bytes(ENTRIES), &name), -22);
  name.depth = 0;
  for (size_t bytes = 0; bytes < ring_bytes(1); bytes += 8)
    assert_int_equal(ring_open(&ring, t.memory, bytes, &name), -22);
}

int main(void) {
#define TEST(test) cmocka_unit_test_teardown(test, close_ring)
  const struct CMUnitTest tests[] = {
      TEST(depth_0_fetches_all_submissions),
      TEST(a_depth_fetches_full_batches),
      TEST(a_begun_batch_is_completed),
      TEST(a_negative_depth_is_an_upper_bound),
      TEST(a_negative_depth_waits_for_a_full_batch_until_its_timeout),
      TEST(fetching_stops_without_room_for_completions),
      TEST(a_batch_waits_for_room_for_all_completions),
      TEST(a_depth_beyond_the_ring_is_rejected),
  };
  return cmocka_run_group_tests_name("storage/depths", tests, NULL, NULL);
}
