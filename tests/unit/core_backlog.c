/* SPDX-License-Identifier: MIT
 * The priority queue. */
#include "support/check.h"

#include "core/backlog.h"

struct one {
  struct list link;
  unsigned rank, number;
};

static struct backlog backlog;

static struct one *taken(void) {
  struct list *first = backlog_first(&backlog), *item = backlog_take(&backlog);
  assert_ptr_equal(item, first);
  return item ? list_entry(item, struct one, link) : NULL;
}

static void add(struct one *one, unsigned rank, unsigned number) {
  *one = (struct one){.rank = rank, .number = number};
  list_init(&one->link);
  backlog_add(&backlog, &one->link, rank);
}

static void is_empty_at_first(void **state) {
  (void)state;
  backlog_init(&backlog);
  assert_null(taken());
}

static void better_ranks_go_first_in_order_of_arrival(void **state) {
  struct one ones[6];
  (void)state;
  backlog_init(&backlog);
  for (unsigned i = 0; i < 6; i++)
    add(&ones[i], 2 - i % 3, i);
  const unsigned order[] = {2, 5, 1, 4, 0, 3};
  for (unsigned i = 0; i < 6; i++)
    assert_int_equal(taken()->number, order[i]);
  assert_null(taken());
}

/* With a full best rank, each other rank gets one turn in eighteen. */
static void nothing_starves(void **state) {
  struct one best[64], middle[8], worst[8];
  unsigned seen[BACKLOG_RANKS] = {0}, since[BACKLOG_RANKS] = {0};
  (void)state;
  backlog_init(&backlog);
  for (unsigned i = 0; i < 8; i++) {
    add(&middle[i], 1, i);
    add(&worst[i], 2, i);
  }
  for (unsigned i = 0; i < 64; i++) {
    add(&best[i], 0, i);
    struct one *one = taken();
    seen[one->rank]++;
    for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
      since[rank] = rank == one->rank ? 0 : since[rank] + 1;
    assert_true(since[1] <= BACKLOG_PATIENCE + 1 && since[2] <= BACKLOG_PATIENCE + 1);
  }
  assert_true(seen[0] >= 56 && seen[1] >= 3 && seen[2] >= 3);
}

static void removed_items_are_not_taken(void **state) {
  struct one ones[3];
  (void)state;
  backlog_init(&backlog);
  for (unsigned i = 0; i < 3; i++)
    add(&ones[i], 1, i);
  list_remove(&ones[1].link);
  assert_int_equal(taken()->number, 0);
  assert_int_equal(taken()->number, 2);
  assert_null(taken());
}

static void all_items_are_moved_at_once(void **state) {
  struct one ones[6];
  struct list all = LIST_INIT(all);
  unsigned count = 0;
  (void)state;
  backlog_init(&backlog);
  for (unsigned i = 0; i < 6; i++)
    add(&ones[i], i % 3, i);
  backlog_empty(&backlog, &all);
  assert_null(taken());
  while (list_take(&all))
    count++;
  assert_int_equal(count, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(is_empty_at_first),
      cmocka_unit_test(better_ranks_go_first_in_order_of_arrival),
      cmocka_unit_test(nothing_starves),
      cmocka_unit_test(removed_items_are_not_taken),
      cmocka_unit_test(all_items_are_moved_at_once),
  };
  return cmocka_run_group_tests_name("core/backlog", tests, NULL, NULL);
}
