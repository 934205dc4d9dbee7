/* SPDX-License-Identifier: MIT
 * A lock that one thread takes nearly always, and others now and then. */
#include "support/check.h"

#include <pthread.h>
#include <unistd.h>

#include "core/biased.h"

static struct biased lock;
static uint64_t plain; /* guarded by it */
static _Atomic bool stop;

static bool add(uint32_t me) {
  bool favoured = biased_lock(&lock, me);
  plain++;
  biased_unlock(&lock, favoured);
  return favoured;
}

static int fresh(void **state) {
  (void)state;
  lock = (struct biased){.last = 0};
  plain = 0;
  atomic_store(&stop, false);
  biased_allow();
  return 0;
}

static void becomes_a_favourites_and_anybodys(void **state) {
  unsigned turns = 0;
  (void)state;
  while (!add(1) && turns < 100000)
    turns++;
  if (turns == 100000)
    skip(); /* a kernel without the call */
  assert_true(turns > 100);
  assert_true(biased_enter(&lock, 1));
  biased_leave(&lock);
  assert_false(biased_enter(&lock, 2));
  assert_false(add(2));
  assert_false(biased_enter(&lock, 1));
  assert_false(add(1)); /* and the count begins anew */
  assert_int_equal(plain, turns + 3);
  assert_true(biased_try_alone(&lock));
  assert_false(biased_try_alone(&lock));
  biased_unlock(&lock, false);
}

static void *be_the_favourite(void *turns) {
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    add(1);
    ++*(uint64_t *)turns;
  }
  return NULL;
}

static void nobody_is_in_with_another(void **state) {
  pthread_t thread;
  uint64_t turns = 0, others = 0;
  (void)state;
  assert_int_equal(pthread_create(&thread, NULL, be_the_favourite, &turns), 0);
  for (; others < 300; others++) {
    usleep(100);
    add(2);
  }
  atomic_store(&stop, true);
  pthread_join(thread, NULL);
  assert_int_equal(plain, turns + others);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(becomes_a_favourites_and_anybodys, fresh),
      cmocka_unit_test_setup(nobody_is_in_with_another, fresh),
  };
  return cmocka_run_group_tests_name("unit/core_biased", tests, NULL, NULL);
}
