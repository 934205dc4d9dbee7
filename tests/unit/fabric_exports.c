/* SPDX-License-Identifier: MIT
 * Published regions: names, handles, grants, and the validity page. */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fabric/exports.h"
#include "memory/shm.h"
#include "support/seams.h"

#define BOTH (HAUL_READ | HAUL_WRITE)

struct fixture {
  struct heap *heap;
  struct exports *exports;
  struct haul_region *region, *other;
};

static struct haul_region *new_region(struct heap *heap) {
  struct haul_region *region;
  assert_works(heap_alloc(heap, (struct haul_place){HAUL_HOST, 0}, 4096, 0, &region));
  return region;
}

static int set_up(void **state) {
  struct fixture *fixture = calloc(1, sizeof *fixture);
  assert_works(heap_open(NULL, 0, &fixture->heap));
  assert_works(exports_open(64, &fixture->exports));
  fixture->region = new_region(fixture->heap);
  fixture->other = new_region(fixture->heap);
  *state = fixture;
  return 0;
}

static int tear_down(void **state) {
  struct fixture *fixture = *state;
  exports_close(fixture->exports);
  assert_int_equal(atomic_load(&fixture->region->refs), 1);
  assert_int_equal(atomic_load(&fixture->region->names), 0);
  region_put(fixture->region);
  region_put(fixture->other);
  heap_close(fixture->heap);
  free(fixture);
  return 0;
}

static int publish(struct fixture *fixture, struct haul_region *region, const char *name,
                   unsigned rights, uint64_t *handle) {
  const struct haul_grant all_peers = {"*", rights};
  return exports_add(fixture->exports, region, name, &all_peers, 1, handle);
}

static uint64_t add(struct fixture *fixture, const char *name) {
  uint64_t handle;
  assert_works(publish(fixture, fixture->region, name, BOTH, &handle));
  return handle;
}

static void drop(struct fixture *fixture, const char *name, uint64_t wanted) {
  uint64_t handle;
  assert_works(exports_remove(fixture->exports, fixture->region, name, &handle));
  assert_true(handle == wanted);
}

static bool is_found(struct fixture *fixture, uint64_t handle) {
  struct export_view view;
  int code = exports_find(fixture->exports, handle, "", &view);
  assert_true(code == 0 || code == HAUL_ESTALE);
  if (code == 0)
    region_put(view.region);
  return code == 0;
}

static void invalid_names_are_rejected(void **state) {
  struct fixture *fixture = *state;
  uint64_t handle;
  char longest[258];
  memset(longest, 'n', 257);
  longest[255] = '\0';
  const char *const good[] = {"a", "kv/0:7", "\"<>&", longest};
  for (size_t i = 0; i < COUNT(good); i++)
    assert_works(publish(fixture, fixture->region, good[i], HAUL_READ, &handle));
  char longer[258];
  memset(longer, 'n', 257);
  longer[256] = '\0';
  const char *const bad[] = {"",      " ",    "a b",          "a\n",  "\t",
                             "a\x7f", "\x01", "w\xc3\xa4rme", longer, NULL};
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EINVAL, publish(fixture, fixture->region, bad[i], HAUL_READ, &handle));
  assert_int_equal(exports_count(fixture->exports, ""), COUNT(good));
}

static void invalid_rights_are_rejected(void **state) {
  struct fixture *fixture = *state;
  static const unsigned bad[] = {0, 4, 7, UINT32_MAX};
  uint64_t handle;
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EINVAL, publish(fixture, fixture->region, "name", bad[i], &handle));
}

static void a_name_is_unique(void **state) {
  struct fixture *fixture = *state;
  uint64_t handle;
  uint64_t first = add(fixture, "name");
  assert_fails(HAUL_EEXIST, publish(fixture, fixture->other, "name", HAUL_READ, &handle));
  add(fixture, "another");
  assert_int_equal(atomic_load(&fixture->region->names), 2);
  drop(fixture, "name", first);
  add(fixture, "name");
}

static void only_the_region_of_a_name_is_removed(void **state) {
  struct fixture *fixture = *state;
  uint64_t handle, own = add(fixture, "name");
  assert_fails(HAUL_ENAME, exports_remove(fixture->exports, fixture->other, "name", &handle));
  assert_fails(HAUL_ENAME, exports_remove(fixture->exports, fixture->other, NULL, &handle));
  assert_fails(HAUL_ENAME, exports_remove(fixture->exports, fixture->region, "nam", &handle));
  assert_true(is_found(fixture, own));
  drop(fixture, NULL, own);
  assert_fails(HAUL_ENAME, exports_remove(fixture->exports, fixture->region, NULL, &handle));
}

static void lookup_returns_the_published_region(void **state) {
  struct fixture *fixture = *state;
  struct export_view view;
  uint64_t handle = add(fixture, "name");
  assert_int_equal(exports_find_name(fixture->exports, "name", "", &view), 0);
  assert_true(view.handle == handle);
  assert_ptr_equal(view.region, fixture->region);
  assert_int_equal(view.length, 4096);
  assert_int_equal(view.rights, BOTH);
  assert_int_equal(view.place.kind, HAUL_HOST);
  assert_string_equal(view.name, "name");
  assert_int_equal(atomic_load(&fixture->region->refs), 3);
  region_put(view.region);
  assert_int_equal(exports_find_name(fixture->exports, "nam", "", &view), HAUL_ENAME);
  assert_int_equal(exports_find_name(fixture->exports, "names", "", &view), HAUL_ENAME);
}

static void export_check_rejects_bad_ranges_and_missing_rights(void **state) {
  struct fixture *fixture = *state;
  static const struct {
    unsigned rights;
    enum haul_operation operation;
    uint64_t offset, length;
    int code;
  } cases[] = {
      {BOTH, HAUL_OP_WRITE, 0, 4096, 0},
      {BOTH, HAUL_OP_READ, 4095, 1, 0},
      {BOTH, HAUL_OP_READ, 4096, 1, HAUL_ERANGE},
      {BOTH, HAUL_OP_READ, 0, 4097, HAUL_ERANGE},
      {BOTH, HAUL_OP_WRITE, UINT64_MAX, 1, HAUL_ERANGE},
      {BOTH, HAUL_OP_WRITE, 1, UINT64_MAX, HAUL_ERANGE},
      {BOTH, HAUL_OP_WRITE, UINT64_MAX, UINT64_MAX, HAUL_ERANGE},
      {HAUL_READ, HAUL_OP_READ, 0, 1, 0},
      {HAUL_READ, HAUL_OP_WRITE, 0, 1, HAUL_EACCESS},
      {HAUL_WRITE, HAUL_OP_WRITE, 0, 1, 0},
      {HAUL_WRITE, HAUL_OP_READ, 0, 1, HAUL_EACCESS},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct export_view view = {.region = fixture->region, .rights = cases[i].rights};
    assert_int_equal(export_check(&view, cases[i].operation, cases[i].offset, cases[i].length),
                     cases[i].code);
  }
}

static void lists_are_sorted_and_paged(void **state) {
  struct fixture *fixture = *state;
  static const char *const names[] = {"m", "a", "z", "aa", "M", "b", "~"};
  static const char *const sorted[] = {"M", "a", "aa", "b", "m", "z", "~"};
  for (size_t i = 0; i < COUNT(names); i++)
    add(fixture, names[i]);
  struct export_view views[8];
  assert_int_equal(exports_list(fixture->exports, "", "", views, 8), COUNT(names));
  for (size_t i = 0; i < COUNT(sorted); i++) {
    assert_string_equal(views[i].name, sorted[i]);
    assert_null(views[i].region);
  }
  size_t seen = 0;
  const char *after = "";
  char last[NAME_MAX_BYTES + 1];
  for (size_t got; (got = exports_list(fixture->exports, after, "", views, 3)) > 0;) {
    for (size_t i = 0; i < got; i++)
      assert_string_equal(views[i].name, sorted[seen++]);
    snprintf(last, sizeof last, "%s", views[got - 1].name);
    after = last;
  }
  assert_int_equal(seen, COUNT(sorted));
  assert_int_equal(exports_list(fixture->exports, "a0", "", views, 1),
                   1); /* not a published name */
  assert_string_equal(views[0].name, "aa");
}

static void a_handle_is_stale_after_unpublish(void **state) {
  struct fixture *fixture = *state;
  uint64_t handle = add(fixture, "name");
  assert_true(is_found(fixture, handle));
  drop(fixture, "name", handle);
  assert_false(is_found(fixture, handle));
  uint64_t again = add(fixture, "name");
  assert_true(again != handle);
  assert_false(is_found(fixture, handle));
}

static void a_handle_with_a_flipped_bit_is_stale(void **state) {
  struct fixture *fixture = *state;
  uint64_t handle = add(fixture, "name");
  for (int bit = 0; bit < 64; bit++)
    assert_false(is_found(fixture, handle ^ UINT64_C(1) << bit));
  assert_false(is_found(fixture, 0));
  assert_false(is_found(fixture, UINT64_MAX));
}

static int by_value(const void *a, const void *b) {
  uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
  return first < second ? -1 : first > second;
}

/* 44 random bits: two of 2000 are equal with a probability of one in eight million. */
static void handles_are_random(void **state) {
  struct fixture *fixture = *state;
  enum { MANY = 2000 };
  static uint64_t stamps[MANY];
  unsigned ones[44] = {0};
  for (int i = 0; i < MANY; i++) {
    uint64_t handle = add(fixture, "name");
    stamps[i] = handle >> 20;
    for (int bit = 0; bit < 44; bit++)
      ones[bit] += (unsigned)(stamps[i] >> bit & 1);
    drop(fixture, "name", handle);
  }
  qsort(stamps, MANY, sizeof stamps[0], by_value);
  for (int i = 1; i < MANY; i++)
    assert_true(stamps[i] != stamps[i - 1]);
  for (int bit = 0; bit < 44; bit++) /* each bit set in half of them: 9 sigma of a fair coin */
    assert_in_range(ones[bit], 800, 1200);
}

static void slots_are_reused_as_late_as_possible(void **state) {
  struct fixture *fixture = *state;
  char name[16];
  uint64_t kept = add(fixture, "kept");
  uint32_t seen = 0;
  for (int i = 0; i < 15; i++) { /* 16 slots at first, one is kept */
    snprintf(name, sizeof name, "n%d", i);
    uint64_t handle = add(fixture, name);
    uint32_t slot = EXPORT_SLOT(handle);
    assert_true(slot < 16 && slot != EXPORT_SLOT(kept) && !(seen >> slot & 1));
    seen |= 1u << slot;
    drop(fixture, name, handle);
  }
}

static void the_number_of_regions_is_limited(void **state) {
  struct fixture *fixture = *state;
  char name[16];
  uint64_t handles[64], handle;
  for (int i = 0; i < 64; i++) {
    snprintf(name, sizeof name, "n%d", i);
    handles[i] = add(fixture, name);
    for (int k = 0; k < i; k++)
      assert_true(EXPORT_SLOT(handles[k]) != EXPORT_SLOT(handles[i]));
  }
  assert_fails(HAUL_ELIMIT, publish(fixture, fixture->region, "more", HAUL_READ, &handle));
  drop(fixture, "n7", handles[7]);
  add(fixture, "more");
  exports_clear(fixture->exports);
  assert_int_equal(exports_count(fixture->exports, ""), 0);
  assert_false(is_found(fixture, handles[0]));
}

static unsigned rights_for(struct fixture *fixture, const char *who) {
  struct export_view view;
  if (exports_find_name(fixture->exports, "secret", who, &view) != 0)
    return 0;
  region_put(view.region);
  return view.rights;
}

static void a_region_is_hidden_from_identities_without_a_grant(void **state) {
  struct fixture *fixture = *state;
  const struct haul_grant grants[] = {
      {"alice", HAUL_READ}, {"bob", BOTH}, {"carol", HAUL_READ}, {"carol", HAUL_WRITE}};
  struct export_view views[4];
  uint64_t handle, open = add(fixture, "open");
  assert_works(exports_add(fixture->exports, fixture->region, "secret", grants, 4, &handle));
  assert_int_equal(rights_for(fixture, "alice"), HAUL_READ);
  assert_int_equal(rights_for(fixture, "bob"), BOTH);
  assert_int_equal(rights_for(fixture, "carol"), BOTH);
  assert_int_equal(rights_for(fixture, "alic"), 0);
  assert_int_equal(rights_for(fixture, "alice2"), 0);
  assert_int_equal(rights_for(fixture, "*"), 0);
  assert_int_equal(rights_for(fixture, ""), 0);
  assert_int_equal(exports_find(fixture->exports, handle, "", &views[0]), HAUL_ESTALE);
  assert_int_equal(exports_find(fixture->exports, handle, "mallory", &views[0]), HAUL_ESTALE);
  assert_int_equal(exports_find(fixture->exports, handle, "alice", &views[0]), 0);
  assert_int_equal(export_check(&views[0], HAUL_OP_READ, 0, 1), 0);
  assert_int_equal(export_check(&views[0], HAUL_OP_WRITE, 0, 1), HAUL_EACCESS);
  region_put(views[0].region);
  assert_int_equal(exports_list(fixture->exports, "", "mallory", views, 4), 1);
  assert_string_equal(views[0].name, "open");
  assert_int_equal(exports_count(fixture->exports, "mallory"), 1);
  assert_int_equal(exports_list(fixture->exports, "", "bob", views, 4), 2);
  assert_int_equal(views[1].rights, BOTH);
  assert_int_equal(exports_count(fixture->exports, "bob"), 2);
  drop(fixture, "secret", handle);
  drop(fixture, "open", open);
}

static void a_grant_adds_to_the_rights_of_all_peers(void **state) {
  struct fixture *fixture = *state;
  const struct haul_grant grants[] = {{"*", HAUL_READ}, {"bob", HAUL_WRITE}};
  uint64_t handle;
  assert_works(exports_add(fixture->exports, fixture->region, "secret", grants, 2, &handle));
  assert_int_equal(rights_for(fixture, ""), HAUL_READ);
  assert_int_equal(rights_for(fixture, "bob"), BOTH);
  assert_int_equal(exports_count(fixture->exports, ""), 1);
  drop(fixture, "secret", handle);
}

static void invalid_grants_are_rejected(void **state) {
  struct fixture *fixture = *state;
  struct haul_grant bad[] = {{"", HAUL_READ}, {NULL, HAUL_READ}, {"a b", HAUL_READ},
                             {"a", 0},        {"a", 4},          {"*", 0}};
  struct haul_grant many[HAUL_GRANTS_MAX + 1];
  uint64_t handle;
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EINVAL,
                 exports_add(fixture->exports, fixture->region, "secret", &bad[i], 1, &handle));
  for (size_t i = 0; i < COUNT(many); i++)
    many[i] = (struct haul_grant){"a", HAUL_READ};
  assert_fails(HAUL_EINVAL, exports_add(fixture->exports, fixture->region, "secret", many,
                                        COUNT(many), &handle));
  assert_fails(HAUL_EINVAL,
               exports_add(fixture->exports, fixture->region, "secret", many, 0, &handle));
}

struct page {
  struct shm shm;
  const _Atomic uint32_t *words;
  uint32_t slots;
};

/* Maps it as a peer does. */
static void map_page(struct fixture *fixture, struct page *page) {
  int descriptor;
  uint8_t capability[16];
  void *view;
  assert_works(exports_validity_page(fixture->exports, &descriptor, &page->slots, capability));
  assert_works(shm_attach(descriptor, page->slots * sizeof(uint32_t), capability, &page->shm));
  assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
  assert_works(shm_map(descriptor, &page->shm, PROT_READ, NULL, &view));
  page->words = view;
  close(descriptor);
}

static void unmap_page(struct page *page) {
  munmap((void *)(uintptr_t)page->words, page->shm.length);
  shm_close(&page->shm);
}

static uint32_t word(const struct page *page, uint64_t handle) {
  return atomic_load(&page->words[EXPORT_SLOT(handle)]);
}

static void the_validity_page_follows_publications(void **state) {
  struct fixture *fixture = *state;
  struct page page;
  uint64_t before = add(fixture, "before");
  map_page(fixture, &page);
  assert_int_equal(page.slots, 64);
  uint64_t after = add(fixture, "after");
  assert_int_equal(word(&page, before), EXPORT_STAMP(before));
  assert_int_equal(word(&page, after), EXPORT_STAMP(after));
  drop(fixture, "before", before);
  assert_int_equal(word(&page, before), 0);
  assert_int_equal(word(&page, after), EXPORT_STAMP(after));
  exports_clear(fixture->exports);
  for (uint32_t i = 0; i < page.slots; i++)
    assert_int_equal(atomic_load(&page.words[i]), 0);
  unmap_page(&page);
}

static void a_stamp_is_never_zero(void **state) {
  (void)state;
  assert_int_equal(EXPORT_STAMP(0), 1);
  assert_int_not_equal(EXPORT_STAMP(UINT64_C(0xfffff)), 0);
}

static void *publish_and_unpublish(void *argument) {
  struct fixture *fixture = argument;
  static _Atomic int number;
  char name[16];
  snprintf(name, sizeof name, "t%d", atomic_fetch_add(&number, 1));
  for (int i = 0; i < 2000; i++) {
    uint64_t handle = add(fixture, name);
    assert_true(is_found(fixture, handle));
    drop(fixture, name, handle);
    assert_false(is_found(fixture, handle));
  }
  return NULL;
}

static void threads_publish_concurrently(void **state) {
  struct fixture *fixture = *state;
  pthread_t threads[4];
  uint64_t kept = add(fixture, "kept");
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, publish_and_unpublish, fixture), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(exports_count(fixture->exports, ""), 1);
  assert_true(is_found(fixture, kept));
}

static void allocation_failures_publish_nothing(void **state) {
  struct fixture *fixture = *state;
  uint64_t handle;
  int status;
  for (unsigned n = 1; seams_refuse(n),
                status = publish(fixture, fixture->region, "name", BOTH, &handle), seams_restore();
       n++) {
    assert_fails(HAUL_ENOMEM, status);
    assert_int_equal(exports_count(fixture->exports, ""), 0);
    assert_int_equal(atomic_load(&fixture->region->refs), 1);
  }
  assert_works(status);
}

static void allocation_failures_leave_no_validity_page(void **state) {
  struct fixture *fixture = *state;
  int status, descriptor;
  uint32_t slots;
  uint8_t capability[16];
  unsigned before = open_descriptors();
  for (unsigned n = 1; seams_refuse(n),
                status = exports_validity_page(fixture->exports, &descriptor, &slots, capability),
                seams_restore();
       n++) {
    assert_true(status == HAUL_ENOMEM || status == HAUL_ELIMIT);
    assert_int_equal(open_descriptors(), before);
  }
  assert_works(status);
  close(descriptor);
}

/* By its handle, for the identity, and to read; it changes nothing that a directory would enter. */
static void a_lent_region_has_no_name(void **state) {
  struct fixture *fixture = *state;
  struct export_view view;
  uint64_t handle;
  _Atomic uint32_t *changes = exports_changes(fixture->exports);
  uint32_t before = atomic_load(changes);
  assert_works(exports_lend(fixture->exports, fixture->region, " 1", "alice", &handle));
  assert_int_equal(atomic_load(&fixture->region->names), 1);
  assert_false(is_found(fixture, handle));
  assert_int_equal(exports_find(fixture->exports, handle, "alice", &view), 0);
  assert_int_equal(view.rights, HAUL_READ);
  assert_int_equal(export_check(&view, HAUL_OP_WRITE, 0, 1), HAUL_EACCESS);
  region_put(view.region);
  assert_int_equal(exports_find_name(fixture->exports, " 1", "alice", &view), HAUL_ENAME);
  assert_int_equal(exports_list(fixture->exports, "", "alice", &view, 1), 0);
  assert_int_equal(exports_count(fixture->exports, "alice"), 0);
  assert_int_equal(exports_count(fixture->exports, NULL), 1);
  drop(fixture, " 1", handle);
  assert_int_equal(exports_find(fixture->exports, handle, "alice", &view), HAUL_ESTALE);
  assert_int_equal(atomic_load(changes), before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_lent_region_has_no_name),
      TEST(invalid_names_are_rejected),
      TEST(invalid_rights_are_rejected),
      TEST(a_name_is_unique),
      TEST(only_the_region_of_a_name_is_removed),
      TEST(lookup_returns_the_published_region),
      TEST(export_check_rejects_bad_ranges_and_missing_rights),
      TEST(lists_are_sorted_and_paged),
      TEST(a_handle_is_stale_after_unpublish),
      TEST(a_handle_with_a_flipped_bit_is_stale),
      TEST(handles_are_random),
      TEST(slots_are_reused_as_late_as_possible),
      TEST(the_number_of_regions_is_limited),
      TEST(a_region_is_hidden_from_identities_without_a_grant),
      TEST(a_grant_adds_to_the_rights_of_all_peers),
      TEST(invalid_grants_are_rejected),
      TEST(the_validity_page_follows_publications),
      TEST(a_stamp_is_never_zero),
      TEST(threads_publish_concurrently),
      TEST(allocation_failures_publish_nothing),
      TEST(allocation_failures_leave_no_validity_page),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
