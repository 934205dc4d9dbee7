/* SPDX-License-Identifier: MIT
 * One suite for all kinds of memory: each test runs at each place. A new provider is done when it
 * passes. */
#include "support/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/sys.h"
#include "memory/copy.h"
#include "memory/pages.h"
#include "memory/provider.h"
#include "memory/region.h"
#include "memory/staging.h"
#include "memory/ticket.h"
#include "support/child.h"
#include "support/copying.h"
#include "support/seams.h"

#define MIB ((size_t)1 << 20)

static const struct haul_place host = {HAUL_HOST, 0};

static struct memory get_with(struct haul_place place, size_t length, unsigned flags) {
  struct memory memory;
  assert_works(memory_alloc(place, length, flags, &memory));
  return memory;
}

static struct memory get(struct haul_place place, size_t length) {
  return get_with(place, length, 0);
}

/* Can its memory be shared with another process of this host? */
static bool is_shared(struct haul_place place) {
  return !provider_of(place.kind)->unshareable;
}

/* Write and read a pattern in any memory, through the host. */
static void put_pattern(struct memory *memory, uint64_t offset, size_t length, uint64_t seed) {
  struct memory bytes = get_with(host, length, HAUL_REGION_PRIVATE);
  pattern_fill(bytes.view, length, seed);
  assert_works(copy_wait(memory, offset, &bytes, 0, length, HAUL_FOREVER));
  memory_free(&bytes);
}

static void expect_pattern(struct memory *memory, uint64_t offset, size_t length, uint64_t seed) {
  struct memory bytes = get_with(host, length, HAUL_REGION_PRIVATE);
  assert_works(copy_wait(&bytes, 0, memory, offset, length, HAUL_FOREVER));
  pattern_check(bytes.view, length, seed);
  memory_free(&bytes);
}

static size_t sizes(size_t i) {
  const size_t all[] = {1,           4093,    page_size() - 1, page_size(), page_size() + 1,
                        2 * MIB + 1, 20 * MIB};
  return i < COUNT(all) ? all[i] : 0;
}

static void a_length_of_0_is_rejected(void **state) {
  struct memory memory;
  struct haul_place *place = *state;
  assert_fails(HAUL_EINVAL, memory_alloc(*place, 0, 0, &memory));
  assert_fails(HAUL_EINVAL, memory_alloc(*place, 1, ~0u, &memory));
  assert_fails(HAUL_ENOMEM, memory_alloc(*place, SIZE_MAX, 0, &memory));
}

static void every_size_is_aligned(void **state) {
  struct haul_place *place = *state;
  const unsigned flags[] = {0, HAUL_REGION_PRIVATE};
  for (size_t f = 0; f < COUNT(flags); f++)
    for (size_t i = 0; sizes(i); i++) {
      size_t size = sizes(i);
      struct memory memory = get_with(*place, size, flags[f]);
      assert_int_equal((uintptr_t)memory.address % page_size(), 0);
      assert_true(size < HUGE_PAGE || memory.view == NULL || place->kind == HAUL_P2P ||
                  (uintptr_t)memory.view % HUGE_PAGE == 0);
      assert_int_equal(memory.length, size);
      assert_memory_equal(&memory.place, place, sizeof *place);
      assert_true(memory.writable && !memory.wrapped && !memory.imported);
      assert_int_equal(memory.shareable, flags[f] == 0 && is_shared(*place));
      assert_true(memory_alive(&memory));
      put_pattern(&memory, 0, size, i);
      expect_pattern(&memory, 0, size, i);
      memory_free(&memory);
    }
}

static void private_memory_has_no_descriptor(void **state) {
  unsigned before = open_descriptors();
  struct memory memory = get_with(*(struct haul_place *)*state, MIB, HAUL_REGION_PRIVATE);
  struct ticket ticket;
  uint64_t offset;
  int fd;
  assert_int_equal(open_descriptors(), before);
  assert_fails(HAUL_ENOTSUP, memory_export(&memory, HAUL_READ, &ticket, &fd));
  assert_fails(HAUL_ENOTSUP, memory_dmabuf(&memory, &fd, &offset));
  memory_free(&memory);
}

static void touch(void *address) {
  *(volatile char *)address;
}

static void memory_without_a_view_faults(void **state) {
  struct memory memory = get(*(struct haul_place *)*state, MIB);
  int faults = memory.view == memory.address ? 0 : 128 + SIGSEGV;
  assert_int_equal(child_run(touch, memory.address), faults);
  memory_free(&memory);
}

static void it_owns_exactly_its_memory(void **state) {
  struct haul_place *place = *state, found;
  const struct provider *provider = provider_of(place->kind);
  struct memory memory = get(*place, MIB);
  char *at = memory.address;
  assert_int_equal(provider->owns(at, MIB, &found), 1);
  assert_memory_equal(&found, place, sizeof found);
  assert_int_equal(provider->owns(at, 1, &found), 1);
  assert_int_equal(provider->owns(at + MIB - 1, 1, &found), 1);
  assert_int_equal(provider->owns(at + 4097, 4093, &found), 1);
  memory_free(&memory);
  assert_true(provider->recycles || provider->owns(at, MIB, &found) <= 0);
}

/* Host memory may continue behind a block; unit/memory_region tests unmapped ranges. */
static void ranges_across_an_edge_are_rejected(void **state) {
  const size_t whole = HUGE_PAGE; /* the device's allocation granularity */
  struct memory memory = get(*(struct haul_place *)*state, whole), wrapped;
  char *at = memory.address;
  if (!memory.view) {
    assert_fails(HAUL_EINVAL, memory_wrap(at, whole + 1, &wrapped));
    assert_fails(HAUL_EINVAL, memory_wrap(at + whole - 1, 2, &wrapped));
    assert_fails(HAUL_EINVAL, memory_wrap(at - 1, 2, &wrapped));
  }
  memory_free(&memory);
}

static void wrapped_memory_is_recognised_and_kept(void **state) {
  struct haul_place *place = *state;
  struct memory memory = get(*place, MIB), wrapped;
  put_pattern(&memory, 0, MIB, 5);
  assert_works(memory_wrap((char *)memory.address + 4097, 10000, &wrapped));
  assert_memory_equal(&wrapped.place, place, sizeof *place);
  assert_int_equal(wrapped.length, 10000);
  put_pattern(&wrapped, 1, 9000, 6);
  memory_free(&wrapped);
  expect_pattern(&memory, 4098, 9000, 6);
  expect_pattern(&memory, 0, 4097, 5);
  memory_free(&memory);
}

static const size_t lengths[] = {1, 3, 511, 4095, 4096, 4097, 65537, MIB + 1};
static const size_t offsets[] = {0, 1, 63, 4095};

/* Every length and offset, with the bytes around them untouched. */
static void copy_between(struct haul_place from, struct haul_place to) {
  size_t room = 2 * MIB;
  struct memory source = get(from, room), target = get(to, room);
  struct memory bytes = get(host, room), want = get(host, room);
  for (size_t i = 0; i < COUNT(lengths); i++)
    for (size_t k = 0; k < COUNT(offsets); k++) {
      size_t length = lengths[i], there = offsets[k], here = offsets[COUNT(offsets) - 1 - k];
      put_pattern(&target, 0, there + length + 9, 1);
      put_pattern(&source, here, length, i * 16 + k);
      assert_works(copy_wait(&target, there, &source, here, length, HAUL_FOREVER));
      expect_pattern(&target, there, length, i * 16 + k);
      size_t all = there + length + 9;
      pattern_fill(want.view, all, 1);
      assert_works(copy_wait(&bytes, 0, &target, 0, all, HAUL_FOREVER));
      assert_memory_equal(bytes.view, want.view, there);
      assert_memory_equal((char *)bytes.view + there + length, (char *)want.view + there + length,
                          9);
    }
  memory_free(&bytes);
  memory_free(&want);
  memory_free(&source);
  memory_free(&target);
}

static void copies_to_and_from_every_place(void **state) {
  struct haul_place *place = *state;
  for (size_t i = 0; provider_at(i); i++)
    for (unsigned d = 0; d < provider_devices(provider_at(i)) && d < 2; d++) {
      struct haul_place other = {provider_at(i)->kind, (uint16_t)d};
      copy_between(*place, other);
      copy_between(other, *place);
    }
}

static void copies_large_blocks(void **state) {
  struct haul_place *place = *state;
  struct memory a = get(*place, 24 * MIB), b = get(*place, 24 * MIB);
  put_pattern(&a, 0, 24 * MIB, 9);
  assert_works(copy_wait(&b, 0, &a, 0, 24 * MIB, HAUL_FOREVER));
  expect_pattern(&b, 0, 24 * MIB, 9);
  memory_free(&a);
  memory_free(&b);
}

/* After a cancel the engine touches neither block, so later writes persist. */
static void canceled_copies_touch_no_memory(void **state) {
  struct haul_place *place = *state;
  const struct provider *provider = provider_of(place->kind);
  if (!provider->copy_start)
    return;
  struct memory device = get(*place, 64 * MIB), bytes = get(host, 64 * MIB), through[2];
  for (unsigned i = 0; i < 2; i++)
    assert_works(memory_alloc(host, BOUNCE_BYTES, HAUL_REGION_PINNED, &through[i]));
  memset(bytes.view, 1, 64 * MIB);
  for (unsigned i = 0; i < 8; i++) {
    struct copy copy = {
        .to = &bytes, .from = &device, .length = 64 * MIB, .through = {&through[0], &through[1]}};
    assert_works(provider->copy_start(&copy));
    int64_t from = clock_now();
    provider->copy_cancel(&copy);
    assert_true(clock_now() - from < INT64_C(1000000000));
    int status = provider->copy_poll(&copy);
    assert_true(status == 0 || status == HAUL_ECANCELED);
    memset(bytes.view, 2, MIB);
    for (size_t k = 0; k < MIB; k += 509)
      assert_int_equal(((char *)bytes.view)[k], 2);
  }
  memory_free(&device);
  memory_free(&bytes);
  memory_free(&through[0]);
  memory_free(&through[1]);
}

static void fences_hold(void **state) {
  struct memory memory = get(*(struct haul_place *)*state, 4096);
  assert_works(memory_fence(&memory, FENCE_BEFORE_READ));
  assert_works(memory_fence(&memory, FENCE_AFTER_WRITE));
  memory_free(&memory);
}

static void checksums_are_xxh3_where_the_bytes_are(void **state) {
  struct memory memory = get(*(struct haul_place *)*state, MIB);
  char *bytes = malloc(MIB);
  pattern_fill(bytes, MIB, 3);
  put_pattern(&memory, 0, MIB, 3);
  const size_t ranges[][2] = {{0, MIB}, {1, 1}, {4095, 4098}, {MIB, 0}};
  for (size_t i = 0; i < COUNT(ranges); i++) {
    uint64_t sum;
    assert_works(memory_checksum(&memory, ranges[i][0], ranges[i][1], &sum));
    assert_true(sum == XXH3_64bits(bytes + ranges[i][0], ranges[i][1]));
  }
  free(bytes);
  memory_free(&memory);
}

/* sharing: the other process is this program, run again */

struct order {
  struct haul_ticket ticket;
  size_t length;
  uint64_t seed;
};

struct answer {
  int imported, writable, write_status, raw_write_possible;
  int told; /* the importer sees the free; else it keeps the bytes */
  int alive_before, alive_after;
};

/* The importer: checks the bytes, writes if it may, and checks again after the owner's free. */
static int importer(void) {
  struct order order;
  struct ticket ticket;
  struct memory memory;
  struct answer answer = {.alive_after = -1};
  if (providers_start() != 0)
    return 1;
  int fd = child_receive(3, &order, sizeof order);
  answer.imported = ticket_unpack(&order.ticket, &ticket);
  if (answer.imported == 0)
    answer.imported = memory_import(&ticket, fd, &memory);
  void *raw = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  answer.raw_write_possible = raw != MAP_FAILED;
  close(fd);
  if (answer.imported == 0) {
    expect_pattern(&memory, 0, order.length, order.seed);
    struct memory bytes = get_with(host, order.length, HAUL_REGION_PRIVATE);
    pattern_fill(bytes.view, order.length, order.seed + 1);
    answer.writable = memory.writable;
    answer.write_status = copy_wait(&memory, 0, &bytes, 0, order.length, HAUL_FOREVER);
    answer.alive_before = memory_alive(&memory);
    answer.told = memory.alive != NULL;
    memory_free(&bytes);
  }
  child_send(3, &answer, sizeof answer, -1);
  if (answer.imported == 0) {
    child_receive(3, &order, sizeof order);
    answer.alive_after = memory_alive(&memory);
    expect_pattern(&memory, 0, order.length, order.seed);
    child_send(3, &answer, sizeof answer, -1);
    memory_free(&memory);
  }
  providers_stop();
  return 0;
}

/* Driver descriptors have neither rights nor an `alive` word. */
static bool is_opaque(struct haul_place place) {
  return place.kind == HAUL_CUDA;
}

static void share(struct haul_place place, size_t length, unsigned rights) {
  bool writes = rights & HAUL_WRITE;
  struct order order = {.length = length, .seed = 21};
  struct answer answer;
  struct ticket ticket;
  int fd, socket;
  struct memory memory = get(place, length);
  put_pattern(&memory, 0, length, 21);
  assert_works(memory_export(&memory, rights, &ticket, &fd));
  ticket_pack(&ticket, &order.ticket);
  pid_t child = child_start("importer", &socket);
  child_send(socket, &order, sizeof order, fd);
  close(fd);

  child_receive(socket, &answer, sizeof answer);
  assert_int_equal(answer.imported, 0);
  assert_int_equal(answer.writable, writes);
  assert_int_equal(answer.write_status, writes ? 0 : HAUL_EACCESS);
  assert_true(is_opaque(place) || answer.raw_write_possible == writes);
  assert_int_equal(answer.told, !is_opaque(place));
  assert_true(answer.alive_before);
  expect_pattern(&memory, 0, length, writes ? 22 : 21);

  memory_free(&memory);
  order.seed = writes ? 22 : 21;
  child_send(socket, &order, sizeof order, -1);
  child_receive(socket, &answer, sizeof answer);
  assert_int_equal(answer.alive_after, is_opaque(place));
  assert_int_equal(child_end(child, socket), 0);
}

static void unshareable_memory_has_a_reason(void **state) {
  struct haul_place *place = *state;
  struct memory memory = get(*place, 4096), import;
  struct ticket ticket = {.place = *place, .length = 4096, .rights = HAUL_READ};
  int fd = -1;
  if (!is_shared(*place)) {
    const char *why = provider_of(place->kind)->unshareable;
    assert_fails(HAUL_ENOTSUP, memory_export(&memory, HAUL_READ, &ticket, &fd));
    assert_string_equal(haul_error_last()->text, why);
    assert_fails(HAUL_ENOTSUP, memory_import(&ticket, 0, &import));
    assert_string_equal(haul_error_last()->text, why);
  }
  memory_free(&memory);
}

static void another_process_reads_and_writes_it(void **state) {
  if (!is_shared(*(struct haul_place *)*state))
    skip();
  for (size_t i = 0; sizes(i); i++)
    share(*(struct haul_place *)*state, sizes(i), HAUL_READ | HAUL_WRITE);
}

static void another_process_reads_it_and_cannot_write(void **state) {
  struct haul_place place = *(struct haul_place *)*state;
  if (!is_shared(place))
    skip();
  if (!is_opaque(place)) {
    share(place, MIB + 1, HAUL_READ);
    return;
  }
  struct memory memory = get(place, MIB + 1);
  struct ticket ticket;
  int fd;
  assert_fails(HAUL_ENOTSUP, memory_export(&memory, HAUL_READ, &ticket, &fd));
  memory_free(&memory);
}

static void released_memory_cannot_be_imported(void **state) {
  if (!is_shared(*(struct haul_place *)*state))
    skip();
  struct order order = {.length = 4096};
  struct answer answer;
  struct ticket ticket;
  int fd, socket;
  struct haul_place place = *(struct haul_place *)*state;
  struct memory memory = get(place, 4096);
  put_pattern(&memory, 0, 4096, order.seed);
  assert_works(memory_export(&memory, HAUL_READ | HAUL_WRITE, &ticket, &fd));
  memory_free(&memory);
  ticket_pack(&ticket, &order.ticket);
  pid_t child = child_start("importer", &socket);
  child_send(socket, &order, sizeof order, fd);
  close(fd);
  child_receive(socket, &answer, sizeof answer);
  assert_int_equal(answer.imported, is_opaque(place) ? 0 : HAUL_ESTALE);
  if (is_opaque(place)) { /* the descriptor keeps the bytes */
    order.seed++;
    child_send(socket, &order, sizeof order, -1);
    child_receive(socket, &answer, sizeof answer);
  }
  assert_int_equal(child_end(child, socket), 0);
}

static void imports_cannot_be_exported(void **state) {
  if (!is_shared(*(struct haul_place *)*state))
    skip();
  struct memory memory = get(*(struct haul_place *)*state, 4096), import;
  struct ticket ticket;
  int fd, again;
  assert_works(memory_export(&memory, HAUL_READ | HAUL_WRITE, &ticket, &fd));
  assert_works(memory_import(&ticket, fd, &import));
  assert_true(import.imported);
  assert_fails(HAUL_ENOTSUP, memory_export(&import, HAUL_READ, &ticket, &again));
  put_pattern(&import, 0, 4096, 2);
  expect_pattern(&memory, 0, 4096, 2);
  close(fd);
  memory_free(&import);
  memory_free(&memory);
}

static void the_device_describes_itself(void **state) {
  struct haul_place *place = *state;
  const struct provider *provider = provider_of(place->kind);
  struct haul_device device = {.numa = -2};
  provider->describe(place->device, &device);
  assert_true(device.name[0] && device.exports[0] && device.numa >= -1 && device.memory > 0);
  assert_int_equal(device.emulated, provider->emulated);
  assert_true(provider->copy_bytes_per_ns > 0);
}

struct test {
  const char *name;
  void (*run)(void **state);
};
#define TEST(name)                                                                                 \
  { #name, name }

static const struct test suite[] = {
    TEST(a_length_of_0_is_rejected),
    TEST(every_size_is_aligned),
    TEST(private_memory_has_no_descriptor),
    TEST(memory_without_a_view_faults),
    TEST(it_owns_exactly_its_memory),
    TEST(ranges_across_an_edge_are_rejected),
    TEST(wrapped_memory_is_recognised_and_kept),
    TEST(copies_to_and_from_every_place),
    TEST(copies_large_blocks),
    TEST(canceled_copies_touch_no_memory),
    TEST(fences_hold),
    TEST(checksums_are_xxh3_where_the_bytes_are),
    TEST(unshareable_memory_has_a_reason),
    TEST(another_process_reads_and_writes_it),
    TEST(another_process_reads_it_and_cannot_write),
    TEST(released_memory_cannot_be_imported),
    TEST(imports_cannot_be_exported),
    TEST(the_device_describes_itself),
};

/* A place, with the descriptors and mappings before its test. */
struct bench {
  struct haul_place place;
  unsigned descriptors, mappings;
};

static int remember(void **state) {
  struct bench *bench = *state;
  bench->descriptors = open_descriptors();
  bench->mappings = haul_mappings();
  return 0;
}

static int nothing_leaked(void **state) {
  const struct bench *bench = *state;
  return open_descriptors() == bench->descriptors && haul_mappings() == bench->mappings ? 0 : -1;
}

/* A device is opened by its first copy and stays open; this is no leak. */
static void use_once(struct haul_place place) {
  struct memory memory;
  if (memory_alloc(place, 4096, 0, &memory) != 0)
    return; /* the tests report it */
  put_pattern(&memory, 0, 4096, 1);
  memory_free(&memory);
}

static size_t add_place(struct CMUnitTest *tests, struct bench *bench) {
  static char names[PROVIDERS_MAX * 16 * COUNT(suite)][96];
  static size_t named;
  char place[32];
  haul_place_format(bench->place, place, sizeof place);
  for (size_t i = 0; i < COUNT(suite); i++, named++) {
    snprintf(names[named], sizeof names[named], "%s: %s", place, suite[i].name);
    tests[i] = (struct CMUnitTest){names[named], suite[i].run, remember, nothing_leaked, bench};
  }
  return COUNT(suite);
}

/* provider [KIND]: at every place, or at those of one kind. */
int main(int count, char **arguments) {
  static struct CMUnitTest tests[PROVIDERS_MAX * 16 * COUNT(suite)];
  static struct bench benches[PROVIDERS_MAX * 16];
  size_t test_count = 0, places = 0;
  if (count == 2 && strcmp(arguments[1], "importer") == 0)
    return importer();
  setenv("HAUL_SIM_DEVICES", "2", 0);
  if (providers_start() != 0)
    return 1;
  for (size_t i = 0; provider_at(i); i++)
    for (unsigned d = 0; d < provider_devices(provider_at(i)) && d < 16; d++) {
      struct haul_place place = {provider_at(i)->kind, (uint16_t)d};
      use_once(place);
      if (count == 2 && strcmp(arguments[1], provider_at(i)->name) != 0)
        continue;
      benches[places].place = place;
      test_count += add_place(tests + test_count, &benches[places++]);
    }
  if (test_count == 0) {
    fprintf(stderr, "there is no such place: %s\n", count == 2 ? arguments[1] : "");
    return 1;
  }
  int failed = _cmocka_run_group_tests("conformance/provider", tests, test_count, NULL, NULL);
  providers_stop();
  return failed;
}
