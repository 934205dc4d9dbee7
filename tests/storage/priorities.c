/* SPDX-License-Identifier: MIT
 * Priorities on an overloaded worker: counts the operations of other rings that complete while a
 * read of one ring waits. The worker counts them, so the load of the machine changes nothing. */
#include "support/check.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "client.h"
#include "storage/ring.h"

#define KIB    ((uint64_t)1 << 10)
#define CROWD  32 /* other rings */
#define QUEUE  16 /* reads in flight of each */
#define LENGTH (256 * KIB)
#define ONE    QUEUE /* the index that only the observed ring has */
#define ROUNDS 5     /* the first one has no effect: a priority counts from its first read */

static struct rig rig;
static struct client crowd[CROWD], one;
static sem_t held, go; /* the worker waits for `go` */

static const struct iov_name priorities[] = {
    {.for_read = true, .priority = RING_HIGH},
    {.for_read = true, .priority = RING_NORMAL},
    {.for_read = true, .priority = RING_LOW},
};

static int set_up(void **state) {
  *state = &rig;
  sem_init(&held, 0, 0);
  sem_init(&go, 0, 0);
  rig_open(&rig, 1);
  return 0;
}

static void open_all(enum ring_priority ones, enum ring_priority others) {
  for (unsigned i = 0; i < CROWD; i++)
    client_open(&crowd[i], &rig, &priorities[others], QUEUE, LENGTH);
  client_open(&one, &rig, &priorities[ones], QUEUE + 1, LENGTH);
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

static void empty_queues(void) {
  struct ring_completion said;
  for (unsigned i = 0; i < CROWD; i++)
    for (unsigned k = 0; k < QUEUE; k++) {
      assert_true(client_take(&crowd[i], &said, 20000));
      assert_int_equal(said.result, LENGTH);
    }
}

/* Called by the worker instead of the storage library's (--wrap). Holds the worker at the first
 * completion of a round until the read of `one` is submitted, then counts. */
void __real_ring_complete(struct ring *ring, int32_t index, uint64_t userdata, int64_t result);
void __wrap_ring_complete(struct ring *ring, int32_t index, uint64_t userdata, int64_t result);

static _Atomic bool hold;
static _Atomic unsigned completions, passed_by; /* of the round; before the read of `one` */

void __wrap_ring_complete(struct ring *ring, int32_t index, uint64_t userdata, int64_t result) {
  if (atomic_exchange(&hold, false)) {
    sem_post(&held);
    sem_wait(&go);
  }
  if (index == ONE)
    atomic_store(&passed_by, atomic_load(&completions));
  else
    atomic_fetch_add(&completions, 1);
  __real_ring_complete(ring, index, userdata, result);
}

/* The number of reads of other rings that complete between the submission of one read and its
 * completion. */
static unsigned passed(void) {
  struct ring_completion said;
  atomic_store(&completions, 0);
  atomic_store(&hold, true);
  fill_queues();
  sem_wait(&held);
  client_prepare(&one, ONE, rig.inode, 0, 0, LENGTH);
  client_submit(&one);
  sem_post(&go);
  assert_true(client_take(&one, &said, 20000));
  assert_int_equal(said.result, LENGTH);
  empty_queues();
  return atomic_load(&passed_by);
}

static int by_size(const void *left, const void *right) {
  return (int)*(const unsigned *)left - (int)*(const unsigned *)right;
}

/* The median of the rounds. */
static unsigned passed_mostly(enum ring_priority ones, enum ring_priority others) {
  unsigned counts[ROUNDS];
  rig_close(&rig); /* the worker remembers the use of a priority for a second */
  rig_open(&rig, 1);
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
  unsigned high = passed_mostly(RING_HIGH, RING_LOW);
  unsigned equal = passed_mostly(RING_LOW, RING_LOW);
  unsigned normal = passed_mostly(RING_NORMAL, RING_LOW);
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
