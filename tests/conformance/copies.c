/* SPDX-License-Identifier: MIT
 * Asynchronous copies (haul/device.h) between host memory and HAUL_TEST_DEVICE, by default the
 * emulated device: rejections, ends, untouched bytes. */
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
} fixture;

static haul_region *allocate(struct haul_place place, unsigned flags) {
  haul_region *region;
  assert_works(haul_region_alloc(fixture.node, place, LENGTH, flags, &region));
  return region;
}

static int set_up(void **state) {
  const char *device = getenv("HAUL_TEST_DEVICE");
  const struct haul_place host = {HAUL_HOST, 0};
  (void)state;
  assert_works(haul_place_parse(device ? device : "sim:0", &fixture.device));
  assert_works(haul_node_open(NULL, &fixture.node));
  fixture.host = allocate(host, HAUL_REGION_PINNED);
  fixture.other = allocate(host, HAUL_REGION_PINNED);
  fixture.far = allocate(fixture.device, 0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(fixture.far);
  haul_region_release(fixture.other);
  haul_region_release(fixture.host);
  haul_node_close(fixture.node);
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
  assert_int_equal(haul_copy_test(copy), 0); /* the result is final */
  haul_copy_release(copy);
}

static void bytes_arrive_and_return(void **state) {
  (void)state;
  pattern_fill(haul_region_address(fixture.host), LENGTH, 1);
  move(fixture.far, fixture.host);
  memset(haul_region_address(fixture.other), 0, LENGTH);
  move(fixture.other, fixture.far);
  pattern_check(haul_region_address(fixture.other), LENGTH, 1);
}

static void host_copies_complete_in_the_call(void **state) {
  haul_copy *copy;
  (void)state;
  pattern_fill(haul_region_address(fixture.host), LENGTH, 2);
  assert_works(haul_copy_start(fixture.other, 0, fixture.host, 0, LENGTH, &copy));
  pattern_check(haul_region_address(fixture.other), LENGTH, 2);
  assert_int_equal(haul_copy_test(copy), 0);
  haul_copy_release(copy);
}

#define MANY 100u
#define PART (LENGTH / MANY / 8 * 8)

static void many_copies_run_concurrently(void **state) {
  haul_copy *copies[MANY];
  (void)state;
  pattern_fill(haul_region_address(fixture.host), LENGTH, 3);
  for (unsigned i = 0; i < MANY; i++)
    assert_works(haul_copy_start(fixture.far, i * PART, fixture.host, i * PART, PART, &copies[i]));
  for (unsigned i = 0; i < MANY; i++) {
    assert_int_equal(end_of(copies[i]), 0);
    haul_copy_release(copies[i]);
  }
  memset(haul_region_address(fixture.other), 0, LENGTH);
  move(fixture.other, fixture.far);
  assert_memory_equal(haul_region_address(fixture.other), haul_region_address(fixture.host),
                      MANY * PART);
}

static void ranges_outside_are_rejected(void **state) {
  haul_copy *copy = NULL;
  (void)state;
  assert_fails(HAUL_ERANGE, haul_copy_start(fixture.far, 1, fixture.host, 0, LENGTH, &copy));
  assert_fails(HAUL_ERANGE, haul_copy_start(fixture.far, 0, fixture.host, LENGTH, 1, &copy));
  assert_fails(HAUL_ERANGE, haul_copy_start(fixture.far, UINT64_MAX, fixture.host, 0, 2, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(fixture.host, 0, fixture.host, 1, 2, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(fixture.far, 0, fixture.host, 0, 0, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(NULL, 0, fixture.host, 0, 1, &copy));
  assert_fails(HAUL_EINVAL, haul_copy_start(fixture.far, 0, fixture.host, 0, 1, NULL));
  assert_fails(HAUL_EINVAL, haul_copy_test(NULL));
  haul_copy_release(NULL);
  assert_null(copy);
}

static void read_only_memory_is_not_written(void **state) {
  haul_region *region;
  haul_copy *copy;
  void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_ptr_not_equal(page, MAP_FAILED);
  assert_works(haul_region_wrap(fixture.node, page, 4096, &region));
  assert_fails(HAUL_EACCESS, haul_copy_start(region, 0, fixture.far, 0, 4096, &copy));
  haul_region_release(region);
  munmap(page, 4096);
}

/* Some engines cannot read it; then the CPU copies it to a bounce buffer. */
static void read_only_memory_is_read(void **state) {
  haul_region *region;
  size_t length = LENGTH / 4096 * 4096;
  void *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  assert_ptr_not_equal(bytes, MAP_FAILED);
  pattern_fill(bytes, length, 4);
  assert_int_equal(mprotect(bytes, length, PROT_READ), 0);
  assert_works(haul_region_wrap(fixture.node, bytes, length, &region));
  assert_works(haul_region_copy(fixture.far, 0, region, 0, length, HAUL_FOREVER));
  haul_region_release(region);
  munmap(bytes, length);
  move(fixture.other, fixture.far);
  pattern_check(haul_region_address(fixture.other), length, 4);
}

static void a_released_copy_ends(void **state) {
  (void)state;
  for (unsigned i = 0; i < 20; i++) {
    haul_copy *copy;
    assert_works(haul_copy_start(fixture.host, 0, fixture.far, 0, LENGTH, &copy));
    if (i % 2)
      haul_copy_test(copy);
    haul_copy_release(copy);
    memset(haul_region_address(fixture.host), 0x5a, LENGTH);
    for (size_t at = 0; at < LENGTH; at += 4096) /* no longer written */
      assert_int_equal(((uint8_t *)haul_region_address(fixture.host))[at], 0x5a);
  }
}

static void unconnected_devices_need_buffers(void **state) {
  struct haul_place place = {fixture.device.kind, 1};
  haul_region *second;
  haul_copy *copy;
  (void)state;
  assert_works(haul_region_alloc(fixture.node, place, LENGTH, 0, &second));
  assert_fails(HAUL_ENOTSUP, haul_copy_start(second, 0, fixture.far, 0, LENGTH, &copy));
  assert_works(haul_region_copy(second, 0, fixture.far, 0, LENGTH, HAUL_FOREVER));
  haul_region_release(second);
}

static void a_failure_keeps_its_reason(void **state) {
  haul_copy *copy;
  (void)state;
  setenv("HAUL_DOUBLE_GAUDI_FAIL", "submit:2:5", 1); /* EIO after the first portion */
  int code = haul_copy_start(fixture.far, 0, fixture.host, 0, LENGTH, &copy);
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

static void a_dma_buf_is_exported_or_has_a_reason(void **state) {
  int descriptor = -1;
  uint64_t offset = 1;
  (void)state;
  int code = haul_region_dmabuf(fixture.far, &descriptor, &offset);
  if (code == 0) {
    assert_true(descriptor >= 0);
    assert_true(offset < (UINT64_C(1) << 40));
    close(descriptor);
  } else {
    assert_int_equal(code, HAUL_ENOTSUP);
    assert_string_not_equal(haul_error_last()->hint, "");
  }
  assert_true(code == 0 || fixture.device.kind != HAUL_GAUDI);
  assert_fails(HAUL_EINVAL, haul_region_dmabuf(NULL, &descriptor, &offset));
  assert_fails(HAUL_EINVAL, haul_region_dmabuf(fixture.far, NULL, &offset));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(bytes_arrive_and_return, set_up, tear_down),
      cmocka_unit_test_setup_teardown(host_copies_complete_in_the_call, set_up, tear_down),
      cmocka_unit_test_setup_teardown(many_copies_run_concurrently, set_up, tear_down),
      cmocka_unit_test_setup_teardown(ranges_outside_are_rejected, set_up, tear_down),
      cmocka_unit_test_setup_teardown(read_only_memory_is_not_written, set_up, tear_down),
      cmocka_unit_test_setup_teardown(read_only_memory_is_read, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_released_copy_ends, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_dma_buf_is_exported_or_has_a_reason, set_up, tear_down),
  };
  const struct CMUnitTest of_gaudi[] = {
      cmocka_unit_test_setup_teardown(unconnected_devices_need_buffers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_failure_keeps_its_reason, set_up, tear_down),
  };
  const char *device = getenv("HAUL_TEST_DEVICE");
  int failed = cmocka_run_group_tests_name("conformance/copies", tests, NULL, NULL);
  if (device && strncmp(device, "gaudi", 5) == 0)
    failed += cmocka_run_group_tests_name("conformance/copies of Gaudi", of_gaudi, NULL, NULL);
  return failed;
}
