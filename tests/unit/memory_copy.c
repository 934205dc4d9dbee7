/* SPDX-License-Identifier: MIT
 * Copies: choice of the method, CPU copies, staged copies between devices. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "memory/copy.h"
#include "memory/staging.h"
#include "support/seams.h"

static struct heap *heap;

static int copy_here(struct memory *to, uint64_t to_offset, struct memory *from,
                     uint64_t from_offset, uint64_t length, haul_deadline until) {
  return copy_sync(heap_staging(heap), to, to_offset, from, from_offset, length, until);
}

#define MIB ((size_t)1 << 20)

static const struct haul_place host = {HAUL_HOST, 0}, sim = {HAUL_SIM, 0};

/* An island: memory without a view whose engine reaches host memory alone and never calls. */

static unsigned island_copies, island_polls_needed, island_fails_at, island_canceled;
static unsigned island_flying, island_flew; /* copies in flight; their maximum */

static bool island_reaches(const struct memory *own, const struct memory *other) {
  (void)own;
  return other->view != NULL;
}

static char *island_bytes(const struct memory *memory) {
  return memory->view ? memory->view : memory->state;
}

static int island_start(struct copy *copy) {
  atomic_store(&copy->status, 1);
  copy->engine[0] = island_polls_needed;
  island_copies++;
  island_flying++;
  island_flew = island_flying > island_flew ? island_flying : island_flew;
  return 0;
}

static int island_poll(struct copy *copy) {
  if (atomic_load(&copy->status) != 1 || copy->engine[0]-- > 0)
    return atomic_load(&copy->status);
  bool fails = island_copies == island_fails_at;
  island_flying--;
  if (!fails)
    memcpy(island_bytes(copy->to) + copy->to_offset, island_bytes(copy->from) + copy->from_offset,
           copy->length);
  atomic_store(&copy->status, fails ? HAUL_ESYSTEM : 0);
  return fails ? error_set(HAUL_ESYSTEM, 0, "island", NULL, "the island sank") : 0;
}

static void island_cancel(struct copy *copy) {
  island_canceled++;
  int under_way = 1;
  atomic_compare_exchange_strong(&copy->status, &under_way, HAUL_ECANCELED);
}

static const struct provider island = {
    .name = "island",
    .kind = 77,
    .reaches = island_reaches,
    .copy_start = island_start,
    .copy_poll = island_poll,
    .copy_cancel = island_cancel,
};

static struct memory on_island(void *bytes, size_t length) {
  return (struct memory){.provider = &island,
                         .place = {77, 0},
                         .address = bytes,
                         .length = length,
                         .writable = true,
                         .state = bytes};
}

static int reset(void **state) {
  (void)state;
  island_copies = island_fails_at = island_canceled = 0;
  island_polls_needed = 2;
  return 0;
}

static struct memory get(struct haul_place place, size_t length) {
  struct memory memory;
  assert_works(memory_alloc(place, length, 0, &memory));
  return memory;
}

static void rejects_a_read_only_destination(void **state) {
  (void)state;
  struct memory a = get(host, 4096), b = get(host, 4096), device = get(sim, 4096);
  b.writable = device.writable = false;
  assert_fails(HAUL_EACCESS, copy_here(&b, 0, &a, 0, 1, HAUL_FOREVER));
  assert_fails(HAUL_EACCESS, copy_here(&device, 0, &a, 0, 1, HAUL_FOREVER));
  struct copy copy = {.to = &device, .from = &a, .length = 1};
  assert_fails(HAUL_EACCESS, device.provider->copy_start(&copy));
  memory_free(&a);
  memory_free(&b);
  memory_free(&device);
}

static void rejects_overlap(void **state) {
  (void)state;
  const struct haul_place places[] = {host, sim};
  for (size_t i = 0; i < COUNT(places); i++) {
    struct memory memory = get(places[i], 4096);
    assert_fails(HAUL_EINVAL, copy_here(&memory, 0, &memory, 99, 100, HAUL_FOREVER));
    assert_fails(HAUL_EINVAL, copy_here(&memory, 99, &memory, 0, 100, HAUL_FOREVER));
    assert_fails(HAUL_EINVAL, copy_here(&memory, 7, &memory, 7, 1, HAUL_FOREVER));
    assert_works(copy_here(&memory, 100, &memory, 0, 100, HAUL_FOREVER));
    assert_works(copy_here(&memory, 0, &memory, 0, 0, HAUL_FOREVER));
    memory_free(&memory);
  }
}

static void a_failed_copy_is_an_error(void **state) {
  (void)state;
  struct memory bytes = get(host, 4096), far = on_island(malloc(4096), 4096);
  island_fails_at = 1;
  assert_fails(HAUL_ESYSTEM, copy_here(&far, 0, &bytes, 0, 100, HAUL_FOREVER));
  assert_string_equal(haul_error_last()->text, "the island sank");
  island_fails_at = 0;
  island_polls_needed = UINT32_MAX;
  assert_fails(HAUL_ETIMEDOUT,
               copy_here(&far, 0, &bytes, 0, 100, haul_deadline_in(INT64_C(2000000))));
  assert_int_equal(island_canceled, 1);
  free(far.state);
  memory_free(&bytes);
}

static void the_tables_choose_the_method(void **state) {
  (void)state;
  struct memory bytes = get(host, 4096), device = get(sim, 4096), far = on_island(NULL, 0);
  const struct provider *engine = NULL;
  assert_int_equal(copy_method(&bytes, &bytes, &engine), COPY_CPU);
  assert_int_equal(copy_method(&bytes, &device, &engine), COPY_ENGINE);
  assert_ptr_equal(engine, provider_of(HAUL_SIM));
  assert_int_equal(copy_method(&device, &device, &engine), COPY_ENGINE);
  assert_int_equal(copy_method(&far, &bytes, &engine), COPY_ENGINE);
  assert_ptr_equal(engine, &island);
  assert_int_equal(copy_method(&bytes, &far, &engine), COPY_ENGINE);
  assert_int_equal(copy_method(&far, &device, &engine), COPY_STAGED);
  assert_int_equal(copy_method(&device, &far, &engine), COPY_STAGED);
  memory_free(&bytes);
  memory_free(&device);
}

static const size_t staged[] = {1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3};

static void stages_between_unconnected_devices(void **state) {
  (void)state;
  size_t room = 6 * MIB;
  struct memory device = get(sim, room), far = on_island(malloc(room), room);
  for (size_t i = 0; i < COUNT(staged); i++) {
    pattern_fill((char *)far.state + 5, staged[i], i);
    assert_works(copy_here(&device, 9, &far, 5, staged[i], HAUL_FOREVER));
    memset(far.state, 0, room);
    assert_works(copy_here(&far, 11, &device, 9, staged[i], HAUL_FOREVER));
    pattern_check((char *)far.state + 11, staged[i], i);
  }
  free(far.state);
  memory_free(&device);
}

static void failed_staging_leaves_nothing_in_flight(void **state) {
  (void)state;
  size_t room = 6 * MIB;
  struct memory device = get(sim, room), far = on_island(calloc(1, room), room);
  for (unsigned n = 1; n <= 6; n++) {
    island_copies = 0;
    island_fails_at = n;
    assert_fails(HAUL_ESYSTEM, copy_here(&device, 0, &far, 0, room, HAUL_FOREVER));
    island_copies = 0;
    assert_fails(HAUL_ESYSTEM, copy_here(&far, 0, &device, 0, room, HAUL_FOREVER));
  }
  island_fails_at = 0;
  island_polls_needed = UINT32_MAX;
  assert_fails(HAUL_ETIMEDOUT, copy_here(&device, 0, &far, 0, room, HAUL_NO_WAIT));
  free(far.state);
  memory_free(&device);
}

static void staging_without_memory_is_a_clear_error(void **state) {
  (void)state;
  struct memory device = get(sim, 4096), far = on_island(calloc(1, 4096), 4096);
  for (unsigned n = 1;; n++) {
    seams_refuse(n);
    int status = copy_here(&device, 0, &far, 0, 4096, HAUL_FOREVER);
    if (!seams_restore())
      break;
    assert_int_equal(status, HAUL_ENOMEM);
  }
  free(far.state);
  memory_free(&device);
}

/* Both buffers or none, by the deadline. */
static void staging_waits_for_buffers_until_its_deadline(void **state) {
  (void)state;
  struct memory device = get(sim, 4096), far = on_island(calloc(1, 4096), 4096);
  struct staging_user others[4];
  struct bounce *held[4][2];
  staging_limit(heap_staging(heap), STAGING_LEAST);
  for (unsigned i = 0; i < 3; i++)
    assert_works(staging_get_wait(heap_staging(heap), &others[i], 2, -1, held[i], HAUL_FOREVER));
  assert_fails(HAUL_ETIMEDOUT,
               copy_here(&device, 0, &far, 0, 4096, haul_deadline_in(INT64_C(5000000))));
  assert_fails(HAUL_ETIMEDOUT, copy_here(&device, 0, &far, 0, 4096, HAUL_NO_WAIT));
  for (unsigned i = 0; i < 3; i++)
    for (unsigned k = 0; k < 2; k++)
      staging_put(&others[i], held[i][k]);
  assert_works(copy_here(&device, 0, &far, 0, 4096, HAUL_FOREVER));
  free(far.state);
  memory_free(&device);
}

/* Each slice size is used, with correct bytes. */
static void slices_are_measured(void **state) {
  (void)state;
  size_t room = 6 * MIB;
  struct memory device = get(sim, room), far = on_island(malloc(room), room);
  struct provider measured = island;
  unsigned seen = 0;
  measured.kind = 7;
  far.provider = &measured;
  far.place.kind = 7;
  island_polls_needed = 0;
  for (unsigned i = 0; i < 16; i++) {
    pattern_fill(far.state, room, i);
    island_copies = 0;
    assert_works(copy_here(&device, 0, &far, 0, room, HAUL_FOREVER));
    seen |= island_copies == 6 ? 1u : island_copies == 12 ? 2u : island_copies == 24 ? 4u : 8u;
    memset(far.state, 0, room);
    assert_works(copy_here(&far, 0, &device, 0, room, HAUL_FOREVER));
    pattern_check(far.state, room, i);
  }
  assert_int_equal(seen, 15);
  free(far.state);
  memory_free(&device);
}

/* One buffer is filled while the other is drained: at most two copies in flight. */
static void two_buffers_are_in_use_at_once(void **state) {
  (void)state;
  size_t room = 6 * MIB;
  struct memory here = on_island(malloc(room), room), there = on_island(malloc(room), room);
  there.place.device = 1;
  pattern_fill(here.state, room, 5);
  island_polls_needed = 3;
  island_flying = island_flew = 0;
  assert_works(copy_here(&there, 0, &here, 0, room, HAUL_FOREVER));
  assert_int_equal(island_flew, 2);
  pattern_check(there.state, room, 5);
  island_flew = 0;
  assert_works(copy_here(&there, 0, &here, 0, 4096, HAUL_FOREVER)); /* nothing to overlap */
  assert_int_equal(island_flew, 1);
  free(here.state);
  free(there.state);
}

static void devices_without_host_access_are_not_supported(void **state) {
  (void)state;
  static const struct provider none = {.name = "none", .kind = 78};
  struct memory device = get(sim, 4096);
  struct memory far = {.provider = &none, .place = {78, 0}, .writable = true, .length = 4096};
  assert_fails(HAUL_ENOTSUP, copy_sync(NULL, &far, 0, &device, 0, 1, HAUL_FOREVER));
  assert_fails(HAUL_ENOTSUP, copy_here(&far, 0, &device, 0, 1, HAUL_FOREVER));
  assert_fails(HAUL_ENOTSUP, copy_here(&device, 0, &far, 0, 1, HAUL_FOREVER));
  uint64_t sum;
  assert_fails(HAUL_ENOTSUP, memory_checksum(&far, 0, 1, &sum));
  memory_free(&device);
}

static void the_cpu_copies_every_size_and_alignment(void **state) {
  (void)state;
  const size_t sizes[] = {0,   1,    31,   127,  128,         255,      256,
                          300, 4095, 4096, 4097, 3 * MIB + 1, 17 * MIB, 40 * MIB + 77};
  const size_t shifts[] = {0, 1, 31, 33, 4095};
  size_t room = 41 * MIB;
  char *from = malloc(room), *to = malloc(room);
  pattern_fill(from, room, 1);
  for (size_t i = 0; i < COUNT(sizes); i++)
    for (size_t k = 0; k < COUNT(shifts); k++) {
      size_t size = sizes[i], shift = shifts[k];
      to[shift + size] = 'x';
      copy_slice(to + shift, from + 4095 - shift, size, size);
      assert_memory_equal(to + shift, from + 4095 - shift, size);
      assert_int_equal(to[shift + size], 'x');
      copy_slice(to + shift, from + shift, size, SIZE_MAX); /* as a slice of a large copy */
      assert_memory_equal(to + shift, from + shift, size);
      assert_int_equal(to[shift + size], 'x');
    }
  free(from);
  free(to);
}

static int64_t ticks;
static int64_t ticking(void) {
  return ++ticks;
}

static void large_copies_check_the_deadline(void **state) {
  (void)state;
  struct memory a = get(host, 64 * MIB), b = get(host, 64 * MIB);
  struct sys_ops before = sys_ops;
  sys_ops.monotonic = ticking;
  int status = copy_here(&a, 0, &b, 0, 64 * MIB, 2);
  sys_ops = before;
  assert_fails(HAUL_ETIMEDOUT, status);
  /* A copy within the call cannot be late. */
  assert_works(copy_here(&a, 0, &b, 0, MIB, HAUL_NO_WAIT));
  memory_free(&a);
  memory_free(&b);
}

static int start(void **state) {
  (void)state;
  return heap_open(NULL, 0, &heap);
}

static int stop(void **state) {
  (void)state;
  heap_close(heap);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(rejects_a_read_only_destination, reset),
      cmocka_unit_test_setup(rejects_overlap, reset),
      cmocka_unit_test_setup(a_failed_copy_is_an_error, reset),
      cmocka_unit_test_setup(the_tables_choose_the_method, reset),
      cmocka_unit_test_setup(stages_between_unconnected_devices, reset),
      cmocka_unit_test_setup(failed_staging_leaves_nothing_in_flight, reset),
      cmocka_unit_test_setup(staging_without_memory_is_a_clear_error, reset),
      cmocka_unit_test_setup(slices_are_measured, reset),
      cmocka_unit_test_setup(two_buffers_are_in_use_at_once, reset),
      cmocka_unit_test_setup(staging_waits_for_buffers_until_its_deadline, reset),
      cmocka_unit_test_setup(devices_without_host_access_are_not_supported, reset),
      cmocka_unit_test_setup(the_cpu_copies_every_size_and_alignment, reset),
      cmocka_unit_test_setup(large_copies_check_the_deadline, reset),
  };
  return cmocka_run_group_tests_name("memory/copy", tests, start, stop);
}
