/* SPDX-License-Identifier: MIT
 * The combining lock. */
#include "support/check.h"

#include <string.h>

#include "core/combiner.h"

#define THREADS 4u
#define ROUNDS  20000u

struct one {
  struct list link;
  unsigned by, number;
};

static struct {
  struct combiner combiner;
  unsigned in;            /* the lock */
  unsigned next[THREADS]; /* by thread */
  bool inside;
  bool in_order;
} t;

static void admit(struct combiner *combiner, struct list *items) {
  assert_ptr_equal(combiner, &t.combiner);
  assert_false(t.inside);
  t.inside = true;
  for (struct list *item; (item = list_take(items));) {
    struct one *one = list_entry(item, struct one, link);
    t.in_order &= one->number == t.next[one->by]++;
    t.in++;
  }
  t.inside = false;
}

static int set_up(void **state) {
  (void)state;
  memset(&t, 0, sizeof t);
  t.in_order = true;
  combiner_init(&t.combiner, admit);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  combiner_destroy(&t.combiner);
  return 0;
}

static void submitted_items_are_admitted(void **state) {
  struct one one = {.number = 0};
  (void)state;
  combiner_submit(&t.combiner, &one.link);
  assert_int_equal(t.in, 1);
}

static void the_holder_admits_items(void **state) {
  struct one ones[3] = {{.number = 0}, {.number = 1}, {.number = 2}};
  (void)state;
  combiner_lock(&t.combiner);
  for (unsigned i = 0; i < 3; i++)
    combiner_submit(&t.combiner, &ones[i].link);
  assert_int_equal(t.in, 0);
  combiner_unlock(&t.combiner);
  assert_int_equal(t.in, 3);
  assert_true(t.in_order);
}

static void deferred_items_wait_for_the_next_holder(void **state) {
  struct one ones[2] = {{.number = 0}, {.number = 1}};
  (void)state;
  combiner_defer(&t.combiner, &ones[0].link);
  assert_int_equal(t.in, 0);
  combiner_submit(&t.combiner, &ones[1].link);
  assert_int_equal(t.in, 2);
  assert_true(t.in_order);
}

static struct one ones[THREADS][ROUNDS];

static void *bring_many(void *argument) {
  unsigned by = (unsigned)(uintptr_t)argument;
  for (unsigned i = 0; i < ROUNDS; i++) {
    ones[by][i] = (struct one){.by = by, .number = i};
    if (i % 7 == by) {
      combiner_lock(&t.combiner);
      combiner_unlock(&t.combiner);
    }
    combiner_submit(&t.combiner, &ones[by][i].link);
  }
  return NULL;
}

static void every_item_is_drained(void **state) {
  pthread_t threads[THREADS];
  (void)state;
  for (unsigned i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, bring_many, (void *)(uintptr_t)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(t.in, THREADS * ROUNDS); /* no later holder */
  assert_true(t.in_order);
}

int main(void) {
#define GATE_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      GATE_TEST(submitted_items_are_admitted),
      GATE_TEST(the_holder_admits_items),
      GATE_TEST(deferred_items_wait_for_the_next_holder),
      GATE_TEST(every_item_is_drained),
  };
  return cmocka_run_group_tests_name("core/combiner", tests, NULL, NULL);
}
