/* SPDX-License-Identifier: MIT
 * Priorities on an overloaded worker: counts the operations of other rings that complete while a
 * read of one ring waits. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client.h"

#define KIB    ((uint64_t)1 << 10)
#define CROWD  32 /* other rings */
#define QUEUE  16 /* reads in flight of each */
#define LENGTH (256 * KIB)
#define ROUNDS 21

static struct rig rig;
static struct client crowd[CROWD], one;

static const struct iov_name priorities[] = {
    {.for_read = true, .priority = RING_HIGH},
    {.for_read = true, .priority = RING_NORMAL},
    {.for_read = true, .priority = RING_LOW},
};

static int set_up(void **state) {
  *state = &rig;
  rig_open(&rig, 1);
  return 0;
}

static void open_all(enum ring_priority ones, enum ring_priority others) {
  for (unsigned i = 0; i < CROWD; i++)
    client_open(&crowd[i], &rig, &priorities[others], QUEUE, LENGTH);
  client_open(&one, &rig, &priorities[ones], QUEUE, LENGTH);
}

static void close_all(void) {
  for (unsigned i = 0; i < CROWD; i++)
    client_close(&crowd[i]);
  client_close(&one);
}

static void fill_queues(void) {
  for (unsigned i = 0; i < CROWD; i++)
    for (int32_t k = 0; k < QUEUE; k++)
      client_prepare(&crowd[i], k, rig.inode, 0, (uint64_t)k * LENGTH % PATTERN_BYTES, LENGTH);
  for (unsigned i = 0; i < CROWD; i++)
    client_submit(&crowd[i]);
}

static unsigned done_by(const struct client *client) {
  const struct ring_indices *indices = client->view.indices;
  int32_t head = atomic_load(&indices->complete_head), tail = atomic_load(&indices->complete_tail);
  return (unsigned)((head - tail + client->view.slots) % client->view.slots);
}

static unsigned done_by_crowd(void) {
  unsigned done = 0;
  for (unsigned i = 0; i < CROWD; i++)
    done += done_by(&crowd[i]);
  return done;
}

static void empty_queues(void) {
  struct ring_completion said;
  for (unsigned i = 0; i < CROWD; i++)
    for (unsigned k = 0; k < QUEUE; k++) {
      assert_true(client_take(&crowd[i], &said, 20000));
      assert_int_equal(said.result, LENGTH);
    }
}

/* The number of reads of other rings during one read. */
static unsigned passed(void) {
  struct ring_completion said;
  fill_queues();
  while (done_by_crowd() == 0) /* the worker is busy */
    ;
  unsigned before = done_by_crowd();
  client_prepare(&one, 0, rig.inode, 0, 0, LENGTH);
  client_submit(&one);
  while (done_by(&one) == 0)
    ;
  unsigned after = done_by_crowd();
  assert_true(client_take(&one, &said, 20000));
  assert_int_equal(said.result, LENGTH);
  empty_queues();
  return after - before;
}

static int by_size(const void *left, const void *right) {
  return (int)*(const unsigned *)left - (int)*(const unsigned *)right;
}

/* The median of the rounds. */
static unsigned passed_mostly(enum ring_priority ones, enum ring_priority others) {
  unsigned counts[ROUNDS];
  open_all(ones, others);
  for (unsigned i = 0; i < ROUNDS; i++)
    counts[i] = passed();
  close_all();
  qsort(counts, ROUNDS, sizeof counts[0], by_size);
  unsigned median = counts[ROUNDS / 2];
  printf("%d among %d: %u of %u pass it\n", (int)ones, (int)others, median,
         (unsigned)(CROWD * QUEUE));
  return median;
}

static void a_higher_priority_waits_less(void **state) {
  (void)state;
  /* Only the superuser may: on a busy machine this thread would lose its processor between the end
   * of a read and the count. The worker keeps its priority. */
  setpriority(PRIO_PROCESS, (id_t)gettid(), -20);
  unsigned high = passed_mostly(RING_HIGH, RING_LOW);
  unsigned equal = passed_mostly(RING_LOW, RING_LOW);
  unsigned normal = passed_mostly(RING_NORMAL, RING_LOW);
  setpriority(PRIO_PROCESS, (id_t)gettid(), 0);
  assert_true(high * 3 < equal);
  assert_true(normal * 3 < equal);
}

/* Submits every completed read again; returns their number. */
static unsigned ask_again(void) {
  struct ring_completion said;
  unsigned done = 0;
  for (unsigned i = 0; i < CROWD; i++)
    for (; done_by(&crowd[i]) > 0 && client_take(&crowd[i], &said, 20000); done++) {
      client_prepare(&crowd[i], said.index, rig.inode, 0, 0, LENGTH);
      client_submit(&crowd[i]);
    }
  return done;
}

/* The other rings always have reads in flight. */
static void a_lower_priority_does_not_starve(void **state) {
  (void)state;
  struct ring_completion said;
  unsigned done = 0;
  open_all(RING_LOW, RING_HIGH);
  fill_queues();
  for (unsigned i = 0; i < 10; i++) {
    client_prepare(&one, 0, rig.inode, 0, 0, LENGTH);
    client_submit(&one);
    while (done_by(&one) == 0 && done < 100 * CROWD * QUEUE)
      done += ask_again();
    assert_true(client_take(&one, &said, 20000));
    assert_int_equal(said.result, LENGTH);
  }
  empty_queues();
  close_all();
  assert_true(done < 100 * CROWD * QUEUE);
}

int main(void) {
  if (!rig_is_possible())
    return 77;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_higher_priority_waits_less, set_up, rig_tear_down),
      cmocka_unit_test_setup_teardown(a_lower_priority_does_not_starve, set_up, rig_tear_down),
  };
  return cmocka_run_group_tests_name("storage/priorities", tests, NULL, NULL);
}
