/* SPDX-License-Identifier: MIT
 * Regions: rejections, failures, imports, forks. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/sys.h"
#include "memory/pages.h"
#include "memory/region.h"
#include "memory/ticket.h"
#include "support/child.h"
#include "support/seams.h"

static const struct haul_place host = {HAUL_HOST, 0}, sim = {HAUL_SIM, 0};
static const struct haul_place places[] = {{HAUL_HOST, 0}, {HAUL_SIM, 0}};
static struct heap *heap;

static int open_heap(void **state) {
  (void)state;
  return heap_open(NULL, 4 << 20, &heap);
}

static int close_heap(void **state) {
  (void)state;
  heap_close(heap);
  return haul_mappings() == 0 ? 0 : -1;
}

static void rejects_missing_places(void **state) {
  (void)state;
  struct haul_region *region;
  const struct haul_place bad[] = {{0, 0}, {99, 0}, {HAUL_HOST, 1}, {HAUL_SIM, 1}, {65535, 65535}};
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EPLACE, heap_alloc(heap, bad[i], 4096, 0, &region));
}

static void rejects_impossible_requests(void **state) {
  (void)state;
  struct haul_region *region;
  assert_fails(HAUL_EINVAL, heap_alloc(heap, host, 0, 0, &region));
  assert_fails(HAUL_EINVAL, heap_alloc(heap, host, 1, 4, &region));
  for (size_t i = 0; i < COUNT(places); i++) {
    assert_fails(HAUL_ENOMEM, heap_alloc(heap, places[i], SIZE_MAX, 0, &region));
    assert_fails(HAUL_ENOMEM, heap_alloc(heap, places[i], SIZE_MAX / 4, 0, &region));
    assert_fails(HAUL_ENOMEM,
                 heap_alloc(heap, places[i], SIZE_MAX / 4, HAUL_REGION_PRIVATE, &region));
  }
}

static void rejects_unmapped_ranges(void **state) {
  (void)state;
  struct haul_region *region;
  size_t page = page_size();
  char *hole = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole + page, page);
  assert_fails(HAUL_EINVAL, heap_wrap(heap, hole, 0, &region));
  assert_fails(HAUL_EINVAL, heap_wrap(heap, hole, SIZE_MAX, &region));
  assert_fails(HAUL_EINVAL, heap_wrap(heap, NULL, 100, &region));
  assert_fails(HAUL_EINVAL, heap_wrap(heap, hole, page + 1, &region));
  assert_fails(HAUL_EINVAL, heap_wrap(heap, hole + page - 1, page + 3, &region));
  mprotect(hole, page, PROT_NONE);
  assert_fails(HAUL_EINVAL, heap_wrap(heap, hole, page, &region));
  munmap(hole, page);
  munmap(hole + 2 * page, page);
}

/* Bytes around the range are not accessed, as they may be redzones of a sanitizer. */
static void wraps_memory_guarded_by_a_sanitizer(void **state) {
  (void)state;
  struct haul_region *region;
  char *bytes = malloc(1000);
  assert_works(heap_wrap(heap, (char *)((uintptr_t)bytes - 8), 1016, &region));
  region_put(region);
  free(bytes);
}

static void wrapped_memory_is_not_freed(void **state) {
  (void)state;
  struct haul_region *region;
  char bytes[1000];
  pattern_fill(bytes, sizeof bytes, 3);
  assert_works(heap_wrap(heap, bytes + 1, 998, &region));
  assert_ptr_equal(region->memory.address, bytes + 1);
  assert_int_equal(region->memory.length, 998);
  assert_true(region->memory.wrapped && region->memory.writable);
  struct haul_ticket ticket;
  int fd;
  assert_fails(HAUL_ENOTSUP, region_export(region, HAUL_READ, NULL, &ticket, &fd));
  region_put(region);
  pattern_check(bytes, sizeof bytes, 3);
}

static void recognises_read_only_memory(void **state) {
  (void)state;
  struct haul_region *region;
  size_t page = page_size();
  char *bytes = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(bytes + page, page, PROT_READ);
  assert_works(heap_wrap(heap, bytes, page, &region));
  assert_true(region->memory.writable);
  region_put(region);
  assert_works(heap_wrap(heap, bytes + page - 1, 2, &region));
  assert_false(region->memory.writable);
  region_put(region);
  munmap(bytes, 2 * page);
}

static ssize_t vm_forbidden(pid_t pid, const struct iovec *local, unsigned long locals,
                            const struct iovec *remote, unsigned long remotes,
                            unsigned long flags) {
  (void)pid, (void)local, (void)locals, (void)remote, (void)remotes, (void)flags;
  errno = EPERM;
  return -1;
}

static void wraps_in_a_sandbox_without_process_vm_writev(void **state) {
  (void)state;
  struct haul_region *region;
  char byte = 0;
  struct sys_ops before = sys_ops;
  sys_ops.vm_read = sys_ops.vm_write = vm_forbidden;
  int status = heap_wrap(heap, &byte, 1, &region);
  sys_ops = before;
  assert_works(status);
  region_put(region);
}

static int file_of(size_t length) {
  int fd = memfd_create("file", MFD_CLOEXEC);
  char bytes[20000];
  pattern_fill(bytes, sizeof bytes, 5);
  assert_true(fd >= 0 && length <= sizeof bytes);
  assert_int_equal(write(fd, bytes, length), (ssize_t)length);
  return fd;
}

static void rejects_unreadable_files(void **state) {
  (void)state;
  struct haul_region *region;
  int fd = file_of(10000), ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_fails(HAUL_EINVAL, heap_wrap_file(heap, -1, 0, 1, &region));
  assert_fails(HAUL_EINVAL, heap_wrap_file(heap, ends[0], 0, 1, &region));
  assert_fails(HAUL_EINVAL, heap_wrap_file(heap, fd, 0, 0, &region));
  assert_fails(HAUL_ERANGE, heap_wrap_file(heap, fd, 0, 10001, &region));
  assert_fails(HAUL_ERANGE, heap_wrap_file(heap, fd, 10000, 1, &region));
  assert_fails(HAUL_ERANGE, heap_wrap_file(heap, fd, UINT64_MAX, 1, &region));
  assert_fails(HAUL_ERANGE, heap_wrap_file(heap, fd, 1, SIZE_MAX, &region));
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int written = open(path, O_WRONLY | O_CLOEXEC);
  assert_fails(HAUL_EINVAL, heap_wrap_file(heap, written, 0, 1, &region));
  close(written);
  close(ends[0]);
  close(ends[1]);
  close(fd);
}

static void files_are_wrapped_from_any_offset(void **state) {
  (void)state;
  struct haul_region *region;
  char bytes[20000];
  pattern_fill(bytes, sizeof bytes, 5);
  int fd = file_of(sizeof bytes);
  for (size_t at = 0; at < sizeof bytes; at += 4095) {
    assert_works(heap_wrap_file(heap, fd, at, sizeof bytes - at, &region));
    assert_memory_equal(region->memory.view, bytes + at, sizeof bytes - at);
    assert_false(region->memory.writable);
    struct haul_ticket ticket;
    int descriptor;
    assert_fails(HAUL_ENOTSUP, region_export(region, HAUL_READ, NULL, &ticket, &descriptor));
    region_put(region);
  }
  assert_works(heap_wrap_file(heap, fd, 0, 1, &region));
  close(fd);
  assert_int_equal(*(char *)region->memory.view, bytes[0]);
  region_put(region);
}

static void ranges_are_checked_without_overflow(void **state) {
  (void)state;
  struct haul_region *region;
  assert_works(heap_alloc(heap, host, 100, 0, &region));
  const uint64_t bad[][2] = {{101, 0},        {0, 101},        {100, 1},
                             {UINT64_MAX, 1}, {1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_ERANGE, region_check(region, bad[i][0], bad[i][1]));
  const uint64_t good[][2] = {{0, 100}, {100, 0}, {99, 1}, {0, 0}};
  for (size_t i = 0; i < COUNT(good); i++)
    assert_works(region_check(region, good[i][0], good[i][1]));
  region_put(region);
}

static void rejects_impossible_exports(void **state) {
  (void)state;
  struct haul_ticket ticket;
  int fd;
  for (size_t i = 0; i < COUNT(places); i++) {
    struct haul_region *region;
    assert_works(heap_alloc(heap, places[i], 4096, HAUL_REGION_PRIVATE, &region));
    assert_fails(HAUL_ENOTSUP, region_export(region, HAUL_READ, NULL, &ticket, &fd));
    region_put(region);
    assert_works(heap_alloc(heap, places[i], 4096, 0, &region));
    const struct haul_tensor large = {.bits = 8, .lanes = 1, .offset = 4096};
    assert_fails(HAUL_EINVAL, region_export(region, HAUL_READ, &large, &ticket, &fd));
    assert_fails(HAUL_EINVAL, region_export(region, HAUL_WRITE, NULL, &ticket, &fd));
    assert_fails(HAUL_EINVAL, region_export(region, HAUL_READ | 8, NULL, &ticket, &fd));
    region->released = true;
    assert_fails(HAUL_ESTALE, region_export(region, HAUL_READ, NULL, &ticket, &fd));
    region_put(region);
  }
}

static void rejects_mismatched_imports(void **state) {
  (void)state;
  struct haul_region *a, *b, *import;
  struct haul_ticket ticket_a, ticket_b;
  int fd_a, fd_b, fd_read;
  assert_works(heap_alloc(heap, host, 4096, 0, &a));
  assert_works(heap_alloc(heap, sim, 4096, 0, &b));
  assert_works(region_export(a, HAUL_READ | HAUL_WRITE, NULL, &ticket_a, &fd_a));
  assert_works(region_export(b, HAUL_READ | HAUL_WRITE, NULL, &ticket_b, &fd_b));
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_a, fd_b, &import));
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_b, fd_a, &import));
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_a, -1, &import));
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_a, 0, &import));

  struct ticket forged;
  assert_works(ticket_unpack(&ticket_b, &forged));
  forged.place.device = 7;
  ticket_pack(&forged, &ticket_b);
  assert_fails(HAUL_EPLACE, heap_import(heap, &ticket_b, fd_b, &import));
  assert_works(ticket_unpack(&ticket_a, &forged));
  forged.length = (64 << 10) + 1;
  ticket_pack(&forged, &ticket_a);
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_a, fd_a, &import));
  forged.length = 4096;
  forged.offset = 4096;
  ticket_pack(&forged, &ticket_a);
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_a, fd_a, &import));

  /* A ticket with more rights than its descriptor. */
  assert_works(region_export(a, HAUL_READ, NULL, &ticket_b, &fd_read));
  forged.offset = 0;
  ticket_pack(&forged, &ticket_a);
  assert_fails(HAUL_ETICKET, heap_import(heap, &ticket_a, fd_read, &import));

  region_put(a);
  assert_fails(HAUL_ESTALE, heap_import(heap, &ticket_a, fd_a, &import));
  close(fd_a);
  close(fd_b);
  close(fd_read);
  region_put(b);
}

static void tickets_carry_layouts(void **state) {
  (void)state;
  struct haul_region *region;
  struct haul_ticket packed;
  struct ticket ticket;
  int fd;
  const struct haul_tensor layout = {
      .type = 4, .bits = 16, .lanes = 1, .dimensions = 1, .shape = {2048}, .strides = {1}};
  assert_works(heap_alloc(heap, sim, 4096, 0, &region));
  assert_works(region_export(region, HAUL_READ, &layout, &packed, &fd));
  assert_works(ticket_unpack(&packed, &ticket));
  assert_true(ticket.has_layout);
  assert_memory_equal(&ticket.layout, &layout, sizeof layout);
  assert_int_equal(ticket.generation, region->generation);
  close(fd);
  region_put(region);
}

static void devices_run_out_of_memory(void **state) {
  (void)state;
  struct haul_region *regions[9];
  /* 16 MiB of device memory: the pool keeps some, and frees it on demand. */
  assert_works(heap_alloc(heap, sim, 1 << 20, 0, &regions[0]));
  region_put(regions[0]);
  assert_works(heap_alloc(heap, sim, 16 << 20, 0, &regions[0]));
  assert_fails(HAUL_ENOMEM, heap_alloc(heap, sim, 1, 0, &regions[1]));
  assert_non_null(strstr(haul_error_last()->hint, "HAUL_SIM_MEMORY"));
  region_put(regions[0]);
  assert_works(heap_alloc(heap, sim, 16 << 20, 0, &regions[0]));
  region_put(regions[0]);
}

/* Does everything once: 0, or the first failure without leaks. */
static int whole_life(struct haul_place place, unsigned flags) {
  struct heap *small;
  struct haul_region *region = NULL, *import = NULL;
  struct haul_ticket ticket;
  int fd = -1;
  int status = heap_open(NULL, 1 << 20, &small);
  if (status != 0)
    return status;
  status = heap_alloc(small, place, 3 << 20, flags, &region);
  if (status == 0 && !flags)
    status = region_export(region, HAUL_READ, NULL, &ticket, &fd);
  if (status == 0 && !flags)
    status = heap_import(small, &ticket, fd, &import);
  if (fd >= 0)
    close(fd);
  region_put(import);
  region_put(region);
  heap_close(small);
  return status;
}

static void sweep(struct haul_place place, unsigned flags) {
  unsigned descriptors = open_descriptors(), mappings = haul_mappings();
  for (unsigned n = 1;; n++) {
    seams_refuse(n);
    int status = whole_life(place, flags);
    bool refused = seams_restore();
    assert_int_equal(open_descriptors(), descriptors);
    assert_int_equal(haul_mappings(), mappings);
    if (!refused) {
      assert_works(status);
      assert_true(n > 3);
      return;
    }
    /* A second attempt may hide a failed allocation; else it must be a clear error. */
    assert_true(status == 0 || status == HAUL_ENOMEM || status == HAUL_ELIMIT);
  }
}

static void every_failure_is_clean(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(places); i++) {
    sweep(places[i], 0);
    sweep(places[i], HAUL_REGION_PRIVATE);
  }
}

struct family {
  struct haul_region *shared, *exported, *device;
};

static void release_in_child(void *argument) {
  struct family *family = argument;
  struct haul_region *region;
  region_put(family->shared);
  region_put(family->exported);
  region_put(family->device);
  heap_close(heap);
  if (heap_open(NULL, 0, &heap) == 0 && heap_alloc(heap, host, 1, 0, &region) != 0)
    _exit(1);
}

static void a_forked_child_can_release(void **state) {
  (void)state;
  struct family family;
  struct haul_region *import;
  struct haul_ticket ticket;
  int fd;
  assert_works(heap_alloc(heap, host, 1 << 20, 0, &family.shared));
  assert_works(heap_alloc(heap, host, 1 << 20, 0, &family.exported));
  assert_works(heap_alloc(heap, sim, 1 << 20, 0, &family.device));
  assert_works(region_export(family.exported, HAUL_READ, NULL, &ticket, &fd));
  assert_works(heap_import(heap, &ticket, fd, &import));
  close(fd);
  pattern_fill(family.shared->memory.view, 1 << 20, 5);
  assert_int_equal(child_run(release_in_child, &family), 0);
  pattern_check(family.shared->memory.view, 1 << 20, 5);
  assert_true(memory_alive(&import->memory));
  region_put(import);
  region_put(family.shared);
  region_put(family.exported);
  region_put(family.device);
}

static void places_are_formatted_and_parsed(void **state) {
  (void)state;
  struct haul_place place;
  const char *bad[] = {"",        "hos",       "host:0",         "host ",  "sim",
                       "sim:",    "sim:-1",    "sim:x",          "sim:01", "sim:1 ",
                       "cuda:0x", "sim:65536", "sim:99999999999"};
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EPLACE, haul_place_parse(bad[i], &place));
  assert_fails(HAUL_EINVAL, haul_place_parse(NULL, &place));
  const char *good[] = {"host", "sim:0", "sim:15", "sim:65535"};
  for (size_t i = 0; i < COUNT(good); i++) {
    char text[32];
    assert_works(haul_place_parse(good[i], &place));
    assert_string_equal(haul_place_format(place, text, sizeof text), good[i]);
  }
  char small[3];
  assert_string_equal(haul_place_format(host, small, sizeof small), "ho");
}

static void checks_report_and_hint(void **state) {
  (void)state;
  for (size_t i = 0; provider_at(i); i++) {
    struct haul_check checks[16];
    size_t count = provider_at(i)->checks(checks, 16);
    assert_in_range(count, 1, 16);
    assert_int_equal(provider_at(i)->checks(NULL, 0), count);
    for (size_t k = 0; k < count; k++) {
      assert_string_equal(checks[k].backend, provider_at(i)->name);
      assert_ptr_equal(strstr(checks[k].name, provider_at(i)->name), checks[k].name);
      assert_true(checks[k].text[0]);
      assert_true(checks[k].state != HAUL_CHECK_OK || !checks[k].remedy[0]);
    }
  }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_heap, close_heap)

static struct {
  unsigned count;
  const void *address;
} deaths;

static void count_death(void *node, const struct memory *memory) {
  (void)node;
  deaths.count++;
  deaths.address = memory->address;
}

static unsigned wraps;

static void count_wrap(void *node, const struct memory *memory) {
  (void)node;
  wraps += memory->wrapped;
}

static const struct heap_watcher counting = {count_wrap, count_death, NULL, NULL};

static void a_watcher_is_notified_of_wrapped_memory(void **state) {
  (void)state;
  struct heap *watched;
  struct haul_region *before, *after, *own;
  char bytes[200];
  wraps = 0;
  assert_works(heap_open(NULL, 4 << 20, &watched));
  assert_works(heap_wrap(watched, bytes, 100, &before));
  heap_watch(watched, &counting);
  assert_int_equal(wraps, 0);
  heap_report_wrapped(watched);
  assert_int_equal(wraps, 1);
  assert_works(heap_wrap(watched, bytes + 100, 100, &after));
  assert_works(heap_alloc(watched, host, 65536, 0, &own));
  assert_int_equal(wraps, 2);
  region_put(before);
  heap_report_wrapped(watched);
  assert_int_equal(wraps, 3);
  region_put(after);
  region_put(own);
  heap_close(watched);
}

static void a_watcher_is_notified_of_freed_memory(void **state) {
  (void)state;
  struct heap *watched;
  struct haul_region *region;
  char bytes[100];
  deaths.count = 0;
  assert_works(heap_open(NULL, 4 << 20, &watched));
  heap_watch(watched, &counting);
  assert_works(heap_wrap(watched, bytes, sizeof bytes, &region));
  region_put(region);
  assert_int_equal(deaths.count, 1);
  assert_ptr_equal(deaths.address, bytes);
  assert_works(heap_alloc(watched, host, 65536, HAUL_REGION_PRIVATE, &region));
  region_put(region); /* pooled, not freed */
  assert_int_equal(deaths.count, 1);
  assert_works(heap_alloc(watched, host, 65536, HAUL_REGION_PRIVATE, &region));
  heap_close(watched);
  region_put(region);
  assert_int_equal(deaths.count, 2);
}

static void no_notification_after_the_watch(void **state) {
  (void)state;
  struct heap *watched;
  struct haul_region *region;
  char bytes[100];
  deaths.count = 0;
  assert_works(heap_open(NULL, 0, &watched));
  heap_watch(watched, &counting);
  assert_works(heap_wrap(watched, bytes, sizeof bytes, &region));
  heap_watch(watched, NULL);
  region_put(region);
  assert_int_equal(deaths.count, 0);
  heap_close(watched);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(rejects_missing_places),
      TEST(rejects_impossible_requests),
      TEST(rejects_unmapped_ranges),
      TEST(wraps_memory_guarded_by_a_sanitizer),
      TEST(wrapped_memory_is_not_freed),
      TEST(recognises_read_only_memory),
      TEST(wraps_in_a_sandbox_without_process_vm_writev),
      TEST(rejects_unreadable_files),
      TEST(files_are_wrapped_from_any_offset),
      TEST(ranges_are_checked_without_overflow),
      TEST(rejects_impossible_exports),
      TEST(rejects_mismatched_imports),
      TEST(tickets_carry_layouts),
      TEST(a_watcher_is_notified_of_wrapped_memory),
      TEST(a_watcher_is_notified_of_freed_memory),
      TEST(no_notification_after_the_watch),
      TEST(devices_run_out_of_memory),
      TEST(every_failure_is_clean),
      TEST(a_forked_child_can_release),
      TEST(places_are_formatted_and_parsed),
      TEST(checks_report_and_hint),
  };
  setenv("HAUL_SIM_DEVICES", "1", 1);
  setenv("HAUL_SIM_MEMORY", "16777216", 1);
  return cmocka_run_group_tests_name("memory/region", tests, NULL, NULL);
}
