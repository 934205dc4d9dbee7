/* SPDX-License-Identifier: MIT
 * The pool of freed regions, through the heap that uses it. */
#include "support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sys.h"
#include "memory/pool.h"
#include "memory/region.h"
#include "support/seams.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static const struct haul_place host = {HAUL_HOST, 0}, sim0 = {HAUL_SIM, 0}, sim1 = {HAUL_SIM, 1};
static struct heap *heap;

static int open_heap(void **state) {
  (void)state;
  return heap_open(NULL, 64 * MIB, &heap);
}

static int close_heap(void **state) {
  (void)state;
  heap_close(heap);
  return haul_mappings() == 0 ? 0 : -1;
}

static struct haul_region *get(struct haul_place place, size_t length, unsigned flags) {
  struct haul_region *region;
  assert_works(heap_alloc(heap, place, length, flags, &region));
  assert_int_equal(region->memory.length, length);
  assert_int_equal(region->refs, 1);
  assert_false(region->released);
  return region;
}

static struct heap_counters counters(void) {
  struct heap_counters now;
  heap_counters(heap, &now);
  return now;
}

/* Bit 63 of an entry of /proc/self/pagemap: the page is present. */
static unsigned present_pages(const void *start, size_t count) {
  uint64_t entries[256];
  unsigned present = 0;
  int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  off_t at = (off_t)((uintptr_t)start / 4096 * 8);
  assert_true(fd >= 0 && count <= 256);
  assert_int_equal(pread(fd, entries, count * 8, at), count * 8);
  close(fd);
  for (size_t i = 0; i < count; i++)
    present += (unsigned)(entries[i] >> 63);
  return present;
}

static void a_warm_object_has_its_pages(void **state) {
  (void)state;
  struct haul_region *cold = get(host, MIB, 0);
  assert_int_equal(present_pages(cold->memory.view, 256), 0);
  assert_works(heap_warm(heap, 3 * MIB + 5));
  assert_int_equal(counters().pooled_bytes, 3 * MIB);
  struct haul_region *warm = get(host, MIB, 0);
  assert_int_equal(present_pages(warm->memory.view, 256), 256);
  region_put(cold);
  region_put(warm);
}

static void without_memory_nothing_leaks(void **state) {
  (void)state;
  for (unsigned n = 1; seams_refuse(n), heap_warm(heap, 3 * MIB), seams_restore(); n++)
    region_put(get(host, MIB, 0));
}

static void keeps_no_exported_memory(void **state) {
  (void)state;
  struct haul_region *region = get(host, MIB, 0);
  struct haul_ticket ticket;
  int fd;
  assert_works(region_export(region, HAUL_READ, NULL, &ticket, &fd));
  close(fd);
  region_put(region);
  assert_int_equal(counters().pooled_bytes, 0);
  assert_int_equal(haul_mappings(), 0);
}

static void keeps_only_class_sizes(void **state) {
  (void)state;
  const size_t lengths[] = {64 * KIB + 1, 256 * KIB, 64 * MIB + 1, 257 * MIB};
  for (size_t i = 0; i < COUNT(lengths); i++)
    region_put(get(host, lengths[i], 0));
  assert_int_equal(counters().pooled_bytes, 0);
  assert_int_equal(counters().misses, 0);
}

/* Of other lengths than the smallest. */
static void keeps_less_than_two_mib_more_than_the_length(void **state) {
  (void)state;
  const size_t lengths[] = {MIB + 1, 2 * MIB, 5 * MIB, 17 * MIB + 3, 33 * MIB, 64 * MIB};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    struct heap *bare;
    struct haul_region *region;
    struct heap_counters now;
    assert_works(heap_open(NULL, 64 * MIB, &bare));
    for (unsigned n = 0; n < 2; n++) {
      assert_works(heap_alloc(bare, host, lengths[i], 0, &region));
      region_put(region);
    }
    heap_counters(bare, &now);
    assert_int_equal(now.hits, 1);
    assert_true(now.pooled_bytes >= lengths[i] && now.pooled_bytes - lengths[i] < 2 * MIB);
    heap_close(bare);
  }
}

/* Slots share the stacks of the pool: one of these sizes is in the stack of the small region. */
static void finds_a_region_below_others(void **state) {
  (void)state;
  for (size_t mib = 2; mib < 64; mib += 2) {
    struct haul_region *below = get(sim0, mib * MIB, 0), *above = get(sim1, KIB, 0);
    region_put(below);
    region_put(above);
    assert_ptr_equal(get(sim0, mib * MIB, 0), below);
    assert_ptr_equal(get(sim1, KIB, 0), above);
    region_put(above);
    region_put(below);
    struct heap *filled = heap;
    assert_works(heap_open(NULL, 64 * MIB, &heap));
    heap_close(filled);
  }
}

static int64_t now_ns;

static int64_t set_clock(void) {
  return now_ns;
}

/* Regions that nobody took since long make room for others; the rest stays. */
static void a_full_pool_drops_what_nobody_takes(void **state) {
  (void)state;
  struct sys_ops real = sys_ops;
  struct haul_region *old = get(host, 40 * MIB, 0), *used = get(host, 20 * MIB, 0);
  sys_ops.monotonic = set_clock;
  now_ns = 1;
  region_put(old);
  region_put(used);
  for (unsigned second = 0; second < 3; second++, now_ns += 2000000000) {
    region_put(get(host, 20 * MIB, 0));
    region_put(get(host, 30 * MIB, 0));
  }
  assert_int_equal(counters().pooled_bytes, 50 * MIB);
  assert_int_equal(counters().hits, 4);
  assert_int_equal(counters().trimmed, 2);
  sys_ops = real;
}

static void keeps_nothing_beyond_its_limit(void **state) {
  (void)state;
  struct haul_region *regions[5];
  for (size_t i = 0; i < 5; i++)
    regions[i] = get(host, 16 * MIB, 0);
  for (size_t i = 0; i < 5; i++)
    region_put(regions[i]);
  assert_int_equal(counters().pooled_bytes, 64 * MIB);
  assert_int_equal(counters().trimmed, 1);
  assert_int_equal(counters().allocated, 5);
  assert_int_equal(counters().freed, 5);
}

static void keeps_nothing_without_a_limit(void **state) {
  (void)state;
  struct heap *bare;
  struct haul_region *region;
  assert_works(heap_open(NULL, 0, &bare));
  assert_works(heap_alloc(bare, host, 4096, 0, &region));
  assert_int_equal(region->size_class, REGION_EXACT);
  region_put(region);
  heap_close(bare);
}

static void does_not_mix_kinds_of_memory(void **state) {
  (void)state;
  struct haul_region *first = get(host, MIB, 0);
  region_put(first);
  struct haul_region *others[] = {get(host, MIB, HAUL_REGION_PRIVATE), get(sim0, MIB, 0),
                                  get(sim1, MIB, 0), get(host, 64 * KIB, 0)};
  for (size_t i = 0; i < COUNT(others); i++) {
    assert_ptr_not_equal(others[i], first);
    region_put(others[i]);
  }
  assert_int_equal(counters().hits, 0);
  struct haul_region *again = get(sim1, MIB, 0);
  assert_int_equal(again->memory.place.device, 1);
  assert_int_equal(counters().hits, 1);
  region_put(again);
}

static void reuses_a_freed_region_with_a_new_generation(void **state) {
  (void)state;
  struct haul_region *first = get(host, MIB, 0);
  uint64_t life = first->generation;
  void *address = first->memory.address;
  first->released = true;
  first->names = 3;
  region_put(first);
  struct haul_region *second = get(host, 300 * KIB, 0);
  assert_ptr_equal(second, first);
  assert_ptr_equal(second->memory.address, address);
  assert_int_not_equal(second->generation, life);
  assert_int_equal(second->names, 0);
  region_put(second);
  assert_int_equal(get(host, MIB, 0)->memory.length, MIB);
  region_put(first);
  assert_int_equal(counters().hits, 2);
  assert_int_equal(counters().misses, 1);
}

static void shows_importers_no_earlier_contents(void **state) {
  (void)state;
  struct haul_region *region = get(host, MIB, 0), *import;
  struct haul_ticket ticket;
  int fd;
  pattern_fill(region->memory.view, MIB, 1);
  region_put(region);
  region = get(host, 300 * KIB + 7, 0);
  assert_works(region_export(region, HAUL_READ, NULL, &ticket, &fd));
  assert_works(heap_import(heap, &ticket, fd, &import));
  assert_int_equal(import->memory.length, 300 * KIB + 7);
  for (size_t i = import->memory.length; i < MIB; i++)
    assert_int_equal(((uint8_t *)import->memory.view)[i], 0);
  close(fd);
  region_put(import);
  region_put(region);
}

static void *give_back(void *region) {
  region_put(region);
  return NULL;
}

static void finds_regions_freed_by_other_threads(void **state) {
  (void)state;
  struct haul_region *region = get(host, MIB, 0);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, give_back, region), 0);
  pthread_join(thread, NULL);
  assert_ptr_equal(get(host, MIB, 0), region);
  region_put(region);
}

static void lets_any_thread_use_the_whole_limit(void **state) {
  (void)state;
  struct haul_region *regions[4];
  for (size_t i = 0; i < 4; i++)
    regions[i] = get(host, 16 * MIB, 0);
  for (size_t i = 0; i < 4; i++) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_back, regions[i]), 0);
    pthread_join(thread, NULL);
  }
  assert_int_equal(counters().pooled_bytes, 64 * MIB);
  /* Other shards hold the whole limit as budget; this thread reclaims it. */
  for (size_t i = 0; i < 4; i++)
    regions[i] = get(host, 16 * MIB, 0);
  assert_int_equal(counters().hits, 4);
  for (size_t i = 0; i < 4; i++)
    region_put(regions[i]);
  assert_int_equal(counters().pooled_bytes, 64 * MIB);
  assert_int_equal(counters().trimmed, 0);
}

static void outlives_its_heap_in_a_region(void **state) {
  (void)state;
  struct heap *other;
  struct haul_region *region;
  assert_works(heap_open(NULL, 64 * MIB, &other));
  assert_works(heap_alloc(other, host, MIB, 0, &region));
  heap_close(other);
  pattern_fill(region->memory.view, MIB, 1);
  region_put(region);
  assert_int_equal(haul_mappings(), 0);
}

static void *churn(void *argument) {
  uint32_t random = (uint32_t)(uintptr_t)argument;
  struct haul_region *held[8] = {NULL};
  for (unsigned i = 0; i < 4000; i++) {
    random = random * 1664525 + 1013904223;
    struct haul_region **slot = &held[random >> 29];
    region_put(*slot);
    if (heap_alloc(heap, random & 256 ? host : sim0, random & 512 ? 4096 : 700 * KIB,
                   random & 1024 ? HAUL_REGION_PRIVATE : 0, slot) != 0)
      *slot = NULL;
  }
  for (unsigned i = 0; i < 8; i++)
    region_put(held[i]);
  return NULL;
}

static void serves_many_threads(void **state) {
  (void)state;
  pthread_t threads[12];
  for (size_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)i), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  struct heap_counters now = counters();
  assert_int_equal(now.allocated, now.freed);
  assert_int_equal(now.allocated, COUNT(threads) * 4000);
  assert_true(now.pooled_bytes <= 64 * MIB);
  assert_true(now.hits > now.misses);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_heap, close_heap)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_warm_object_has_its_pages),
      TEST(without_memory_nothing_leaks),
      TEST(keeps_no_exported_memory),
      TEST(keeps_only_class_sizes),
      TEST(keeps_less_than_two_mib_more_than_the_length),
      TEST(finds_a_region_below_others),
      TEST(a_full_pool_drops_what_nobody_takes),
      TEST(keeps_nothing_beyond_its_limit),
      TEST(keeps_nothing_without_a_limit),
      TEST(does_not_mix_kinds_of_memory),
      TEST(reuses_a_freed_region_with_a_new_generation),
      TEST(shows_importers_no_earlier_contents),
      TEST(finds_regions_freed_by_other_threads),
      TEST(lets_any_thread_use_the_whole_limit),
      TEST(outlives_its_heap_in_a_region),
      TEST(serves_many_threads),
  };
  setenv("HAUL_SIM_DEVICES", "2", 1);
  return cmocka_run_group_tests_name("memory/pool", tests, NULL, NULL);
}
