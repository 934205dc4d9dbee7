/* SPDX-License-Identifier: MIT
 * Timers by time, against a plain reference. */
#include "support/check.h"

#include <stdlib.h>

#include "core/timers.h"

struct numbered {
  struct timer timer;
  int number;
};

static int number_of(const struct timer *timer) {
  return timer ? ((const struct numbered *)(const void *)timer)->number : -1;
}

static void make(struct numbered *timers, int count) {
  for (int i = 0; i < count; i++) {
    timer_init(&timers[i].timer, NULL);
    timers[i].number = i;
  }
}

static int take(struct timers *heap) {
  struct timer *first = heap->first;
  if (first)
    timer_stop(first);
  return number_of(first);
}

static void assert_taken(struct timers *heap, const int *order, int count) {
  for (int i = 0; i < count; i++)
    assert_int_equal(take(heap), order[i]);
  assert_null(heap->first);
}

static void timers_come_by_time(void **state) {
  static const int64_t times[] = {30, 10, -20, 50, 0, INT64_MAX, 40};
  static const int order[] = {2, 4, 1, 0, 6, 3, 5};
  struct timers heap = {0};
  struct numbered timers[7];
  (void)state;
  make(timers, 7);
  for (int i = 0; i < 7; i++)
    timers_start(&heap, &timers[i].timer, times[i]);
  assert_taken(&heap, order, 7);
}

static void of_equal_times_the_first_started_is_first(void **state) {
  enum { MANY = 100 };
  struct timers heap = {0};
  struct numbered timers[MANY];
  int order[MANY];
  (void)state;
  make(timers, MANY);
  for (int i = 0; i < MANY; i++) {
    order[i] = i * 37 % MANY;
    timers_start(&heap, &timers[order[i]].timer, 5);
  }
  assert_taken(&heap, order, MANY);
}

static void a_start_moves_a_timer_behind_those_of_its_time(void **state) {
  static const int order[] = {1, 2, 0};
  struct timers heap = {0};
  struct numbered timers[3];
  (void)state;
  make(timers, 3);
  for (int i = 0; i < 3; i++)
    timers_start(&heap, &timers[i].timer, 5);
  timers_start(&heap, &timers[0].timer, 5);
  assert_taken(&heap, order, 3);
}

static void a_stopped_timer_does_not_come(void **state) {
  struct timers heap = {0};
  struct numbered timers[5];
  (void)state;
  for (int stopped = 0; stopped < 5; stopped++) {
    int order[4], count = 0;
    make(timers, 5);
    timer_stop(&timers[stopped].timer); /* not started */
    for (int i = 0; i < 5; i++) {
      timers_start(&heap, &timers[i].timer, i);
      if (i != stopped)
        order[count++] = i;
    }
    assert_true(timer_runs(&timers[stopped].timer));
    timer_stop(&timers[stopped].timer);
    timer_stop(&timers[stopped].timer);
    assert_false(timer_runs(&timers[stopped].timer));
    assert_taken(&heap, order, 4);
  }
}

#define TIMERS 500

struct reference {
  int64_t at;
  uint64_t order;
  bool runs;
};

static int first_of(const struct reference *all) {
  int first = -1;
  for (int i = 0; i < TIMERS; i++)
    if (all[i].runs && (first < 0 || all[i].at < all[first].at ||
                        (all[i].at == all[first].at && all[i].order < all[first].order)))
      first = i;
  return first;
}

/* Each timer is where its slot says, behind its parent. Returns the number of timers. */
static int check_heap(struct timer *const *slot, const struct timer *parent) {
  int count = 0;
  for (struct timer *timer = *slot; timer; slot = &timer->next, timer = *slot) {
    assert_ptr_equal(timer->slot, slot);
    assert_true(!parent || parent->at < timer->at ||
                (parent->at == timer->at && parent->order < timer->order));
    count += 1 + check_heap(&timer->child, timer);
  }
  return count;
}

/* Few different times: many are equal. */
static void many_at_random_agree_with_a_list(void **state) {
  static struct numbered timers[TIMERS];
  (void)state;
  for (unsigned seed = 1; seed <= 20; seed++) {
    struct timers heap = {0};
    struct reference all[TIMERS] = {0};
    uint64_t starts = 0;
    int running = 0;
    srand(seed);
    make(timers, TIMERS);
    for (int step = 0; step < 5000; step++) {
      int one = rand() % TIMERS, action = rand() % 8;
      bool starts_one = action < (step % 1000 < 500 ? 5 : 2);
      if (!starts_one && action % 2)
        one = take(&heap);
      else if (!starts_one)
        timer_stop(&timers[one].timer);
      if (!starts_one && action % 2)
        assert_int_equal(one, first_of(all));
      if (starts_one) {
        int64_t at = rand() % (seed % 2 ? 10 : 100000);
        timers_start(&heap, &timers[one].timer, at);
        running += !all[one].runs;
        all[one] = (struct reference){at, ++starts, true};
      } else if (one >= 0) {
        running -= all[one].runs;
        all[one].runs = false;
      }
      assert_int_equal(number_of(heap.first), first_of(all));
      if (step % 100 == 0)
        assert_int_equal(check_heap(&heap.first, NULL), running);
    }
    for (int one; (one = take(&heap)) >= 0; all[one].runs = false)
      assert_int_equal(one, first_of(all));
    assert_int_equal(first_of(all), -1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(timers_come_by_time),
      cmocka_unit_test(of_equal_times_the_first_started_is_first),
      cmocka_unit_test(a_start_moves_a_timer_behind_those_of_its_time),
      cmocka_unit_test(a_stopped_timer_does_not_come),
      cmocka_unit_test(many_at_random_agree_with_a_list),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
