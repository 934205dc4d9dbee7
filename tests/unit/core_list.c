/* SPDX-License-Identifier: MIT */
#include "support/check.h"

#include "core/list.h"

struct item {
  int number;
  struct list link;
};

static void holds(struct list *head, const int *numbers, size_t count) {
  size_t seen = 0;
  const struct list *previous = head;
  list_each(at, head) {
    assert_true(seen < count);
    assert_int_equal(list_entry(at, struct item, link)->number, numbers[seen++]);
    assert_ptr_equal(at->previous, previous);
    previous = at;
  }
  assert_int_equal(seen, count);
  assert_ptr_equal(head->previous, previous);
  assert_int_equal(list_empty(head), count == 0);
}

static void make(struct list *head, struct item *items, int count) {
  list_init(head);
  for (int i = 0; i < count; i++) {
    items[i].number = i;
    list_append(head, &items[i].link);
  }
}

static void keeps_the_order(void **state) {
  (void)state;
  struct list head;
  struct item items[3];
  make(&head, items, 0);
  holds(&head, NULL, 0);
  make(&head, items, 3);
  holds(&head, (int[]){0, 1, 2}, 3);
}

static void removing_twice_does_no_harm(void **state) {
  (void)state;
  struct list head;
  struct item items[3];
  make(&head, items, 3);
  list_remove(&items[1].link);
  list_remove(&items[1].link);
  holds(&head, (int[]){0, 2}, 2);
  assert_true(list_empty(&items[1].link));
}

static void takes_from_the_front(void **state) {
  (void)state;
  struct list head;
  struct item items[2];
  make(&head, items, 2);
  assert_ptr_equal(list_take(&head), &items[0].link);
  assert_ptr_equal(list_take(&head), &items[1].link);
  assert_null(list_take(&head));
}

static void the_body_may_remove_its_item(void **state) {
  (void)state;
  struct list head;
  struct item items[5];
  make(&head, items, 5);
  list_each_safe(at, &head) {
    if (list_entry(at, struct item, link)->number % 2 == 0)
      list_remove(at);
  }
  holds(&head, (int[]){1, 3}, 2);
}

static void splices_to_the_end(void **state) {
  (void)state;
  struct list to, from;
  struct item left[2], right[2];
  make(&to, left, 2);
  make(&from, right, 2);
  right[0].number = 7;
  right[1].number = 8;
  list_splice(&to, &from);
  holds(&to, (int[]){0, 1, 7, 8}, 4);
  holds(&from, NULL, 0);
  list_splice(&to, &from);
  holds(&to, (int[]){0, 1, 7, 8}, 4);
  list_splice(&from, &to);
  holds(&from, (int[]){0, 1, 7, 8}, 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(keeps_the_order),      cmocka_unit_test(removing_twice_does_no_harm),
      cmocka_unit_test(takes_from_the_front), cmocka_unit_test(the_body_may_remove_its_item),
      cmocka_unit_test(splices_to_the_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
