/* SPDX-License-Identifier: MIT
 * The registration cache, with a mock registrar. Addresses count in pages; the memory is never
 * accessed. */
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "fabric/regcache.h"
#include "memory/pages.h"
#include "support/seams.h"

#define PAGES_MAX 4096
#define MERGE     64 /* pages */
#define EXACT     64 /* a kind without whole pages */

/* A registration of the mock. */
struct record {
  uint64_t start, end; /* pages */
  uint64_t buffer;
  uint32_t kind;
  struct regcache_range bytes;
  bool ended;
  unsigned *lives; /* of its pages, at the registration */
};

static struct {
  pthread_mutex_t lock;
  uint64_t calls, live; /* calls of add; current registrations */
  uint64_t live_pages;
  uint64_t most;     /* pages; a larger registration is refused with `code` */
  uint64_t room;     /* total pages; more are refused with HAUL_ENOMEM */
  unsigned refusals; /* this number of next calls is refused with `code` */
  int code;
  struct record last;   /* of the last call */
  void (*during)(void); /* called within add */
  atomic_uint lives[PAGES_MAX];
} registrar;

static struct regcache *cache;
static uint64_t page;

static int decide(uint64_t pages) {
  if (registrar.refusals > 0) {
    registrar.refusals--;
    return registrar.code;
  }
  if (pages > registrar.most)
    return registrar.code;
  return registrar.live_pages + pages > registrar.room ? HAUL_ENOMEM : 0;
}

static void forget(struct record *record) {
  free(record->lives);
  free(record);
}

static int add(void *user, const struct regcache_range *range, void **handle) {
  assert_ptr_equal(user, &registrar);
  if (!(range->kind & EXACT)) {
    assert_int_equal(range->address % page, 0);
    assert_int_equal(range->length % page, 0);
  }
  uint64_t pages = range->length / page, start = range->address / page;
  struct record *record = calloc(1, sizeof *record);
  record->lives = calloc(pages, sizeof *record->lives);
  record->start = start;
  record->end = start + pages;
  record->buffer = range->buffer;
  record->kind = range->kind;
  record->bytes = *range;
  for (uint64_t i = 0; i < pages && start + i < PAGES_MAX; i++)
    record->lives[i] = atomic_load(&registrar.lives[start + i]);
  if (registrar.during)
    registrar.during();
  pthread_mutex_lock(&registrar.lock);
  registrar.calls++;
  registrar.last = *record;
  int code = decide(pages);
  if (code == 0) {
    registrar.live++;
    registrar.live_pages += pages;
  }
  pthread_mutex_unlock(&registrar.lock);
  if (code) {
    forget(record);
    return error_set(code, 0, NULL, NULL, "refused");
  }
  *handle = record;
  return 0;
}

static void drop(void *user, void *handle) {
  assert_ptr_equal(user, &registrar);
  struct record *record = handle;
  assert_false(record->ended);
  record->ended = true;
  pthread_mutex_lock(&registrar.lock);
  registrar.live--;
  registrar.live_pages -= record->end - record->start;
  pthread_mutex_unlock(&registrar.lock);
  forget(record);
}

static const struct regcache_ops ops = {.add = add, .remove = drop};

static int open_with(uint64_t pages, uint64_t entries, uint64_t merge) {
  const struct regcache_limits limits = {
      .bytes = pages * page, .entries = entries, .merge = merge * page};
  return regcache_open(&ops, &registrar, &limits, &cache);
}

static int set_up(void **state) {
  (void)state;
  page = page_size();
  memset(&registrar, 0, sizeof registrar);
  pthread_mutex_init(&registrar.lock, NULL);
  registrar.most = registrar.room = UINT64_MAX;
  registrar.code = HAUL_ESYSTEM;
  return open_with(1 << 20, 1000, MERGE);
}

static int tear_down(void **state) {
  (void)state;
  regcache_close(cache);
  return registrar.live == 0 && registrar.live_pages == 0 ? 0 : -1;
}

static void reopen(uint64_t pages, uint64_t entries, uint64_t merge) {
  regcache_close(cache);
  assert_works(open_with(pages, entries, merge));
}

static struct regcache_range range_of(uint64_t start, uint64_t pages) {
  return (struct regcache_range){.address = start * page, .length = pages * page};
}

static struct registration *get_range(struct regcache_range range) {
  struct registration *registration;
  assert_works(regcache_get(cache, &range, &registration));
  const struct record *record = registration->handle;
  assert_true(record->start * page <= range.address);
  assert_true(range.address + range.length <= record->end * page);
  assert_true(record->buffer == range.buffer);
  assert_int_equal(record->kind, range.kind);
  return registration;
}

static struct registration *get(uint64_t start, uint64_t pages) {
  return get_range(range_of(start, pages));
}

static void use(uint64_t start, uint64_t pages) {
  regcache_put(cache, get(start, pages));
}

static void announce(uint64_t start, uint64_t pages) {
  struct regcache_range range = range_of(start, pages);
  assert_works(regcache_announce(cache, &range));
}

static void invalidate(uint64_t start, uint64_t pages) {
  struct regcache_range range = range_of(start, pages);
  regcache_invalidate(cache, &range);
}

static struct regcache_counters counters(void) {
  struct regcache_counters now;
  regcache_counters(cache, &now);
  return now;
}

static void assert_last(uint64_t start, uint64_t end) {
  assert_int_equal(registrar.last.start, start);
  assert_int_equal(registrar.last.end, end);
}

/* Whether a get hits. Registers the range if not. */
static bool is_cached(uint64_t start, uint64_t pages) {
  uint64_t calls = registrar.calls;
  use(start, pages);
  return registrar.calls == calls;
}

static void invalid_ranges_are_refused(void **state) {
  (void)state;
  const struct regcache_range bad[] = {
      {.address = 0, .length = 0},
      {.address = page, .length = 0},
      {.address = UINT64_MAX, .length = 1},
      {.address = UINT64_MAX, .length = 0},
      {.address = page, .length = UINT64_MAX},
      {.address = UINT64_MAX - page, .length = page + 2},
      {.address = UINT64_MAX - page + 1, .length = 1},
      {.address = UINT64_MAX - 2 * page + 1, .length = page + 1},
      {.address = 1, .length = UINT64_MAX},
  };
  for (size_t i = 0; i < COUNT(bad); i++) {
    struct registration *registration;
    assert_fails(HAUL_EINVAL, regcache_get(cache, &bad[i], &registration));
    assert_fails(HAUL_EINVAL, regcache_announce(cache, &bad[i]));
    regcache_invalidate(cache, &bad[i]);
  }
  assert_int_equal(registrar.calls, 0);
}

static void the_ends_of_the_address_space_are_valid(void **state) {
  (void)state;
  struct regcache_range last = {.address = UINT64_MAX - 2 * page + 1, .length = page},
                        first = range_of(0, 1);
  assert_works(regcache_announce(cache, &last));
  assert_works(regcache_announce(cache, &first));
  regcache_put(cache, get_range(last));
  assert_int_equal(registrar.last.end - registrar.last.start, 1);
  regcache_put(cache, get_range(first));
  assert_last(0, 1);
  assert_int_equal(counters().entries, 2);
}

static void a_refusal_is_returned(void **state) {
  (void)state;
  struct regcache_range range = range_of(10, 2);
  struct registration *registration;
  registrar.refusals = 1;
  assert_fails(HAUL_ESYSTEM, regcache_get(cache, &range, &registration));
  assert_int_equal(registrar.calls, 1);
  assert_int_equal(counters().bytes, 0);
  assert_int_equal(counters().entries, 0);
  use(10, 2);
  assert_int_equal(counters().registrations, 1);
  assert_int_equal(counters().misses, 2);
}

static void a_refused_merge_is_retried_alone(void **state) {
  (void)state;
  announce(0, 32);
  registrar.most = 16;
  use(4, 1);
  assert_int_equal(registrar.calls, 2);
  assert_last(4, 5);
  assert_int_equal(counters().bytes, page);
  use(8, 1);
  assert_int_equal(registrar.calls, 3);
  registrar.most = UINT64_MAX;
  announce(0, 32);
  use(12, 1);
  assert_last(0, 32);
}

static void a_merge_without_room_is_halved(void **state) {
  (void)state;
  announce(0, 64);
  registrar.room = 16;
  registrar.most = 17;
  registrar.code = HAUL_ELIMIT;
  use(0, 1);
  assert_last(0, 1);
  use(33, 1);
  assert_last(33, 34);
  assert_int_equal(registrar.calls, 4);
  use(16, 1); /* 16 pages fit only without the two */
  use(48, 1);
  use(50, 1);
  assert_true(registrar.calls <= 9);
}

static void a_registrar_without_room_evicts_idle_registrations(void **state) {
  (void)state;
  registrar.room = 4;
  use(0, 2);
  use(10, 2);
  struct registration *held = get(20, 3);
  assert_last(20, 23);
  assert_int_equal(counters().evictions, 2);
  struct regcache_range range = range_of(30, 2);
  struct registration *registration;
  assert_fails(HAUL_ENOMEM, regcache_get(cache, &range, &registration));
  assert_true(is_cached(20, 3));
  regcache_put(cache, held);
  use(30, 2);
  assert_int_equal(registrar.live, 1);
}

static int attempt(void) {
  struct regcache_range pages = range_of(5, 1), region = range_of(4, 4);
  struct registration *registration;
  int code = open_with(100, 100, MERGE);
  if (code)
    return code;
  code = regcache_announce(cache, &region);
  if (code == 0)
    code = regcache_get(cache, &pages, &registration);
  if (code == 0)
    regcache_put(cache, registration);
  regcache_close(cache);
  cache = NULL;
  return code;
}

static void every_allocation_failure_is_reported(void **state) {
  (void)state;
  regcache_close(cache);
  cache = NULL;
  for (unsigned n = 1;; n++) {
    seams_refuse(n);
    int code = attempt();
    if (!seams_restore()) {
      assert_works(code);
      assert_true(n > 4);
      break;
    }
    assert_int_equal(code, HAUL_ENOMEM);
    assert_int_equal(haul_error_last()->code, HAUL_ENOMEM);
    assert_int_equal(registrar.live, 0);
  }
}

static void removal_allocates_nothing(void **state) {
  (void)state;
  struct registration *held = get(0, 4);
  use(100, 4);
  announce(200, 4);
  seams_refuse_from(1);
  invalidate(0, 1000);
  regcache_put(cache, held);
  assert_false(seams_restore());
  assert_int_equal(registrar.live, 0);
}

static void whole_pages_are_registered_once(void **state) {
  (void)state;
  struct regcache_range bytes = {.address = 3 * page + 100, .length = page};
  struct registration *one = get_range(bytes);
  assert_last(3, 5);
  assert_ptr_equal(get(3, 2), one);
  assert_ptr_equal(get(4, 1), one);
  for (int i = 0; i < 3; i++)
    regcache_put(cache, one);
  assert_int_equal(registrar.calls, 1);
  assert_int_equal(counters().hits, 2);
  assert_int_equal(counters().misses, 1);
  assert_int_equal(counters().bytes, 2 * page);
  assert_false(is_cached(2, 1));
  assert_false(is_cached(5, 1));
}

/* In pages that are another's in part. */
static void exact_kinds_are_registered_to_the_byte(void **state) {
  (void)state;
  regcache_close(cache);
  const struct regcache_limits limits = {
      .bytes = 64 * page, .entries = 9, .merge = page, .exact = EXACT};
  assert_works(regcache_open(&ops, &registrar, &limits, &cache));
  const struct regcache_range ranges[] = {
      {.address = 512, .length = 100, .buffer = 1, .kind = EXACT | 1},
      {.address = 612, .length = 3 * page, .buffer = 2, .kind = EXACT | 1},
      {.address = 3 * page + 900, .length = 16 * page, .buffer = 3, .kind = EXACT | 1}};
  for (unsigned round = 0; round < 3; round++)
    for (size_t i = 0; i < COUNT(ranges); i++) {
      struct registration *registration;
      assert_works(regcache_get(cache, &ranges[i], &registration));
      const struct record *record = registration->handle;
      assert_int_equal(record->bytes.address, ranges[i].address);
      assert_int_equal(record->bytes.length, ranges[i].length);
      regcache_put(cache, registration);
    }
  assert_int_equal(registrar.calls, COUNT(ranges));
  regcache_invalidate(cache, &ranges[1]);
  assert_int_equal(registrar.live, COUNT(ranges) - 1);
}

static void kinds_are_independent(void **state) {
  (void)state;
  struct regcache_range range = range_of(3, 1);
  struct registration *one = get_range(range);
  range.kind = 7;
  struct registration *other = get_range(range);
  assert_ptr_not_equal(one, other);
  regcache_invalidate(cache, &range);
  regcache_put(cache, one);
  regcache_put(cache, other);
  assert_true(is_cached(3, 1));
  assert_int_equal(registrar.live, 1);
}

static void each_of_many_registrations_is_found(void **state) {
  (void)state;
  reopen(1 << 20, 100000, 0);
  for (uint64_t i = 0; i < 50000; i++)
    use(i * 3, 2);
  for (uint64_t i = 0; i < 50000; i++)
    use(i * 3 + i % 2, 1);
  assert_int_equal(registrar.calls, 50000);
  assert_int_equal(counters().hits, 50000);
}

static void another_buffer_is_other_memory(void **state) {
  (void)state;
  struct regcache_range range = range_of(8, 4), part = range_of(10, 1);
  range.buffer = 1;
  part.buffer = 2;
  struct registration *before = get_range(range);
  struct registration *after = get_range(part);
  assert_ptr_not_equal(before, after);
  assert_int_equal(counters().invalidations, 1);
  assert_int_equal(registrar.live, 2);
  regcache_put(cache, before);
  assert_int_equal(registrar.live, 1);
  regcache_put(cache, get_range(part));
  assert_int_equal(registrar.calls, 2);
  regcache_put(cache, after);
}

static void announcing_another_buffer_invalidates(void **state) {
  (void)state;
  struct regcache_range old = range_of(0, 8), young = range_of(4, 8), pages = range_of(11, 1);
  old.buffer = 1;
  young.buffer = pages.buffer = 2;
  assert_works(regcache_announce(cache, &old));
  regcache_put(cache, get_range(old));
  assert_works(regcache_announce(cache, &young));
  assert_int_equal(registrar.live, 0);
  regcache_put(cache, get_range(pages));
  assert_last(4, 12);
}

static void neighbours_of_another_buffer_are_not_joined(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 4; i++) {
    struct regcache_range range = range_of(i * 4, 4);
    range.buffer = i / 2;
    assert_works(regcache_announce(cache, &range));
  }
  use(1, 1);
  assert_last(0, 8);
  assert_int_equal(counters().invalidations, 0);
}

static void buffers_that_share_a_page_take_turns(void **state) {
  (void)state;
  struct regcache_range one = {.address = 0, .length = page + 512, .buffer = 1};
  struct regcache_range two = {.address = page + 512, .length = 512, .buffer = 2};
  struct regcache_range first = {.address = 0, .length = 1, .buffer = 1};
  assert_works(regcache_announce(cache, &one));
  assert_works(regcache_announce(cache, &two));
  regcache_put(cache, get_range(two));
  regcache_put(cache, get_range(first));
  assert_last(0, 2);
  assert_int_equal(counters().invalidations, 1);
  assert_int_equal(registrar.live, 1);
}

static void announced_neighbours_are_registered_together(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 20; i++)
    announce((i * 7 % 20) * 2, 2);
  for (uint64_t i = 0; i < 20; i++)
    use(i * 2, 2);
  assert_int_equal(registrar.calls, 1);
  assert_last(0, 40);
}

static void only_announced_ranges_are_merged(void **state) {
  (void)state;
  announce(0, 2);
  announce(3, 2);
  use(1, 1);
  assert_last(0, 2);
  use(4, 1);
  assert_last(3, 5);
  use(2, 1); /* touches both, but they are registered and larger */
  assert_last(2, 3);
  invalidate(0, 5);
  announce(0, 2);
  announce(3, 2);
  use(2, 1);
  assert_last(0, 5);
}

static void ranges_within_a_page_are_neighbours(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 8; i++) {
    struct regcache_range range = {.address = 5 * page + i * (page / 2), .length = page / 2 - 8};
    assert_works(regcache_announce(cache, &range));
  }
  use(6, 1);
  assert_last(5, 9);
}

static void a_merge_is_bounded(void **state) {
  (void)state;
  announce(0, 10 * MERGE);
  for (uint64_t i = 0; i < 10 * MERGE; i++)
    use(10 * MERGE - 1 - i, 1);
  assert_int_equal(registrar.calls, 10);
  use(MERGE - 1, 2);
  assert_last(MERGE - 1, MERGE + 1);
  assert_true(is_cached(0, MERGE));
  assert_true(is_cached(MERGE, MERGE));
}

static void merging_can_be_turned_off(void **state) {
  (void)state;
  reopen(1000, 1000, 0);
  announce(0, 10);
  use(3, 2);
  assert_last(3, 5);
  use(4, 2);
  assert_last(4, 6);
}

static void overlapping_registrations_become_one(void **state) {
  (void)state;
  use(4, 2);
  use(5, 3);
  assert_last(4, 8);
  assert_int_equal(registrar.live, 1);
  assert_int_equal(counters().replacements, 1);
  assert_true(is_cached(4, 4));
  use(7, 2); /* the other is larger and stays */
  assert_last(7, 9);
  assert_int_equal(registrar.live, 2);
}

static void a_replaced_registration_in_use_stays(void **state) {
  (void)state;
  struct registration *inner = get(5, 1);
  use(4, 4);
  assert_int_equal(registrar.live, 2);
  assert_int_equal(counters().entries, 2);
  struct registration *outer = get(5, 1);
  assert_ptr_not_equal(inner, outer);
  assert_int_equal(((struct record *)inner->handle)->end, 6);
  regcache_put(cache, inner);
  assert_int_equal(registrar.live, 1);
  regcache_put(cache, outer);
}

static void a_growing_buffer_is_registered_few_times(void **state) {
  (void)state;
  uint64_t pages = 0;
  for (uint64_t i = 0; i < MERGE; i++) {
    announce(i, 1);
    use(i, 1);
    pages += registrar.last.end - registrar.last.start;
  }
  assert_true(pages <= MERGE * 7); /* a page for each doubling */
  assert_int_equal(counters().bytes, MERGE * page);
  assert_int_equal(registrar.live, 1);
}

static void the_least_recently_used_is_evicted_first(void **state) {
  (void)state;
  reopen(1000, 4, 0);
  for (uint64_t i = 0; i < 4; i++)
    use(i * 10, 1);
  use(0, 1);
  use(20, 1);
  use(100, 1); /* evicts 10 */
  use(110, 1); /* evicts 30 */
  assert_int_equal(counters().evictions, 2);
  assert_int_equal(registrar.live, 4);
  assert_true(is_cached(0, 1));
  assert_true(is_cached(20, 1));
  assert_true(is_cached(100, 1));
  assert_true(is_cached(110, 1));
  assert_false(is_cached(10, 1)); /* evicts 0 */
  assert_false(is_cached(0, 1));
}

static void bytes_are_bounded(void **state) {
  (void)state;
  reopen(10, 1000, 0);
  for (uint64_t i = 0; i < 20; i++) {
    use(i * 10, 1 + i % 4);
    assert_true(counters().bytes <= 10 * page);
    assert_true(registrar.live_pages <= 10);
  }
  use(500, 10);
  assert_int_equal(registrar.live, 1);
}

static void a_registration_beyond_the_limit_lives_while_in_use(void **state) {
  (void)state;
  reopen(10, 1000, 0);
  use(0, 5);
  struct registration *held = get(100, 11);
  assert_int_equal(registrar.live, 1);
  assert_ptr_equal(get(100, 11), held);
  regcache_put(cache, held);
  assert_int_equal(registrar.live, 1);
  regcache_put(cache, held);
  assert_int_equal(registrar.live, 0);
  assert_int_equal(counters().bytes, 0);
}

static void registrations_in_use_are_not_evicted(void **state) {
  (void)state;
  enum { HELD = 50 };
  struct registration *held[HELD];
  reopen(1000, 4, 0);
  for (uint64_t i = 0; i < HELD; i++)
    held[i] = get(i * 2, 1);
  assert_int_equal(registrar.live, HELD);
  assert_int_equal(counters().evictions, 0);
  for (uint64_t i = 0; i < HELD; i++)
    regcache_put(cache, held[(i * 7) % HELD]);
  assert_int_equal(registrar.live, 4);
  assert_int_equal(counters().entries, 4);
}

static void caching_can_be_turned_off(void **state) {
  (void)state;
  reopen(0, 0, MERGE);
  announce(0, 10);
  use(3, 1);
  assert_last(3, 4);
  assert_int_equal(registrar.live, 0);
}

static void an_idle_registration_is_invalidated_at_once(void **state) {
  (void)state;
  use(0, 4);
  use(10, 4);
  invalidate(4, 6);
  assert_int_equal(registrar.live, 2);
  invalidate(3, 1);
  assert_int_equal(registrar.live, 1);
  assert_int_equal(counters().invalidations, 1);
  assert_true(is_cached(10, 4));
  assert_false(is_cached(0, 4));
}

static void a_registration_in_use_ends_with_its_last_put(void **state) {
  (void)state;
  struct registration *held = get(0, 4);
  assert_ptr_equal(get(0, 1), held);
  invalidate(2, 1);
  struct registration *other = get(0, 4);
  assert_ptr_not_equal(other, held);
  regcache_put(cache, held);
  assert_int_equal(registrar.live, 2);
  regcache_put(cache, held);
  assert_int_equal(registrar.live, 1);
  assert_ptr_equal(get(0, 4), other);
  regcache_put(cache, other);
  regcache_put(cache, other);
  assert_int_equal(counters().entries, 1);
}

static void invalidation_withdraws_the_announcement(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 5; i++)
    announce(i * 2, 2);
  use(0, 1);
  assert_last(0, 10);
  invalidate(4, 2);
  use(0, 1);
  assert_last(0, 4);
  use(6, 1);
  assert_last(6, 10);
  use(4, 1);
  assert_last(4, 5);
}

static void an_announcement_within_another_adds_nothing(void **state) {
  (void)state;
  announce(4, 2);
  announce(0, 10);
  announce(6, 4);
  use(1, 1);
  assert_last(0, 10);
  invalidate(6, 4);
  use(4, 1);
  assert_last(4, 5);
}

static void invalidate_a_neighbour(void) {
  registrar.during = NULL;
  invalidate(6, 2);
}

static void a_pending_registration_can_be_invalidated(void **state) {
  (void)state;
  announce(0, 4);
  announce(4, 4);
  registrar.during = invalidate_a_neighbour;
  struct registration *held = get(0, 1);
  assert_last(0, 8);
  struct registration *other = get(0, 1);
  assert_last(0, 4);
  assert_ptr_not_equal(held, other);
  regcache_put(cache, held);
  regcache_put(cache, other);
  assert_int_equal(registrar.live, 1);
  assert_int_equal(counters().invalidations, 1);
}

static pthread_barrier_t barrier;

static void add_delay(void) {
  usleep(2000);
}

static void *get_range_at(void *argument) {
  pthread_barrier_wait(&barrier);
  use(100 + (uint64_t)(uintptr_t)argument, 4);
  return NULL;
}

/* `count` threads get ranges `distance` pages apart at the same time. */
static void get_concurrently(size_t count, size_t distance) {
  pthread_t threads[8];
  announce(100, 20);
  registrar.during = add_delay;
  pthread_barrier_init(&barrier, NULL, (unsigned)count);
  for (size_t i = 0; i < count; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, get_range_at, (void *)(i * distance)), 0);
  for (size_t i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
}

static void concurrent_misses_register_once(void **state) {
  (void)state;
  get_concurrently(8, 1);
  assert_int_equal(registrar.calls, 1);
  assert_int_equal(counters().misses, 1);
  assert_int_equal(counters().hits, 7);
}

static void threads_that_wait_for_a_refused_merge_register_themselves(void **state) {
  (void)state;
  registrar.most = 10;
  get_concurrently(4, 4);
  assert_int_equal(counters().registrations, 4);
}

/* Each region has a lock, held shared by its users and exclusively to map it anew, as a region's
 * references do. A registration found by a get must be from the current life of all its pages. */
#define REGIONS      24
#define REGION_PAGES 8

static pthread_rwlock_t regions[REGIONS];
static atomic_uint gets;

static void use_region(uint64_t region, uint32_t random) {
  uint64_t from = random % REGION_PAGES, pages = 1 + (random >> 8) % (REGION_PAGES - from);
  uint64_t start = region * REGION_PAGES + from;
  struct regcache_range range = range_of(start, pages);
  struct registration *registration;
  pthread_rwlock_rdlock(&regions[region]);
  range.buffer = random >> 24 == 0;
  if (regcache_get(cache, &range, &registration) == 0) {
    const struct record *record = registration->handle;
    assert_true(record->start <= start && start + pages <= record->end);
    assert_true(record->buffer == range.buffer && !record->ended);
    for (uint64_t i = start; i < start + pages; i++)
      assert_int_equal(record->lives[i - record->start], atomic_load(&registrar.lives[i]));
    regcache_put(cache, registration);
  }
  atomic_fetch_add(&gets, 1);
  pthread_rwlock_unlock(&regions[region]);
}

static void map_anew(uint64_t region, bool announced) {
  pthread_rwlock_wrlock(&regions[region]);
  invalidate(region * REGION_PAGES, REGION_PAGES);
  for (uint64_t i = 0; i < REGION_PAGES; i++)
    atomic_fetch_add(&registrar.lives[region * REGION_PAGES + i], 1);
  if (announced)
    announce(region * REGION_PAGES, REGION_PAGES);
  pthread_rwlock_unlock(&regions[region]);
}

static void *churn(void *argument) {
  uint32_t random = (uint32_t)(uintptr_t)argument * 77 + 1;
  for (unsigned i = 0; i < 20000; i++) {
    random = random * 1664525 + 1013904223;
    uint64_t region = (random >> 4) % REGIONS;
    if (random >> 26 == 0)
      map_anew(region, random & 1);
    else
      use_region(region, random * 2654435761u);
  }
  return NULL;
}

static void no_thread_finds_a_stale_registration(void **state) {
  (void)state;
  pthread_t threads[6];
  reopen(REGIONS * REGION_PAGES / 2, 12, 4 * REGION_PAGES);
  registrar.room = REGIONS * REGION_PAGES * 2 / 3;
  registrar.code = HAUL_ENOMEM;
  for (size_t i = 0; i < REGIONS; i++)
    pthread_rwlock_init(&regions[i], NULL);
  atomic_store(&gets, 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)i), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  struct regcache_counters now = counters();
  assert_int_equal(now.hits + now.misses, atomic_load(&gets));
  assert_int_equal(now.entries, registrar.live);
  assert_int_equal(now.bytes, registrar.live_pages * page);
  assert_true(now.entries <= 12 && now.bytes <= REGIONS * REGION_PAGES / 2 * page);
  assert_true(now.hits > 0 && now.evictions > 0 && now.invalidations > 0);
  for (size_t i = 0; i < REGIONS; i++)
    pthread_rwlock_destroy(&regions[i]);
}

/* Threads that hold some registrations at a time, while others evict and invalidate them: what a
 * get returned stays until its put. No lock keeps gets and invalidations apart here. */
#define HOLD 4

struct held {
  struct registration *registration;
  struct regcache_range range;
};

static void assert_lives(const struct held *held) {
  const struct record *record = held->registration->handle;
  assert_false(record->ended);
  assert_true(record->start * page <= held->range.address);
  assert_true(held->range.address + held->range.length <= record->end * page);
  assert_true(record->buffer == held->range.buffer);
  assert_int_equal(record->kind, held->range.kind);
}

/* Few ranges of one page, so that threads meet, and some of 16 pages or more. */
static struct regcache_range random_range(uint32_t random) {
  uint64_t pages = random >> 28 ? 1 : 16 + (random >> 8) % 16;
  struct regcache_range range = range_of((random >> 12) % 64, pages);
  range.kind = random >> 6 & 1;
  range.buffer = (random & 63) == 0;
  return range;
}

static void *hold_some(void *argument) {
  struct held held[HOLD] = {{0}};
  uint32_t random = (uint32_t)(uintptr_t)argument * 7919 + 1;
  for (unsigned i = 0; i < 40000; i++) {
    random = random * 1664525 + 1013904223;
    struct held *one = &held[i % HOLD];
    if (one->registration) {
      assert_lives(one);
      regcache_put(cache, one->registration);
    }
    one->range = random_range(random * 2654435761u);
    if (random >> 25 == 0)
      regcache_invalidate(cache, &one->range);
    one->registration = get_range(one->range);
  }
  for (size_t i = 0; i < HOLD; i++)
    regcache_put(cache, held[i].registration);
  return NULL;
}

static void what_a_get_returned_lives_until_its_put(void **state) {
  (void)state;
  pthread_t threads[4];
  reopen(1 << 20, 24, MERGE);
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, hold_some, (void *)i), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  struct regcache_counters now = counters();
  assert_int_equal(now.hits + now.misses, 40000 * COUNT(threads));
  assert_int_equal(now.entries, registrar.live);
  assert_true(now.entries <= 24);
  assert_true(now.hits > 0 && now.evictions > 0 && now.invalidations > 0);
}

static void use_eight(uint64_t pages, uint64_t within) {
  for (uint64_t i = 0; i < 8; i++)
    use(pages * 16 + i * (pages + 1) + within, pages - within);
}

static void registrations_of_each_size_are_found(void **state) {
  (void)state;
  reopen(1 << 20, 1000, 0);
  for (uint64_t pages = 2; pages <= 8192; pages *= 16)
    use_eight(pages, 0);
  uint64_t calls = registrar.calls;
  for (uint64_t pages = 2; pages <= 8192; pages *= 16)
    for (unsigned round = 0; round < 3; round++)
      use_eight(pages, round % 2);
  assert_int_equal(registrar.calls, calls);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(invalid_ranges_are_refused),
      TEST(the_ends_of_the_address_space_are_valid),
      TEST(a_refusal_is_returned),
      TEST(a_refused_merge_is_retried_alone),
      TEST(a_merge_without_room_is_halved),
      TEST(a_registrar_without_room_evicts_idle_registrations),
      TEST(every_allocation_failure_is_reported),
      TEST(removal_allocates_nothing),
      TEST(whole_pages_are_registered_once),
      TEST(exact_kinds_are_registered_to_the_byte),
      TEST(kinds_are_independent),
      TEST(each_of_many_registrations_is_found),
      TEST(another_buffer_is_other_memory),
      TEST(announcing_another_buffer_invalidates),
      TEST(neighbours_of_another_buffer_are_not_joined),
      TEST(buffers_that_share_a_page_take_turns),
      TEST(announced_neighbours_are_registered_together),
      TEST(only_announced_ranges_are_merged),
      TEST(ranges_within_a_page_are_neighbours),
      TEST(a_merge_is_bounded),
      TEST(merging_can_be_turned_off),
      TEST(overlapping_registrations_become_one),
      TEST(a_replaced_registration_in_use_stays),
      TEST(a_growing_buffer_is_registered_few_times),
      TEST(the_least_recently_used_is_evicted_first),
      TEST(bytes_are_bounded),
      TEST(a_registration_beyond_the_limit_lives_while_in_use),
      TEST(registrations_in_use_are_not_evicted),
      TEST(caching_can_be_turned_off),
      TEST(an_idle_registration_is_invalidated_at_once),
      TEST(a_registration_in_use_ends_with_its_last_put),
      TEST(invalidation_withdraws_the_announcement),
      TEST(an_announcement_within_another_adds_nothing),
      TEST(a_pending_registration_can_be_invalidated),
      TEST(concurrent_misses_register_once),
      TEST(threads_that_wait_for_a_refused_merge_register_themselves),
      TEST(no_thread_finds_a_stale_registration),
      TEST(what_a_get_returned_lives_until_its_put),
      TEST(registrations_of_each_size_are_found),
  };
  return cmocka_run_group_tests_name("fabric/regcache", tests, NULL, NULL);
}
