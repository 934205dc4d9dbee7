/* SPDX-License-Identifier: MIT
 * Gaudi memory and DMA over the emulated driver: pages, open dma-bufs, failing copies. */
#include "support/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/sys.h"
#include "memory/copy.h"
#include "memory/gaudi/gaudi.h"
#include "memory/region.h"
#include "support/copying.h"
#include "support/seams.h"

#define MIB  ((size_t)1 << 20)
#define PAGE (24 * MIB) /* of the emulated driver */

static const struct haul_place host = {HAUL_HOST, 0}, gaudi0 = {HAUL_GAUDI, 0},
                               gaudi1 = {HAUL_GAUDI, 1};

static int set_up(void **state) {
  static char library[400];
  (void)state;
  snprintf(library, sizeof library, "%s/hlthunk/symbols/libhl-thunk.so", getenv("HAUL_DOUBLES"));
  gaudi_library.names[0] = library;
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  unsetenv("HAUL_DOUBLE_GAUDI_SLOW_US");
  return providers_start();
}

static int tear_down(void **state) {
  (void)state;
  providers_stop();
  return 0;
}

static void fail_at(const char *what) {
  setenv("HAUL_DOUBLE_GAUDI_FAIL", what, 1);
}

static void slow(const char *us) {
  setenv("HAUL_DOUBLE_GAUDI_SLOW_US", us, 1);
}

static struct memory get(struct haul_place place, size_t length) {
  struct memory memory;
  assert_works(memory_alloc(place, length, 0, &memory));
  return memory;
}

static void counts(unsigned device, unsigned pages, unsigned kept) {
  unsigned have, empty;
  gaudi_pages_count(device, &have, &empty);
  assert_int_equal(have, pages);
  assert_int_equal(empty, kept);
}

/* The memory holds the bytes that were written. */
static void works(struct memory *memory) {
  struct memory bytes = get(host, memory->length), back = get(host, memory->length);
  pattern_fill(bytes.view, memory->length, 3);
  assert_works(copy_wait(memory, 0, &bytes, 0, memory->length, HAUL_FOREVER));
  assert_works(copy_wait(&back, 0, memory, 0, memory->length, HAUL_FOREVER));
  pattern_check(back.view, memory->length, 3);
  memory_free(&bytes);
  memory_free(&back);
}

static void small_blocks_share_a_page_and_empty_pages_are_freed(void **state) {
  (void)state;
  struct memory blocks[3];
  for (size_t i = 0; i < COUNT(blocks); i++)
    blocks[i] = get(gaudi0, 5 * MIB + 1);
  counts(0, 1, 0);
  struct memory large = get(gaudi0, 40 * MIB); /* two pages in one allocation */
  counts(0, 2, 0);
  struct memory rest = get(gaudi0, 7 * MIB); /* in the rest of the large one's page */
  counts(0, 2, 0);
  assert_true((char *)rest.address == (char *)large.address + 40 * MIB);
  memory_free(&large);
  memory_free(&rest);
  counts(0, 1, 0);
  for (size_t i = 0; i < COUNT(blocks); i++)
    memory_free(&blocks[i]);
  counts(0, 0, 0);
}

static void two_devices_have_no_address_in_common(void **state) {
  (void)state;
  struct memory a = get(gaudi0, PAGE), b = get(gaudi1, PAGE), found;
  assert_true((char *)a.address + PAGE <= (char *)b.address ||
              (char *)b.address + PAGE <= (char *)a.address);
  assert_works(memory_wrap(b.address, PAGE, &found));
  assert_int_equal(found.place.device, 1);
  memory_free(&found);
  memory_free(&a);
  memory_free(&b);
}

static void lack_of_device_memory_is_an_error_and_passes(void **state) {
  (void)state;
  struct memory blocks[40], more;
  for (size_t i = 0; i < COUNT(blocks); i++) /* 960 MiB */
    blocks[i] = get(gaudi0, PAGE);
  assert_fails(HAUL_ENOMEM, memory_alloc(gaudi0, 4096, 0, &more));
  assert_string_equal(haul_error_last()->object, "gaudi:0");
  assert_non_null(strstr(haul_error_last()->hint, "release regions"));
  assert_fails(HAUL_ENOMEM, memory_alloc(gaudi0, 2048 * MIB, 0, &more));
  memory_free(&blocks[7]);
  more = get(gaudi0, 4096);
  memory_free(&more);
  for (size_t i = 0; i < COUNT(blocks); i++)
    if (i != 7)
      memory_free(&blocks[i]);
  counts(0, 0, 0);
}

static void a_failing_driver_leaks_nothing(void **state) {
  (void)state;
  const char *calls[] = {"alloc:1:12", "alloc:1:5", "map:1:12"};
  for (size_t i = 0; i < COUNT(calls); i++) {
    struct memory memory;
    fail_at(calls[i]);
    assert_true(memory_alloc(gaudi0, 4096, 0, &memory) < 0);
    counts(0, 0, 0);
  }
  fail_at("");
  struct memory blocks[40]; /* all device memory is free */
  for (size_t i = 0; i < COUNT(blocks); i++)
    blocks[i] = get(gaudi0, PAGE);
  for (size_t i = 0; i < COUNT(blocks); i++)
    memory_free(&blocks[i]);
}

static void a_failed_host_allocation_leaks_no_device_memory(void **state) {
  (void)state;
  struct memory memory;
  int status = HAUL_ENOMEM;
  for (unsigned n = 1; status != 0; n++) {
    seams_refuse(n);
    status = memory_alloc(gaudi0, 4096, 0, &memory);
    seams_restore();
    if (status != 0)
      counts(0, 0, 0);
    assert_true(n < 10);
  }
  memory_free(&memory);
  counts(0, 0, 0);
}

static void *alloc_and_free(void *seed) {
  for (unsigned i = 0; i < 300; i++) {
    struct memory memory = get(gaudi0, ((uintptr_t)seed * 7 + i * 13) % (2 * MIB) + 1), wrapped;
    assert_works(memory_wrap(memory.address, memory.length, &wrapped));
    memory_free(&memory);
    memory_free(&wrapped);
  }
  return NULL;
}

static void threads_allocate_and_free_concurrently(void **state) {
  (void)state;
  pthread_t threads[4];
  for (uintptr_t i = 0; i < COUNT(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, alloc_and_free, (void *)i), 0);
  for (size_t i = 0; i < COUNT(threads); i++)
    pthread_join(threads[i], NULL);
  counts(0, 0, 0);
}

/* Both flags are pooled, though this kind is never shared. */
static void freed_regions_come_back_from_the_pool(void **state) {
  (void)state;
  const unsigned flags[] = {0, HAUL_REGION_PRIVATE};
  struct heap *heap;
  struct heap_counters counters;
  struct haul_region *region;
  assert_works(heap_open(NULL, 64 * MIB, &heap));
  for (unsigned i = 0; i < 4; i++) {
    assert_works(heap_alloc(heap, gaudi0, MIB, flags[i % 2], &region));
    region_put(region);
  }
  heap_counters(heap, &counters);
  assert_int_equal(counters.misses, 2);
  assert_int_equal(counters.hits, 2);
  heap_close(heap);
  counts(0, 0, 0);
}

static void a_dmabuf_begins_with_its_page_and_has_the_blocks_offset(void **state) {
  (void)state;
  struct memory first = get(gaudi0, 8192), second = get(gaudi0, 4097), part;
  uint64_t offset;
  int fd;
  assert_works(memory_dmabuf(&second, &fd, &offset));
  assert_int_equal(offset, (char *)second.address - (char *)first.address);
  assert_true(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED); /* that is normal */
  close(fd);
  assert_works(memory_wrap((char *)first.address + 100, 50, &part));
  assert_works(memory_dmabuf(&part, &fd, &offset));
  assert_int_equal(offset, 100);
  close(fd);
  memory_free(&part);
  fail_at("export:1:95"); /* EOPNOTSUPP */
  assert_fails(HAUL_ENOTSUP, memory_dmabuf(&first, &fd, &offset));
  assert_int_equal(haul_error_last()->system, EOPNOTSUPP);
  memory_free(&first);
  memory_free(&second);
}

static void a_page_with_an_open_dmabuf_is_reused_and_freed_later(void **state) {
  (void)state;
  struct memory memory = get(gaudi0, MIB), other;
  void *at = memory.address;
  uint64_t offset;
  int fd, copy;
  assert_works(memory_dmabuf(&memory, &fd, &offset));
  copy = dup(fd);
  close(fd);
  memory_free(&memory); /* no hang, no loss */
  counts(0, 1, 1);
  other = get(gaudi0, MIB);
  assert_ptr_equal(other.address, at);
  counts(0, 1, 0);
  works(&other);
  memory_free(&other);
  counts(0, 1, 1);
  close(copy);
  other = get(gaudi0, 4096);
  memory_free(&other);
  counts(0, 0, 0);
}

static void a_device_is_closed_with_an_open_dmabuf(void **state) {
  (void)state;
  struct memory memory = get(gaudi0, MIB);
  uint64_t offset;
  int fd;
  assert_works(memory_dmabuf(&memory, &fd, &offset));
  memory_free(&memory);
  providers_stop();
  assert_works(providers_start()); /* allocated until the last descriptor is closed */
  assert_fails(HAUL_EBUSY, memory_alloc(gaudi0, 4096, 0, &memory));
  close(fd);
  memory = get(gaudi0, 4096);
  memory_free(&memory);
}

static const struct provider *engine(void) {
  return provider_of(HAUL_GAUDI);
}

static int drain(struct copy *copy) {
  int status;
  while ((status = engine()->copy_poll(copy)) == 1)
    sched_yield();
  return status;
}

static void copies_start_without_blocking_and_run_concurrently(void **state) {
  (void)state;
  enum { COPIES = 100 }; /* more than there are slots */
  struct memory device = get(gaudi0, COPIES * 4096), bytes = get(host, COPIES * 4096);
  static struct copy copies[COPIES];
  works(&device); /* everything is open */
  pattern_fill(bytes.view, COPIES * 4096, 9);
  slow("5000"); /* half a second in total: the last runs long after the first started */
  for (uint64_t i = 0; i < COPIES; i++) {
    copies[i] = (struct copy){.to = &device,
                              .from = &bytes,
                              .to_offset = i * 4096,
                              .from_offset = i * 4096,
                              .length = 4096};
    assert_works(engine()->copy_start(&copies[i]));
  }
  assert_int_equal(engine()->copy_poll(&copies[COPIES - 1]), 1);
  for (size_t i = 0; i < COPIES; i++)
    assert_int_equal(drain(&copies[i]), 0);
  slow("0");
  struct memory back = get(host, COPIES * 4096);
  assert_works(copy_wait(&back, 0, &device, 0, COPIES * 4096, HAUL_FOREVER));
  pattern_check(back.view, COPIES * 4096, 9);
  memory_free(&back);
  memory_free(&device);
  memory_free(&bytes);
}

static void an_empty_copy_is_done(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 4096), bytes = get(host, 4096);
  struct copy copy = {.to = &device, .from = &bytes};
  assert_works(engine()->copy_start(&copy));
  assert_int_equal(engine()->copy_poll(&copy), 0);
  memory_free(&device);
  memory_free(&bytes);
}

static void a_canceled_copy_ends_after_the_slices_in_flight(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 64 * MIB), bytes = get(host, 64 * MIB);
  works(&device);
  slow("50000");
  struct copy copy = {.to = &bytes, .from = &device, .length = 64 * MIB};
  assert_works(engine()->copy_start(&copy));
  engine()->copy_cancel(&copy);
  assert_int_equal(engine()->copy_poll(&copy), HAUL_ECANCELED);
  memset(bytes.view, 5, MIB);
  slow("0");
  engine()->copy_cancel(&copy); /* again: no effect */
  assert_int_equal(((char *)bytes.view)[0], 5);
  memory_free(&device);
  memory_free(&bytes);
}

static void stopping_ends_copies_in_flight(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 64 * MIB), bytes = get(host, 64 * MIB);
  works(&device);
  slow("20000");
  struct copy copy = {.to = &bytes, .from = &device, .length = 64 * MIB};
  assert_works(engine()->copy_start(&copy));
  providers_stop();
  assert_int_equal(atomic_load(&copy.status), HAUL_ECLOSED);
  slow("0");
  memory_free(&device);
  memory_free(&bytes);
  assert_works(providers_start());
}

/* The driver resets the device: this and later copies fail until the provider is restarted. */
static void a_reset_in_the_middle_fails_the_copy(void **state) {
  (void)state;
  const char *ends[] = {"abort:3:5", "timeout:3:5"}, *words[] = {"aborted", "timed out"};
  for (size_t i = 0; i < COUNT(ends); i++) {
    struct memory device = get(gaudi0, 16 * MIB), bytes = get(host, 16 * MIB);
    works(&device);
    fail_at(ends[i]);
    struct copy copy = {.to = &device, .from = &bytes, .length = 16 * MIB};
    assert_works(engine()->copy_start(&copy));
    assert_int_equal(drain(&copy), HAUL_ESYSTEM);
    assert_non_null(strstr(haul_error_last()->text, words[i]));
    fail_at("");
    assert_fails(HAUL_ESYSTEM, engine()->copy_start(&copy));
    assert_non_null(strstr(haul_error_last()->hint, "open them again"));
    memory_free(&device);
    memory_free(&bytes);
    providers_stop();
    assert_works(providers_start());
    device = get(gaudi0, 16 * MIB);
    works(&device);
    memory_free(&device);
  }
}

/* Prepares a copy of four slices on a slow device. */
static void prepare(struct copy *copy, struct memory *device, struct memory *bytes) {
  *device = get(gaudi0, 16 * MIB), *bytes = get(host, 16 * MIB);
  works(device);
  slow("20000");
  *copy = (struct copy){.to = device, .from = bytes, .length = 16 * MIB};
}

/* The first slice times out while the second is queued; the reset aborts the second. */
static void a_timeout_is_reported_though_others_are_aborted(void **state) {
  (void)state;
  struct memory device, bytes;
  struct copy copy;
  prepare(&copy, &device, &bytes);
  fail_at("timeout:1:5");
  assert_works(engine()->copy_start(&copy));
  usleep(100000); /* both have ended, seen by one poll */
  assert_int_equal(drain(&copy), HAUL_ESYSTEM);
  assert_non_null(strstr(haul_error_last()->text, "timed out"));
  assert_fails(HAUL_ESYSTEM, engine()->copy_start(&copy));
  assert_non_null(strstr(haul_error_last()->text, "timed out"));
  memory_free(&device);
  memory_free(&bytes);
}

struct seen {
  struct copy copy;
  int end;
  char text[192];
};

static void *drains(void *argument) {
  struct seen *seen = argument;
  seen->end = drain(&seen->copy);
  snprintf(seen->text, sizeof seen->text, "%s", haul_error_last()->text);
  return NULL;
}

/* The second slice fails in the starting thread, and the first ends in another. */
static void the_poller_gets_the_reason(void **state) {
  (void)state;
  struct memory device, bytes;
  struct seen seen;
  pthread_t other;
  prepare(&seen.copy, &device, &bytes);
  fail_at("host_map:2:5");
  assert_works(engine()->copy_start(&seen.copy));
  assert_int_equal(pthread_create(&other, NULL, drains, &seen), 0);
  assert_int_equal(pthread_join(other, NULL), 0);
  assert_int_equal(seen.end, HAUL_ESYSTEM);
  assert_non_null(strstr(seen.text, "hlthunk_host_memory_map"));
  memory_free(&device);
  memory_free(&bytes);
}

static void a_refused_call_fails_the_copy_alone(void **state) {
  (void)state;
  const char *calls[] = {"submit:1:12", "submit:2:12", "host_map:1:14", "host_map:2:5"};
  const char *words[] = {"hlthunk_command_submission", "hlthunk_command_submission", "cannot pin",
                         "hlthunk_host_memory_map"};
  struct memory device = get(gaudi0, 16 * MIB), bytes = get(host, 16 * MIB);
  works(&device);
  for (size_t i = 0; i < COUNT(calls); i++) {
    fail_at(calls[i]);
    assert_true(copy_wait(&device, 0, &bytes, 0, 16 * MIB, HAUL_FOREVER) < 0);
    assert_non_null(strstr(haul_error_last()->text, words[i]));
    fail_at("");
    works(&device);
  }
  memory_free(&device);
  memory_free(&bytes);
}

/* Mappings of host memory that the device has made so far, and bytes that it has mapped now. */
static uint64_t mappings(uint64_t *bytes) {
  void (*hosts)(int fd, uint64_t *calls, uint64_t *bytes);
  void *library = dlopen(gaudi_library.names[0], RTLD_NOW | RTLD_NOLOAD);
  void *found = dlsym(library, "hlthunk_double_hosts");
  uint64_t calls;
  assert_non_null(found);
  memcpy(&hosts, &found, sizeof found);
  hosts(atomic_load(&gaudi_device_at(0)->fd), &calls, bytes);
  dlclose(library);
  return calls;
}

static void copy_down(struct memory *device, struct memory *bytes) {
  assert_works(copy_wait(device, 0, bytes, 0, bytes->length, HAUL_FOREVER));
}

static void host_memory_stays_mapped_until_it_is_freed(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 9 * MIB), bytes = get(host, 9 * MIB);
  uint64_t before, now;
  works(&device);
  uint64_t calls = mappings(&before);
  copy_down(&device, &bytes);
  uint64_t first = mappings(&now) - calls;
  assert_true(first >= 3 && first <= 4); /* slices */
  assert_int_equal(now - before, 9 * MIB);
  for (unsigned i = 0; i < 5; i++)
    copy_down(&device, &bytes);
  assert_int_equal(mappings(&now), calls + first);
  memory_free(&bytes);
  mappings(&now);
  assert_int_equal(now, before);
  memory_free(&device);
}

/* Parts of one range that the application wraps twice, and unmaps after both ended. */
static void overlapping_ranges_stay_mapped_until_they_end(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 8 * MIB), whole, part;
  uint64_t before, now;
  char *at = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(at != MAP_FAILED);
  works(&device);
  mappings(&before);
  assert_works(memory_wrap(at + 100, MIB, &part));
  assert_works(memory_wrap(at, 8 * MIB, &whole));
  pattern_fill(at, 8 * MIB, 6);
  copy_down(&device, &part);
  copy_down(&device, &whole);
  copy_down(&device, &part);
  memory_free(&part);
  copy_down(&device, &whole);
  memory_free(&whole);
  munmap(at, 8 * MIB);
  mappings(&now);
  assert_int_equal(now, before);
  works(&device);
  memory_free(&device);
}

static void the_longest_unused_mappings_make_room(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 320 * MIB), bytes = get(host, 320 * MIB);
  struct memory often = get(host, MIB);
  uint64_t now, calls;
  for (uint64_t at = 0; at < bytes.length; at += 64 * MIB) {
    assert_works(copy_wait(&device, 0, &bytes, at, 64 * MIB, HAUL_FOREVER));
    copy_down(&device, &often);
    calls = mappings(&now);
    assert_true(now <= 256 * MIB + 4096);
  }
  copy_down(&device, &often);
  assert_int_equal(mappings(&now), calls);
  memory_free(&often);
  memory_free(&bytes);
  memory_free(&device);
}

static void unused_mappings_are_given_up_for_a_copy(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 40 * MIB);
  setenv("HAUL_DOUBLE_GAUDI_PINNED", "16777216", 1);
  works(&device);
  unsetenv("HAUL_DOUBLE_GAUDI_PINNED");
  memory_free(&device);
}

static int earlier_kernel(struct utsname *kernel) {
  *kernel = (struct utsname){.release = "5.10.0-8-amd64"};
  return 0;
}

/* There a fork moves a parent's pages away from the device. */
static void before_linux_5_12_nothing_stays_mapped(void **state) {
  (void)state;
  struct memory device = get(gaudi0, 8 * MIB), bytes = get(host, 8 * MIB);
  struct sys_ops real = sys_ops;
  uint64_t before, now;
  works(&device);
  mappings(&before);
  sys_ops.uname = earlier_kernel;
  copy_down(&device, &bytes);
  mappings(&now);
  assert_int_equal(now, before);
  sys_ops = real;
  memory_free(&bytes);
  memory_free(&device);
}

static void read_only_memory_is_not_pinned(void **state) {
  (void)state;
  char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct memory device = get(gaudi0, 4096), bytes;
  assert_true(page != MAP_FAILED);
  assert_works(memory_wrap(page, 4096, &bytes));
  assert_false(bytes.writable);
  assert_false(engine()->reaches(&device, &bytes));
  fail_at("host_map:1:13"); /* not attempted: the engine needs a bounce buffer */
  assert_fails(HAUL_ENOTSUP, copy_sync(NULL, &device, 0, &bytes, 0, 4096, HAUL_FOREVER));
  fail_at("");
  assert_works(copy_wait(&device, 0, &bytes, 0, 4096, HAUL_FOREVER));
  memory_free(&bytes);
  memory_free(&device);
  munmap(page, 4096);
}

/* Copies between two memories of devices; returns the bytes of the host that were mapped for it. */
static uint64_t moves(struct haul_place to_place, struct haul_place from_place, size_t length,
                      enum copy_method by) {
  struct memory from = get(from_place, length), to = get(to_place, length);
  struct memory bytes = get(host, length);
  const struct provider *engine;
  struct heap *heap;
  uint64_t before, after;
  assert_works(heap_open(NULL, 0, &heap));
  assert_int_equal(copy_method(&to, &from, &engine), by);
  pattern_fill(bytes.view, length, 4);
  assert_works(copy_wait(&from, 0, &bytes, 0, length, HAUL_FOREVER));
  mappings(&before);
  assert_works(copy_sync(heap_staging(heap), &to, 0, &from, 0, length, HAUL_FOREVER));
  mappings(&after);
  memset(bytes.view, 0, length);
  assert_works(copy_wait(&bytes, 0, &to, 0, length, HAUL_FOREVER));
  pattern_check(bytes.view, length, 4);
  memory_free(&from);
  memory_free(&to);
  memory_free(&bytes);
  heap_close(heap);
  return after - before;
}

static void copies_between_devices_use_the_host(void **state) {
  (void)state;
  assert_true(moves(gaudi1, gaudi0, 3 * MIB + 5, COPY_STAGED) > 0);
}

static void copies_within_a_device_do_not_pass_the_host(void **state) {
  (void)state;
  assert_int_equal(moves(gaudi0, gaudi0, 3 * MIB + 5, COPY_ENGINE), 0);
  assert_int_equal(moves(gaudi0, gaudi0, 130 * MIB, COPY_ENGINE), 0); /* more than two slices */
}

/* By the engines that the device's description names. */
static void copies_within_a_device_use_enabled_engines(void **state) {
  (void)state;
  const char *masks[] = {"0xfd", "0xfe", "0xfc"};
  for (size_t i = 0; i < COUNT(masks); i++) {
    providers_stop();
    setenv("HAUL_DOUBLE_GAUDI_EDMA", masks[i], 1);
    assert_works(providers_start());
    moves(gaudi0, gaudi0, 66 * MIB, i < 2 ? COPY_ENGINE : COPY_STAGED);
  }
  unsetenv("HAUL_DOUBLE_GAUDI_EDMA");
}

static void refused_copies_within_a_device_use_the_host(void **state) {
  (void)state;
  fail_at("edma:1:22");
  moves(gaudi0, gaudi0, 3 * MIB, COPY_ENGINE);
  fail_at("");
  moves(gaudi0, gaudi0, 3 * MIB, COPY_STAGED);
}

int main(void) {
#define FRESH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      FRESH(small_blocks_share_a_page_and_empty_pages_are_freed),
      FRESH(two_devices_have_no_address_in_common),
      FRESH(lack_of_device_memory_is_an_error_and_passes),
      FRESH(a_failing_driver_leaks_nothing),
      FRESH(a_failed_host_allocation_leaks_no_device_memory),
      FRESH(threads_allocate_and_free_concurrently),
      FRESH(freed_regions_come_back_from_the_pool),
      FRESH(a_dmabuf_begins_with_its_page_and_has_the_blocks_offset),
      FRESH(a_page_with_an_open_dmabuf_is_reused_and_freed_later),
      FRESH(a_device_is_closed_with_an_open_dmabuf),
      FRESH(copies_start_without_blocking_and_run_concurrently),
      FRESH(an_empty_copy_is_done),
      FRESH(a_canceled_copy_ends_after_the_slices_in_flight),
      FRESH(stopping_ends_copies_in_flight),
      FRESH(a_reset_in_the_middle_fails_the_copy),
      FRESH(a_timeout_is_reported_though_others_are_aborted),
      FRESH(the_poller_gets_the_reason),
      FRESH(a_refused_call_fails_the_copy_alone),
      FRESH(host_memory_stays_mapped_until_it_is_freed),
      FRESH(overlapping_ranges_stay_mapped_until_they_end),
      FRESH(the_longest_unused_mappings_make_room),
      FRESH(unused_mappings_are_given_up_for_a_copy),
      FRESH(before_linux_5_12_nothing_stays_mapped),
      FRESH(read_only_memory_is_not_pinned),
      FRESH(copies_between_devices_use_the_host),
      FRESH(copies_within_a_device_do_not_pass_the_host),
      FRESH(copies_within_a_device_use_enabled_engines),
      FRESH(refused_copies_within_a_device_use_the_host),
  };
  return cmocka_run_group_tests_name("gaudi/memory", tests, NULL, NULL);
}
