/* SPDX-License-Identifier: MIT
 * Imports with a ticket alone: rejections, sharing, expiry. */
#include "support/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sys.h"
#include "memory/imports.h"
#include "memory/region.h"
#include "support/child.h"
#include "support/owner.h"
#include "support/seams.h"

#define LENGTH 4096

static const struct haul_place host = {HAUL_HOST, 0};
static struct heap *owner, *user;

static int begin(void **state) {
  (void)state;
  assert_works(heap_open(NULL, 0, &owner));
  return heap_open(NULL, LENGTH, &user);
}

static int end(void **state) {
  (void)state;
  heap_close(user);
  heap_close(owner);
  return haul_mappings() == 0 ? 0 : -1;
}

static struct haul_region *make(void) {
  struct haul_region *region;
  assert_works(heap_alloc(owner, host, LENGTH, 0, &region));
  return region;
}

static struct haul_ticket ticket_of(struct haul_region *region, unsigned rights) {
  struct haul_ticket ticket;
  assert_works(region_export(region, rights, NULL, &ticket, NULL));
  return ticket;
}

static struct haul_region *import_first(struct haul_region *region, unsigned rights) {
  struct haul_region *import;
  struct haul_ticket ticket;
  int fd;
  assert_works(region_export(region, rights, NULL, &ticket, &fd));
  assert_works(heap_import(user, &ticket, fd, &import));
  close(fd);
  return import;
}

static int try(struct haul_ticket ticket) {
  struct haul_region *import;
  int code = heap_import(user, &ticket, -1, &import);
  if (code == 0)
    region_put(import);
  return code;
}

static int64_t after(unsigned keeps) {
  return clock_after(clock_now(), keeps * IMPORTS_KEEP_NS + 1);
}

static void a_ticket_alone_opens_nothing(void **state) {
  (void)state;
  struct haul_region *region = make();
  assert_fails(HAUL_ETICKET, try(ticket_of(region, HAUL_READ)));
  assert_non_null(strstr(haul_error_last()->hint, "descriptor"));
  region_put(region);
}

static void imports_of_other_regions_are_not_used(void **state) {
  (void)state;
  struct haul_region *region = make(), *other = make();
  struct haul_region *import = import_first(other, HAUL_READ);
  assert_fails(HAUL_ETICKET, try(ticket_of(region, HAUL_READ)));
  region_put(import);
  region_put(region);
  region_put(other);
}

/* A read-only ticket maps without write access. */
static void other_rights_are_another_import(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_region *import = import_first(region, HAUL_READ);
  assert_fails(HAUL_ETICKET, try(ticket_of(region, HAUL_READ | HAUL_WRITE)));
  assert_works(try(ticket_of(region, HAUL_READ)));
  region_put(import);
  region_put(region);
}

static void a_ticket_of_another_length_is_rejected(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_region *import = import_first(region, HAUL_READ);
  struct haul_ticket ticket = ticket_of(region, HAUL_READ);
  struct ticket good, bad;
  assert_works(ticket_unpack(&ticket, &good));
  for (int i = 0; i < 3; i++) {
    bad = good;
    if (i == 0)
      bad.length++;
    else if (i == 1)
      bad.place.kind = HAUL_SIM;
    else
      memset(bad.identity, 0, sizeof bad.identity);
    ticket_pack(&bad, &ticket);
    assert_fails(HAUL_ETICKET, try(ticket));
  }
  ticket.bytes[100] ^= 1;
  assert_fails(HAUL_ETICKET, try(ticket));
  region_put(import);
  region_put(region);
}

/* A holder of the ticket knows the identity and sends memory of its own with it. */
static void memory_under_another_identity_is_rejected(void **state) {
  (void)state;
  struct haul_region *region = make(), *forger = make(), *forged;
  struct haul_ticket ticket = ticket_of(region, HAUL_READ), own;
  struct ticket told, made;
  int fd;
  assert_works(region_export(forger, HAUL_READ, NULL, &own, &fd));
  assert_works(ticket_unpack(&ticket, &told));
  assert_works(ticket_unpack(&own, &made));
  memcpy(made.identity, told.identity, sizeof made.identity);
  ticket_pack(&made, &own);
  assert_works(heap_import(user, &own, fd, &forged));
  assert_fails(HAUL_ETICKET, try(ticket));
  memcpy(made.extra, told.extra, sizeof made.extra);
  ticket_pack(&made, &own);
  assert_fails(HAUL_ETICKET, heap_import(user, &own, fd, &forged));
  assert_non_null(strstr(haul_error_last()->text, "other memory"));
  close(fd);
  region_put(forged);
  region_put(region);
  region_put(forger);
}

static void released_memory_is_not_imported_again(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_region *import = import_first(region, HAUL_READ);
  struct haul_ticket ticket = ticket_of(region, HAUL_READ);
  region_put(region);
  assert_fails(HAUL_ESTALE, try(ticket));
  region_put(import);
  assert_fails(HAUL_ETICKET, try(ticket)); /* not cached either */
}

static void no_two_regions_have_one_identity(void **state) {
  (void)state;
  struct ticket first, again, second;
  struct haul_region *a = make(), *b = make();
  struct haul_ticket tickets[] = {ticket_of(a, HAUL_READ), ticket_of(a, HAUL_READ | HAUL_WRITE),
                                  ticket_of(b, HAUL_READ)};
  assert_works(ticket_unpack(&tickets[0], &first));
  assert_works(ticket_unpack(&tickets[1], &again));
  assert_works(ticket_unpack(&tickets[2], &second));
  assert_memory_equal(first.identity, again.identity, 16);
  assert_memory_not_equal(first.identity, second.identity, 16);
  region_put(a);
  region_put(b);
}

static void many_tensors_of_one_region_need_one_descriptor(void **state) {
  (void)state;
  struct haul_region *region = make(), *imports[1000];
  struct haul_region *first = import_first(region, HAUL_READ | HAUL_WRITE);
  unsigned descriptors = open_descriptors(), mappings = haul_mappings();
  for (size_t i = 0; i < COUNT(imports); i++) {
    struct haul_tensor layout = {.type = 2,
                                 .bits = 32,
                                 .lanes = 1,
                                 .dimensions = 1,
                                 .shape = {1},
                                 .strides = {1},
                                 .offset = 4 * i};
    struct haul_tensor told;
    struct haul_ticket ticket;
    assert_works(region_export(region, HAUL_READ | HAUL_WRITE, &layout, &ticket, NULL));
    assert_works(heap_import(user, &ticket, -1, &imports[i]));
    assert_ptr_equal(imports[i]->memory.view, first->memory.view);
    assert_works(haul_ticket_layout(&ticket, &told));
    assert_int_equal(told.offset, 4 * i);
  }
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(haul_mappings(), mappings);
  region_put(first); /* other users keep it */
  memset(region->memory.view, 7, LENGTH);
  assert_int_equal(*(char *)imports[999]->memory.view, 7);
  for (size_t i = 0; i < COUNT(imports); i++)
    region_put(imports[i]);
  region_put(region);
}

static int dead;

static void dies(void *node, const struct memory *memory) {
  (void)node;
  (void)memory;
  dead++;
}

static int keeps;

static void keep(void *node) {
  (void)node;
  keeps++;
}

/* Else the registration of one region would end during a transfer of another. */
static void the_import_ends_with_the_last_region(void **state) {
  static const struct heap_watcher watcher = {NULL, dies, keep, NULL};
  (void)state;
  struct haul_region *region = make(), *second;
  struct haul_region *first = import_first(region, HAUL_READ);
  struct haul_ticket ticket = ticket_of(region, HAUL_READ);
  dead = keeps = 0;
  heap_watch(user, &watcher);
  assert_works(heap_import(user, &ticket, -1, &second));
  region_put(first);
  assert_int_equal(keeps, 0);
  region_put(second);
  assert_int_equal(keeps, 1);
  assert_int_equal(dead, 0);
  assert_int_equal(heap_expire(user, after(1)), HAUL_FOREVER);
  assert_int_equal(dead, 1);
  heap_watch(user, NULL);
  region_put(region);
}

static void an_unused_import_is_kept_and_expires(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_ticket ticket = ticket_of(region, HAUL_READ);
  region_put(import_first(region, HAUL_READ));
  assert_works(try(ticket));
  int64_t next = heap_expire(user, clock_now());
  assert_true(next > clock_now() && next <= after(1));
  assert_works(try(ticket));
  assert_int_equal(heap_expire(user, after(1)), HAUL_FOREVER);
  assert_fails(HAUL_ETICKET, try(ticket));
  region_put(region);
}

static void used_imports_do_not_expire(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_region *import = import_first(region, HAUL_READ);
  assert_int_equal(heap_expire(user, after(1)), HAUL_FOREVER);
  assert_works(try(ticket_of(region, HAUL_READ)));
  assert_int_equal(*(volatile char *)import->memory.view, 0);
  region_put(import);
  region_put(region);
}

static void the_oldest_unused_import_is_evicted(void **state) {
  (void)state;
  struct haul_region *regions[IMPORTS_IDLE + 2];
  for (size_t i = 0; i < COUNT(regions); i++) {
    regions[i] = make();
    region_put(import_first(regions[i], HAUL_READ));
  }
  for (size_t i = 0; i < COUNT(regions); i++) {
    assert_int_equal(try(ticket_of(regions[i], HAUL_READ)), i < 2 ? HAUL_ETICKET : 0);
    region_put(regions[i]);
  }
}

static void regions_may_outlive_their_heaps_opener(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_region *import = import_first(region, HAUL_READ);
  heap_close(user);
  assert_int_equal(*(volatile char *)import->memory.view, 0);
  region_put(import); /* no heap is left to keep it */
  region_put(region);
  assert_works(heap_open(NULL, LENGTH, &user));
}

static void without_a_pool_no_import_is_kept(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_ticket ticket = ticket_of(region, HAUL_READ);
  heap_close(user);
  assert_works(heap_open(NULL, 0, &user));
  struct haul_region *import = import_first(region, HAUL_READ);
  assert_works(try(ticket)); /* shares the mapping in use */
  region_put(import);
  assert_fails(HAUL_ETICKET, try(ticket));
  region_put(region);
}

static void every_failure_is_clean(void **state) {
  (void)state;
  struct haul_region *region = make();
  for (unsigned n = 1;; n++) {
    struct haul_region *import = NULL;
    struct haul_ticket ticket;
    int fd;
    assert_works(region_export(region, HAUL_READ, NULL, &ticket, &fd));
    seams_refuse_from(n);
    int code = heap_import(user, &ticket, fd, &import);
    bool refused = seams_restore();
    close(fd);
    if (code == 0)
      region_put(import);
    if (!refused)
      break;
    assert_true(code == HAUL_ENOMEM || code == HAUL_ELIMIT || code == 0);
  }
  region_put(region);
}

static void release_in_child(void *import) {
  region_put(import);
  heap_close(user);
}

static void a_forked_child_harms_no_other_process(void **state) {
  (void)state;
  struct haul_region *region = make();
  struct haul_region *import = import_first(region, HAUL_READ);
  assert_int_equal(child_run(release_in_child, import), 0);
  assert_works(try(ticket_of(region, HAUL_READ)));
  region_put(import);
  region_put(region);
}

struct racing {
  struct haul_region *regions[4];
  struct haul_ticket tickets[4];
  uint64_t seed;
};

static void *race(void *argument) {
  struct racing *racing = argument;
  uint64_t at = racing->seed + (uintptr_t)&at;
  for (int i = 0; i < 2000; i++) {
    struct haul_region *import;
    unsigned which = next_random(&at) % 4;
    if (next_random(&at) % 16 == 0)
      heap_expire(user, after(1));
    int code = heap_import(user, &racing->tickets[which], -1, &import);
    if (code == HAUL_ETICKET)
      import = import_first(racing->regions[which], HAUL_READ);
    else
      assert_works(code);
    assert_int_equal(*(volatile char *)import->memory.view, (int)which + 1);
    region_put(import);
  }
  return NULL;
}

static void threads_use_imports_that_expire_meanwhile(void **state) {
  (void)state;
  struct racing racing = {.seed = test_seed()};
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    racing.regions[i] = make();
    memset(racing.regions[i]->memory.view, i + 1, LENGTH);
    racing.tickets[i] = ticket_of(racing.regions[i], HAUL_READ);
  }
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, race, &racing), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < 4; i++)
    region_put(racing.regions[i]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(a_ticket_alone_opens_nothing),
      TEST(imports_of_other_regions_are_not_used),
      TEST(other_rights_are_another_import),
      TEST(a_ticket_of_another_length_is_rejected),
      TEST(memory_under_another_identity_is_rejected),
      TEST(released_memory_is_not_imported_again),
      TEST(no_two_regions_have_one_identity),
      TEST(many_tensors_of_one_region_need_one_descriptor),
      TEST(the_import_ends_with_the_last_region),
      TEST(an_unused_import_is_kept_and_expires),
      TEST(used_imports_do_not_expire),
      TEST(the_oldest_unused_import_is_evicted),
      TEST(regions_may_outlive_their_heaps_opener),
      TEST(without_a_pool_no_import_is_kept),
      TEST(every_failure_is_clean),
      TEST(a_forked_child_harms_no_other_process),
      TEST(threads_use_imports_that_expire_meanwhile),
  };
  return cmocka_run_group_tests_name("memory/imports", tests, NULL, NULL);
}
