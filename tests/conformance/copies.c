/* SPDX-License-Identifier: MIT
 * Copies that nobody waits for (haul/device.h), between host memory and HAUL_TEST_DEVICE, by
 * default the emulated one: what is refused, how they end, what they leave alone. */
#include "support/check.h"

#include <haul/device.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH ((size_t)9 << 20) /* portions of 4 MiB, and a rest */

static struct {
  haul_node *node;
  struct haul_place device;
  haul_region *host, *other, *far;
} held;

static haul_region *allocate(struct haul_place place, unsigned flags) {
  haul_region *region;
  assert_works(haul_region_alloc(held.node, place, LENGTH, flags, &region));
  return region;
}

static int set_up(void **state) {
  const char *device = getenv("HAUL_TEST_DEVICE");
  const struct haul_place host = {HAUL_HOST, 0};
  (void)state;
  assert_works(haul_place_parse(device ? device : "sim:0", &held.device));
  assert_works(haul_node_open(NULL, &held.node));
  held.host = allocate(host, HAUL_REGION_PINNED);
  held.other = allocate(host, HAUL_REGION_PINNED);
  held.far = allocate(held.device, 0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(held.far);
  haul_region_release(held.other);
  haul_region_release(held.host);
  haul_node_close(held.node);
  return 0;
}

static int end_of(haul_copy *copy) {
  haul_deadline until = haul_deadline_in(INT64_C(30000000000));
  int status;
  while ((status = haul_copy_test(copy)) == 1 && haul_deadline_in(0) < until)
    usleep(20);
  return status;
}

static void move(haul_region *to, haul_region *from) {
  haul_copy *copy;
  assert_works(haul_copy_start(to, 0, from, 0, LENGTH, &copy));
  assert_int_equal(end_of(copy), 0);
  assert_int_equal(haul_copy_test(copy), 0); /* and stays so */
  haul_copy_release(copy);
}

static void bytes_get_there_and_back(void **state) {
  (void)state;
  pattern_fill(haul_region_address(held.host), LENGTH, 1);
  move(held.far, held.host);
  memset(haul_region_address(held.other), 0, LENGTH);
  move(held.other, held.far);
  pattern_check(haul_region_address(held.other), LENGTH, 1);
}

static void between_host_memories_it_is_made_at_once(void **state) {
  haul_copy *copy;
  (void)state;
  pattern_fill(haul_region_address(held.host), LENGTH, 2);
  assert_works(haul_copy_start(held.other, 0, held.host, 0, LENGTH, &copy));
  pattern_check(haul_region_address(held.other), LENGTH, 2);
  assert_int_equal(haul_copy_test(copy), 0);
  haul_copy_release(copy);
}

#define MANY 100u
#define PART (LENGTH / MANY / 8 * 8)

static void many_are_under_way(void **state) {
  haul_copy *copies[MANY];
  (void)state;
  pattern_fill(haul_region_address(held.host), LENGTH, 3);
  for (unsigned i = 0; i < MANY; i++)
    assert_works(haul_copy_start(held.far, i * PART, held.host, i * PART, PART, &copies[i]));
  for (unsigned i = 0; i < MANY; i++) {
    assert_int_equal(end_of(copies[i]), 0);
    haul_copy_release(copies[i]);
  }
  memset(haul_region_address(held.other), 0, LENGTH);
  move(held.other, held.far);
  assert_memory_equal(haul_region_address(held.other), haul_region_address(held.host), MANY * PART);
}

static void what_lies_outside_is_refused(void **state) {
  haul_copy *copy = NULL;
  (void)state;
  assert_fails(HAUL_ERANGE, haul_copy_start(held.far, 1, held.host, 0, LENGTH, &copy));
  assert_fails(HAUL_ERANGE, haul_copy_start(held.far, 0, held.host, LENGTH, 1, &copy));
  assert_fails(HAUL_ERANGE, haul_copy_start(held.far, UINT64_MAX, held.host, 0, 2, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(held.host, 0, held.host, 1, 2, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(held.far, 0, held.host, 0, 0, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(NULL, 0, held.host, 0, 1, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(held.far, 0, held.host, 0, 1, NULL));
  assert_fails(HAUL_EINVAL, haul_copy_test(NULL));
  haul_copy_release(NULL);
  assert_null(copy);
}

static void memory_to_read_alone_is_not_written(void **state) {
  haul_region *region;
  haul_copy *copy;
  void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_ptr_not_equal(page, MAP_FAILED);
  assert_works(haul_region_wrap(held.node, page, 4096, &region));
  assert_fails(HAUL_EACCESS, haul_copy_start(region, 0, held.far, 0, 4096, &copy));
  haul_region_release(region);
  munmap(page, 4096);
}

/* Some engines do not take it; then the processor puts it into a buffer that they do. */
static void memory_to_read_alone_is_read(void **state) {
  haul_region *region;
  size_t length = LENGTH / 4096 * 4096;
  void *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_ptr_not_equal(bytes, MAP_FAILED);
  pattern_fill(bytes, length, 4);
  assert_int_equal(mprotect(bytes, length, PROT_READ), 0);
  assert_works(haul_region_wrap(held.node, bytes, length, &region));
  assert_works(haul_region_copy(held.far, 0, region, 0, length, HAUL_FOREVER));
  haul_region_release(region);
  munmap(bytes, length);
  move(held.other, held.far);
  pattern_check(haul_region_address(held.other), length, 4);
}

static void one_that_is_let_go_ends(void **state) {
  (void)state;
  for (unsigned i = 0; i < 20; i++) {
    haul_copy *copy;
    assert_works(haul_copy_start(held.host, 0, held.far, 0, LENGTH, &copy));
    if (i % 2)
      haul_copy_test(copy);
    haul_copy_release(copy);
    memset(haul_region_address(held.host), 0x5a, LENGTH);
    for (size_t at = 0; at < LENGTH; at += 4096) /* nobody writes to it any more */
      assert_int_equal(((uint8_t *)haul_region_address(held.host))[at], 0x5a);
  }
}

static void two_devices_take_buffers(void **state) {
  struct haul_place place = {held.device.kind, 1};
  haul_region *second;
  haul_copy *copy;
  (void)state;
  assert_works(haul_region_alloc(held.node, place, LENGTH, 0, &second));
  assert_fails(HAUL_ENOTSUP, haul_copy_start(second, 0, held.far, 0, LENGTH, &copy));
  assert_works(haul_region_copy(second, 0, held.far, 0, LENGTH, HAUL_FOREVER));
  haul_region_release(second);
}

static void a_failure_keeps_its_reason(void **state) {
  haul_copy *copy;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "submit:2:5", 1); /* after the first portion: EIO */
  int code = haul_copy_start(held.far, 0, held.host, 0, LENGTH, &copy);
  if (code == 0) {
    code = end_of(copy);
    assert_int_equal(haul_copy_test(copy), code);
    haul_copy_release(copy);
  }
  unsetenv("HAUL_DOUBLE_GAUDI_FAIL");
  assert_int_equal(code, HAUL_ESYSTEM);
  assert_int_equal(haul_error_last()->system, 5);
  assert_string_not_equal(haul_error_last()->hint, "");
}

static void a_dma_buf_is_given_or_refused_with_a_reason(void **state) {
  int descriptor = -1;
  uint64_t offset = 1;
  (void)state;
  int code = haul_region_dmabuf(held.far, &descriptor, &offset);
  if (code == 0) {
    assert_true(descriptor >= 0);
    assert_true(offset < (UINT64_C(1) << 40));
    close(descriptor);
  } else {
    assert_int_equal(code, HAUL_ENOTSUP);
    assert_string_not_equal(haul_error_last()->hint, "");
  }
  assert_true(code == 0 || held.device.kind != HAUL_GAUDI);
  assert_fails(HAUL_EINVAL, haul_region_dmabuf(NULL, &descriptor, &offset));
  assert_fails(HAUL_EINVAL, haul_region_dmabuf(held.far, NULL, &offset));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(bytes_get_there_and_back, set_up, tear_down),
      cmocka_unit_test_setup_teardown(between_host_memories_it_is_made_at_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(many_are_under_way, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_lies_outside_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(memory_to_read_alone_is_not_written, set_up, tear_down),
      cmocka_unit_test_setup_teardown(memory_to_read_alone_is_read, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_that_is_let_go_ends, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_dma_buf_is_given_or_refused_with_a_reason, set_up,
                                      tear_down),
  };
  const struct CMUnitTest of_gaudi[] = {
      cmocka_unit_test_setup_teardown(two_devices_take_buffers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_failure_keeps_its_reason, set_up, tear_down),
  };
  const char *device = getenv("HAUL_TEST_DEVICE");
  int failed = cmocka_run_group_tests_name("conformance/copies", tests, NULL, NULL);
  if (device && strncmp(device, "gaudi", 5) == 0)
    failed += cmocka_run_group_tests_name("conformance/copies of Gaudi", of_gaudi, NULL, NULL);
  return failed;
}
