/* SPDX-License-Identifier: MIT
 * Real dma-bufs of each kind of memory that makes them: visibility in other processes, lifetime,
 * size limits. */
#include "support/check.h"

#include <linux/dma-buf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/copy.h"
#include "memory/pages.h"
#include "memory/ticket.h"
#include "support/child.h"
#include "support/copying.h"
#include "support/seams.h"

#define OTHER "other" /* mode of the other process */

/* Every test runs for each of these; its state is the provider. */
static const struct provider *tested[PROVIDERS_MAX];
static size_t tested_count;

static void allocate(const struct provider *provider, size_t length, struct memory *memory) {
  assert_works(memory_alloc((struct haul_place){provider->kind, 0}, length, 0, memory));
}

static int open_dmabuf(struct memory *memory) {
  uint64_t offset;
  int dmabuf;
  assert_works(memory_dmabuf(memory, &dmabuf, &offset));
  assert_int_equal(offset, 0);
  return dmabuf;
}

static void fill(struct memory *memory, size_t length, uint64_t seed) {
  struct memory bytes;
  assert_works(memory_alloc((struct haul_place){HAUL_HOST, 0}, length, 0, &bytes));
  pattern_fill(bytes.view, length, seed);
  assert_works(copy_wait(memory, 0, &bytes, 0, length, HAUL_FOREVER));
  memory_free(&bytes);
}

static void check(struct memory *memory, size_t length, uint64_t seed) {
  struct memory bytes;
  assert_works(memory_alloc((struct haul_place){HAUL_HOST, 0}, length, 0, &bytes));
  assert_works(copy_wait(&bytes, 0, memory, 0, length, HAUL_FOREVER));
  pattern_check(bytes.view, length, seed);
  memory_free(&bytes);
}

static size_t size_of(int dmabuf) {
  off_t size = lseek(dmabuf, 0, SEEK_END);
  return size < 0 ? 0 : (size_t)size;
}

static void synchronise(int dmabuf, uint64_t flags) {
  struct dma_buf_sync sync = {.flags = flags | DMA_BUF_SYNC_RW};
  assert_int_equal(ioctl(dmabuf, DMA_BUF_IOCTL_SYNC, &sync), 0);
}

static void *map_dmabuf(int dmabuf) {
  void *bytes = mmap(NULL, size_of(dmabuf), PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf, 0);
  assert_ptr_not_equal(bytes, MAP_FAILED);
  synchronise(dmabuf, DMA_BUF_SYNC_START);
  return bytes;
}

static void unmap_dmabuf(int dmabuf, void *bytes) {
  synchronise(dmabuf, DMA_BUF_SYNC_END);
  munmap(bytes, size_of(dmabuf));
}

static void check_through(int dmabuf, size_t length, uint64_t seed) {
  void *bytes = map_dmabuf(dmabuf);
  pattern_check(bytes, length, seed);
  unmap_dmabuf(dmabuf, bytes);
}

static void fill_through(int dmabuf, size_t length, uint64_t seed) {
  void *bytes = map_dmabuf(dmabuf);
  pattern_fill(bytes, length, seed);
  unmap_dmabuf(dmabuf, bytes);
}

struct order {
  size_t length;
  uint64_t expected, put;
};

/* Receives a descriptor with each request, checks the bytes, and writes others. */
static int other_main(void) {
  struct order order;
  for (;;) {
    int dmabuf = child_receive(3, &order, sizeof order);
    if (dmabuf < 0)
      return 0;
    if (order.expected)
      check_through(dmabuf, order.length, order.expected);
    if (order.put)
      fill_through(dmabuf, order.length, order.put);
    close(dmabuf);
    child_send(3, &order, sizeof order, -1);
  }
}

static void ask(int socket, struct order order, int dmabuf) {
  child_send(socket, &order, sizeof order, dmabuf);
  child_receive(socket, &order, sizeof order);
}

static void end_other(pid_t child, int socket) {
  struct order order = {0};
  child_send(socket, &order, sizeof order, -1);
  assert_int_equal(child_end(child, socket), 0);
}

static void another_process_sees_the_same_bytes(void **state) {
  const struct provider *provider = *state;
  size_t length = 3 * page_size() + 5;
  struct memory memory;
  int socket, dmabuf;
  pid_t child = child_start(OTHER, &socket);
  allocate(provider, length, &memory);
  dmabuf = open_dmabuf(&memory);
  for (uint64_t round = 1; round < 4; round++) {
    fill(&memory, length, round);
    ask(socket, (struct order){length, round, 100 + round}, dmabuf);
    check(&memory, length, 100 + round);
  }
  close(dmabuf);
  memory_free(&memory);
  end_other(child, socket);
}

static void the_bytes_outlive_the_memory(void **state) {
  const struct provider *provider = *state;
  size_t length = 2 * page_size();
  struct memory memory, next;
  int dmabuf;
  allocate(provider, length, &memory);
  fill(&memory, length, 7);
  dmabuf = open_dmabuf(&memory);
  memory_free(&memory);
  allocate(provider, length, &next);
  fill(&next, length, 8);
  check_through(dmabuf, length, 7);
  fill_through(dmabuf, length, 9);
  check(&next, length, 8);
  memory_free(&next);
  close(dmabuf);
}

static void the_memory_outlives_the_dmabuf(void **state) {
  const struct provider *provider = *state;
  size_t length = 2 * page_size();
  struct memory memory;
  int dmabuf;
  allocate(provider, length, &memory);
  dmabuf = open_dmabuf(&memory);
  fill_through(dmabuf, length, 7);
  close(dmabuf);
  check(&memory, length, 7);
  dmabuf = open_dmabuf(&memory);
  check_through(dmabuf, length, 7);
  close(dmabuf);
  memory_free(&memory);
}

/* Count of dma-bufs in the system; -1: unknown. */
static long living_dmabufs(void) {
  char line[256];
  long count = -1;
  FILE *file = fopen("/sys/kernel/debug/dma_buf/bufinfo", "re");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, "Total ", 6) == 0 && strstr(line, " objects, "))
      count = strtol(line + 6, NULL, 10);
  if (file)
    fclose(file);
  return count;
}

/* The kernel frees a dma-buf after close() has returned. */
static bool come_to(long count) {
  for (int round = 0; round < 200; round++) {
    if (living_dmabufs() == count)
      return true;
    usleep(10000);
  }
  return false;
}

static void nothing_leaks(void **state) {
  const struct provider *provider = *state;
  unsigned descriptors = open_descriptors(), mappings = haul_mappings();
  long living = living_dmabufs();
  for (int round = 0; round < 8; round++) {
    struct memory memory;
    int first, second;
    allocate(provider, page_size(), &memory);
    first = open_dmabuf(&memory);
    second = open_dmabuf(&memory);
    assert_true(living < 0 || living_dmabufs() >= living + 2);
    close(first);
    memory_free(&memory);
    close(second);
  }
  assert_int_equal(open_descriptors(), descriptors);
  assert_int_equal(haul_mappings(), mappings);
  assert_true(come_to(living));
}

static long limit_mb(void) {
  long limit = 0;
  FILE *file = fopen("/sys/module/udmabuf/parameters/size_limit_mb", "re");
  if (!file || fscanf(file, "%ld", &limit) != 1)
    limit = 0;
  if (file)
    fclose(file);
  return limit;
}

static void it_has_whole_pages(void **state) {
  const struct provider *provider = *state;
  const size_t lengths[] = {1, 4095, page_size(), page_size() + 1, 1000003};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    struct memory memory;
    size_t whole;
    int dmabuf;
    assert_true(page_round(lengths[i], &whole));
    allocate(provider, lengths[i], &memory);
    dmabuf = open_dmabuf(&memory);
    assert_int_equal(size_of(dmabuf), whole);
    fill(&memory, lengths[i], i + 1);
    check_through(dmabuf, lengths[i], i + 1);
    close(dmabuf);
    memory_free(&memory);
  }
}

static void the_largest_dmabuf_works(void **state) {
  const struct provider *provider = *state;
  size_t limit = (size_t)limit_mb() << 20;
  struct memory memory;
  int dmabuf;
  if (limit == 0 || limit > (size_t)256 << 20)
    skip();
  allocate(provider, limit, &memory);
  dmabuf = open_dmabuf(&memory);
  assert_int_equal(size_of(dmabuf), limit);
  close(dmabuf);
  memory_free(&memory);
}

static void beyond_the_limit_the_hint_raises_it(void **state) {
  const struct provider *provider = *state;
  size_t limit = (size_t)limit_mb() << 20;
  struct memory memory;
  char command[64];
  uint64_t offset;
  int dmabuf;
  if (limit == 0)
    skip();
  unsigned descriptors = open_descriptors();
  snprintf(command, sizeof command, "echo %ld | sudo tee ", limit_mb() + 1);
  allocate(provider, limit + 1, &memory);
  assert_fails(HAUL_ELIMIT, memory_dmabuf(&memory, &dmabuf, &offset));
  assert_non_null(strstr(haul_error_last()->hint, command));
  assert_non_null(strstr(haul_error_last()->hint, "/udmabuf/parameters/size_limit_mb"));
  memory_free(&memory);
  assert_int_equal(open_descriptors(), descriptors);
}

static void private_and_imported_memory_has_none(void **state) {
  const struct provider *provider = *state;
  struct memory memory, imported;
  struct ticket ticket;
  uint64_t offset;
  int descriptor, dmabuf;
  struct haul_place place = {provider->kind, 0};
  assert_works(memory_alloc(place, page_size(), HAUL_REGION_PRIVATE, &memory));
  assert_fails(HAUL_ENOTSUP, memory_dmabuf(&memory, &dmabuf, &offset));
  assert_non_null(strstr(haul_error_last()->hint, "HAUL_REGION_PRIVATE"));
  memory_free(&memory);
  allocate(provider, page_size(), &memory);
  assert_works(memory_export(&memory, HAUL_READ, &ticket, &descriptor));
  assert_works(memory_import(&ticket, descriptor, &imported));
  assert_fails(HAUL_ENOTSUP, memory_dmabuf(&imported, &dmabuf, &offset));
  close(descriptor);
  memory_free(&imported);
  memory_free(&memory);
}

static int start(void **state) {
  (void)state;
  assert_works(providers_start());
  return 0;
}

static int stop(void **state) {
  (void)state;
  providers_stop();
  return 0;
}

static void find_providers(void) {
  const struct provider *provider;
  if (providers_start() != 0)
    return;
  for (size_t i = 0; (provider = provider_at(i)); i++)
    if (provider->dmabuf && provider_devices(provider) > 0)
      tested[tested_count++] = provider;
  providers_stop();
}

#define FOR_EACH(name)                                                                             \
  { #name, name, NULL, NULL, NULL }

static int run_all(void) {
  int failures = 0;
  for (size_t i = 0; i < tested_count; i++) {
    struct CMUnitTest tests[] = {
        FOR_EACH(another_process_sees_the_same_bytes),
        FOR_EACH(the_bytes_outlive_the_memory),
        FOR_EACH(the_memory_outlives_the_dmabuf),
        FOR_EACH(nothing_leaks),
        FOR_EACH(it_has_whole_pages),
        FOR_EACH(the_largest_dmabuf_works),
        FOR_EACH(beyond_the_limit_the_hint_raises_it),
        FOR_EACH(private_and_imported_memory_has_none),
    };
    for (size_t test = 0; test < COUNT(tests); test++)
      tests[test].initial_state = (void *)(uintptr_t)tested[i];
    failures += cmocka_run_group_tests_name(tested[i]->name, tests, start, stop);
  }
  return failures;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OTHER) == 0)
    return other_main();
  if (access("/dev/udmabuf", R_OK | W_OK) != 0) {
    printf("skipped dma-bufs: the kernel has no /dev/udmabuf for this user\n");
    return 77;
  }
  find_providers();
  return run_all();
}
