/* SPDX-License-Identifier: MIT
 * The staging pool: limit, fairness, guaranteed buffers, reservations, NUMA nodes, failures. */
#include "support/check.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/sys.h"
#include "memory/staging.h"
#include "support/seams.h"

#define MIB   ((size_t)1 << 20)
#define LEAST 8u /* buffers */

static struct heap *heap;
static struct staging *staging;
static struct sys_ops real;
static unsigned kept;

static void keeps(void *node) {
  (void)node;
  kept++;
}

static const struct heap_watcher watcher = {.keeps = keeps};

static int set_up(void **state) {
  (void)state;
  real = sys_ops;
  kept = 0;
  if (heap_open(NULL, 0, &heap) != 0)
    return -1;
  heap_watch(heap, &watcher);
  staging = heap_staging(heap);
  staging_limit(staging, STAGING_LEAST);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  sys_ops = real;
  heap_close(heap);
  return haul_mappings() == 0 ? 0 : -1;
}

static void count_wake(void *context) {
  ++*(unsigned *)context;
}

/* A user and its buffers. */
struct holder {
  struct staging_user user;
  struct bounce *stages[64];
  unsigned count, woken;
};

static void join(struct holder *holder, enum staging_kind kind, unsigned most) {
  holder->count = holder->woken = 0;
  staging_user_init(staging, &holder->user, kind, most, count_wake, &holder->woken);
}

static int take(struct holder *holder) {
  int code = staging_get(&holder->user, 1, -1, &holder->stages[holder->count]);
  holder->count += code == 0;
  return code;
}

static void give(struct holder *holder) {
  staging_put(&holder->user, holder->stages[--holder->count]);
}

static void give_all(struct holder *holder) {
  staging_cancel_wait(&holder->user);
  while (holder->count > 0)
    give(holder);
}

static uint64_t bytes_now(void) {
  struct staging_counters counters;
  staging_counters(staging, &counters);
  assert_true(counters.bytes <= counters.limit);
  return counters.bytes;
}

static uint64_t waits_now(void) {
  struct staging_counters counters;
  staging_counters(staging, &counters);
  return counters.waits;
}

static void each_kind_has_two_guaranteed_buffers(void **state) {
  const enum staging_kind kinds[] = {STAGING_RECEIVE, STAGING_SEND};
  (void)state;
  for (size_t i = 0; i < COUNT(kinds); i++) {
    struct holder greedy, other;
    join(&greedy, kinds[i], 64);
    join(&other, kinds[1 - i], 64);
    for (unsigned n = 0; n < LEAST - STAGING_PAIR; n++)
      assert_works(take(&greedy));
    assert_int_equal(take(&greedy), 1);
    assert_works(take(&other));
    assert_works(take(&other));
    assert_int_equal(take(&other), 1);
    assert_int_equal(bytes_now(), STAGING_LEAST);
    give_all(&greedy);
    give_all(&other);
  }
  assert_int_equal(bytes_now(), STAGING_LEAST); /* kept */
}

static void each_user_is_bounded(void **state) {
  (void)state;
  struct holder one;
  join(&one, STAGING_RECEIVE, 3);
  for (unsigned i = 0; i < 3; i++)
    assert_works(take(&one));
  assert_int_equal(take(&one), 1);
  assert_int_equal(waits_now(), 0);
  give_all(&one);
}

static void buffers_are_used_again_and_may_be_pinned(void **state) {
  (void)state;
  struct holder one;
  join(&one, STAGING_SEND, 4);
  assert_works(take(&one));
  struct bounce *first = one.stages[0];
  assert_true(first->region->memory.may_pin);
  assert_non_null(first->region->memory.view);
  assert_true(first->region->memory.length >= BOUNCE_BYTES);
  give(&one);
  assert_works(take(&one));
  assert_ptr_equal(one.stages[0], first);
  assert_int_equal(bytes_now(), MIB);
  give_all(&one);
}

static void users_are_served_in_order(void **state) {
  (void)state;
  struct holder greedy, waiting[3];
  join(&greedy, STAGING_RECEIVE, 64);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    assert_works(take(&greedy));
  for (unsigned i = 0; i < 3; i++) {
    join(&waiting[i], STAGING_RECEIVE, 64);
    assert_int_equal(take(&waiting[i]), 1);
    assert_int_equal(take(&waiting[i]), 1); /* a repeated request does not queue twice */
  }
  assert_int_equal(waits_now(), 3);
  assert_int_equal(waiting[0].woken, 0);
  give(&greedy);
  assert_true(waiting[0].woken > 0);
  assert_int_equal(waiting[1].woken, 0);
  assert_int_equal(take(&greedy), 1); /* not ahead of queued users */
  assert_int_equal(take(&waiting[2]), 1);
  assert_int_equal(take(&waiting[1]), 1);
  assert_works(take(&waiting[0]));
  assert_int_equal(waiting[1].woken, 0);
  give(&greedy);
  give(&greedy);
  assert_true(waiting[1].woken > 0);
  assert_works(take(&waiting[1]));
  assert_true(waiting[2].woken > 0); /* one more was free */
  assert_works(take(&waiting[2]));
  for (unsigned i = 0; i < 3; i++)
    give_all(&waiting[i]);
  give_all(&greedy);
}

static void a_leaving_user_wakes_the_next(void **state) {
  (void)state;
  struct holder greedy, first, second;
  join(&greedy, STAGING_SEND, 64);
  join(&first, STAGING_SEND, 64);
  join(&second, STAGING_SEND, 64);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    assert_works(take(&greedy));
  assert_int_equal(take(&first), 1);
  assert_int_equal(take(&second), 1);
  give(&greedy);
  assert_int_equal(second.woken, 0);
  staging_cancel_wait(&first.user);
  staging_cancel_wait(&first.user);
  assert_true(second.woken > 0);
  assert_works(take(&second));
  give_all(&greedy);
  give_all(&second);
}

static void the_other_kind_does_not_wait(void **state) {
  (void)state;
  struct holder greedy, waits, lands;
  join(&greedy, STAGING_SEND, 64);
  join(&waits, STAGING_SEND, 64);
  join(&lands, STAGING_RECEIVE, 64);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    assert_works(take(&greedy));
  assert_int_equal(take(&waits), 1);
  int64_t waited = clock_now();
  assert_true(staging_is_short(staging, STAGING_SEND, waited));
  staging_cancel_wait(&waits.user); /* it gave up */
  assert_true(staging_is_short(staging, STAGING_SEND, waited - 1));
  assert_false(staging_is_short(staging, STAGING_SEND, clock_now()));
  assert_false(staging_is_short(staging, STAGING_RECEIVE, clock_now()));
  assert_works(take(&lands));
  assert_works(take(&lands));
  give_all(&lands);
  give_all(&waits);
  give_all(&greedy);
}

static void all_requested_buffers_or_none(void **state) {
  (void)state;
  struct holder greedy, late;
  struct staging_user copy;
  struct bounce *two[2];
  join(&greedy, STAGING_RECEIVE, 64);
  join(&late, STAGING_RECEIVE, 64);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR - 1; i++)
    assert_works(take(&greedy));
  assert_fails(HAUL_ETIMEDOUT, staging_get_wait(staging, &copy, 2, -1, two, HAUL_NO_WAIT));
  assert_false(staging_is_short(staging, STAGING_RECEIVE, clock_now()));
  /* A request of two is not overtaken by a request of one. */
  unsigned woken = 0;
  staging_user_init(staging, &copy, STAGING_RECEIVE, 2, count_wake, &woken);
  assert_int_equal(staging_get(&copy, 2, -1, two), 1);
  assert_int_equal(take(&late), 1);
  give(&greedy);
  assert_true(woken > 0);
  assert_int_equal(take(&late), 1);
  assert_works(staging_get(&copy, 2, -1, two));
  give(&greedy);
  assert_works(take(&late));
  staging_put(&copy, two[0]);
  staging_put(&copy, two[1]);
  give_all(&late);
  give_all(&greedy);
}

#define THREADS 8
#define ROUNDS  200

/* Requests of two and of one are all served. */
static void *come_and_go(void *user) {
  unsigned count = 1 + (unsigned)(uintptr_t)user % 2;
  for (unsigned i = 0; i < ROUNDS; i++) {
    struct staging_user copy;
    struct bounce *stages[2];
    if (staging_get_wait(staging, &copy, count, -1, stages,
                         haul_deadline_in(INT64_C(20000000000))) != 0)
      return user;
    for (unsigned k = 0; k < count; k++)
      *(volatile char *)stages[k]->region->memory.view = 1;
    for (unsigned k = 0; k < count; k++)
      staging_put(&copy, stages[k]);
  }
  return NULL;
}

static void many_threads_get_buffers(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  struct holder sends;
  join(&sends, STAGING_SEND, 64);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++) /* two are guaranteed to the other kind */
    assert_works(take(&sends));
  for (uintptr_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, (void *)(i + 2)), 0);
  for (unsigned i = 0; i < THREADS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  give_all(&sends);
  assert_true(bytes_now() <= STAGING_LEAST);
}

static void reservations_take_at_most_half(void **state) {
  (void)state;
  struct holder lands, sends;
  assert_int_equal(staging_reserve(staging, 8), 2);
  assert_int_equal(staging_reserve(staging, 8), 2);
  assert_int_equal(staging_reserve(staging, 8), 0);
  assert_int_equal(bytes_now(), 4 * MIB);
  join(&lands, STAGING_RECEIVE, 64);
  join(&sends, STAGING_SEND, 64);
  for (unsigned i = 0; i < STAGING_PAIR; i++) {
    assert_works(take(&lands));
    assert_works(take(&sends));
  }
  assert_int_equal(take(&lands), 1);
  assert_int_equal(bytes_now(), STAGING_LEAST);
  give_all(&lands);
  give_all(&sends);
  assert_int_equal(take(&lands), 0);
  give_all(&lands);
  staging_unreserve(staging, 4);
  assert_int_equal(staging_reserve(staging, 8), 2);
  assert_true(bytes_now() <= STAGING_LEAST); /* idle ones were freed */
  staging_unreserve(staging, 2);
  staging_limit(staging, STAGING_DEFAULT);
  assert_int_equal(staging_reserve(staging, 8), 8);
  assert_int_equal(staging_reserve(staging, 8), 6);
  staging_unreserve(staging, 14);
}

static void buffers_in_use_are_not_reserved(void **state) {
  (void)state;
  struct holder greedy;
  join(&greedy, STAGING_RECEIVE, 64);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    assert_works(take(&greedy));
  assert_int_equal(staging_reserve(staging, 8), 0);
  give(&greedy);
  assert_int_equal(staging_reserve(staging, 8), 0);
  give(&greedy);
  assert_int_equal(staging_reserve(staging, 8), 2);
  assert_int_equal(take(&greedy), 1);
  staging_unreserve(staging, 2);
  give_all(&greedy);
}

static void idle_buffers_expire(void **state) {
  (void)state;
  struct holder one;
  join(&one, STAGING_RECEIVE, 4);
  for (unsigned i = 0; i < 3; i++)
    assert_works(take(&one));
  assert_int_equal(kept, 0);
  give(&one);
  give(&one);
  assert_int_equal(kept, 1); /* once is enough */
  int64_t now = clock_now();
  assert_true(heap_expire(heap, now) != HAUL_FOREVER);
  assert_int_equal(bytes_now(), 3 * MIB);
  assert_true(heap_expire(heap, now + 2 * STAGING_IDLE_NS) == HAUL_FOREVER);
  assert_int_equal(bytes_now(), MIB);
  give(&one);
  assert_int_equal(kept, 2);
}

static void a_heap_closed_meanwhile_keeps_nothing(void **state) {
  (void)state;
  struct heap *closed;
  struct staging_user user;
  struct bounce *stages[2];
  assert_works(heap_open(NULL, 0, &closed));
  assert_works(staging_get_wait(heap_staging(closed), &user, 2, -1, stages, HAUL_FOREVER));
  heap_close(closed);
  staging_put(&user, stages[0]);
  staging_put(&user, stages[1]);
  assert_int_equal(haul_mappings(), 0);
}

static struct {
  unsigned calls;
  void *address;
  size_t length;
  int mode;
  unsigned long node;
  bool touched;
} bound;

static bool several_nodes(void) {
  return true;
}

static bool one_node(void) {
  return false;
}

static long note_bind(void *address, size_t length, int mode, const unsigned long *nodes,
                      unsigned long bits, unsigned flags) {
  bound.calls++;
  bound.address = address;
  bound.length = length;
  bound.mode = mode;
  bound.node = 0;
  for (unsigned long i = 0; i + 1 < bits; i++)
    if (nodes[i / 64] & 1ul << i % 64)
      bound.node = i;
  assert_int_equal(flags, 0);
  return -1; /* a sandbox that forbids mbind does no harm */
}

static void buffers_are_on_their_numa_node(void **state) {
  (void)state;
  struct staging_user user;
  struct bounce *stages[LEAST];
  bound.calls = 0;
  sys_ops.has_nodes = several_nodes;
  sys_ops.mbind = note_bind;
  staging_user_init(staging, &user, STAGING_RECEIVE, 64, count_wake, &(unsigned){0});
  assert_works(staging_get(&user, 1, 3, &stages[0]));
  assert_int_equal(bound.calls, 1);
  assert_ptr_equal(bound.address, stages[0]->region->memory.address);
  assert_int_equal(bound.length, BOUNCE_BYTES);
  assert_int_equal(bound.mode, 1);
  assert_int_equal(bound.node, 3);
  assert_works(staging_get(&user, 1, 70, &stages[1]));
  assert_int_equal(bound.node, 70);
  struct bounce *of_70 = stages[1];
  staging_put(&user, stages[0]);
  staging_put(&user, stages[1]);
  assert_works(staging_get(&user, 1, 70, &stages[0]));
  assert_ptr_equal(stages[0], of_70);
  assert_int_equal(bound.calls, 2);
  staging_put(&user, stages[0]);
  /* At the limit, buffers of other nodes are replaced. */
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    assert_works(staging_get(&user, 1, 1, &stages[i]));
  assert_true(bytes_now() <= STAGING_LEAST);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    staging_put(&user, stages[i]);
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++) {
    assert_works(staging_get(&user, 1, 2, &stages[i]));
    assert_int_equal(stages[i]->numa, 2);
    assert_true(bytes_now() <= STAGING_LEAST);
  }
  for (unsigned i = 0; i < LEAST - STAGING_PAIR; i++)
    staging_put(&user, stages[i]);
}

static void one_numa_node_needs_no_placement(void **state) {
  (void)state;
  struct holder one;
  bound.calls = 0;
  sys_ops.has_nodes = one_node;
  sys_ops.mbind = note_bind;
  join(&one, STAGING_RECEIVE, 4);
  assert_int_equal(staging_numa(staging, (struct haul_place){HAUL_SIM, 0}), -1);
  assert_works(take(&one));
  assert_int_equal(bound.calls, 0);
  give_all(&one);
  sys_ops.has_nodes = several_nodes;
  assert_int_equal(staging_numa(staging, (struct haul_place){HAUL_SIM, 0}), -1);
  assert_int_equal(staging_numa(staging, (struct haul_place){99, 99}), -1);
}

static void failed_allocations_lose_no_buffer(void **state) {
  (void)state;
  struct staging_user user;
  struct bounce *stages[2];
  for (unsigned n = 1;; n++) {
    seams_refuse(n);
    int code = staging_get_wait(staging, &user, 2, -1, stages, HAUL_FOREVER);
    bool refused = seams_restore();
    assert_true(code == 0 || code == HAUL_ENOMEM);
    assert_int_equal(user.count, code ? 0 : 2);
    for (unsigned i = 0; code == 0 && i < 2; i++)
      staging_put(&user, stages[i]);
    heap_expire(heap, HAUL_FOREVER - 1);
    assert_int_equal(bytes_now(), 0);
    if (!refused)
      break;
  }
}

/* A holder continues with its buffer; a waiter is woken by a free. */
static void without_memory_a_holder_waits_for_its_own(void **state) {
  (void)state;
  struct holder one;
  join(&one, STAGING_SEND, 4);
  assert_works(take(&one));
  seams_refuse_from(1);
  assert_int_equal(take(&one), 1);
  give(&one);
  assert_works(take(&one));
  seams_restore();
  give_all(&one);
}

int main(void) {
#define FRESH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      FRESH(each_kind_has_two_guaranteed_buffers),
      FRESH(each_user_is_bounded),
      FRESH(buffers_are_used_again_and_may_be_pinned),
      FRESH(users_are_served_in_order),
      FRESH(a_leaving_user_wakes_the_next),
      FRESH(the_other_kind_does_not_wait),
      FRESH(all_requested_buffers_or_none),
      FRESH(many_threads_get_buffers),
      FRESH(reservations_take_at_most_half),
      FRESH(buffers_in_use_are_not_reserved),
      FRESH(idle_buffers_expire),
      FRESH(a_heap_closed_meanwhile_keeps_nothing),
      FRESH(buffers_are_on_their_numa_node),
      FRESH(one_numa_node_needs_no_placement),
      FRESH(failed_allocations_lose_no_buffer),
      FRESH(without_memory_a_holder_waits_for_its_own),
  };
  return cmocka_run_group_tests_name("memory/staging", tests, NULL, NULL);
}
