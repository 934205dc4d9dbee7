/* SPDX-License-Identifier: MIT
 * Names under 3fs-virt/iovs: parsing those of clients, and formatting. */
#include "support/check.h"

#include "storage/ring.h"
#include <errno.h>
#include <string.h>

#define ID "00112233-4455-6677-8899-aabbccddeeff"

static struct iov_name parsed(const char *text) {
  struct iov_name name;
  assert_int_equal(iov_name_parse(text, &name), 0);
  return name;
}

static void buffer_names_have_an_id_and_a_block_size(void **state) {
  (void)state;
  static const uint8_t id[16] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
  const char *const spellings[] = {ID, "00112233445566778899aabbccddeeff",
                                   "00112233445566778899AABBCCDDEEFF"};
  for (size_t i = 0; i < COUNT(spellings); i++) {
    struct iov_name name = parsed(spellings[i]);
    assert_memory_equal(name.id, id, sizeof id);
    assert_false(name.ring);
    assert_int_equal(name.block, 0);
  }
  assert_int_equal(parsed(ID ".b4096").block, 4096);
}

static void ring_attributes_may_have_any_order(void **state) {
  (void)state;
  struct iov_name name = parsed(ID ".w-32.ph.t250.f110");
  assert_true(name.ring);
  assert_false(name.for_read);
  assert_int_equal(name.depth, -32);
  assert_int_equal(name.priority, RING_HIGH);
  assert_int_equal(name.timeout_ms, 250);
  assert_int_equal(name.flags, 6);
  name = parsed(ID ".f1.pl.r0");
  assert_true(name.for_read);
  assert_int_equal(name.depth, 0);
  assert_int_equal(name.priority, RING_LOW);
  assert_int_equal(parsed(ID ".r1.p").priority, RING_NORMAL);
  assert_int_equal(parsed(ID ".r1.pn").priority, RING_NORMAL);
  assert_true(parsed(ID ".r1.f"
                        "1111111111111111111111111111111111111111111111111111111111111111")
                  .flags == UINT64_MAX);
}

static void invalid_names_are_rejected(void **state) {
  (void)state;
  const char *const wrong[] = {"",
                               ".",
                               "submit-ios",
                               "0011",
                               ID "0",
                               ID "-",
                               "0-0112233445566778899aabbccddeeff",
                               ID ".",
                               ID "..r1",
                               ID ".r1.",
                               ID ".r1.r2",
                               ID ".r1.w1",
                               ID ".r",
                               ID ".r--1",
                               ID ".r1x",
                               ID ".r2147483648",
                               ID ".r-2147483648",
                               ID ".b",
                               ID ".b0",
                               ID ".b-1",
                               ID ".b1.b1",
                               ID ".b99999999999999999999",
                               ID ".x1",
                               ID ".t5",
                               ID ".f1",
                               ID ".ph",
                               ID ".r1.t-1",
                               ID ".r1.t2147483648",
                               ID ".r1.f",
                               ID ".r1.f2",
                               ID ".r1.px",
                               ID ".r1.phh",
                               ID
                               ".r1.f"
                               "11111111111111111111111111111111111111111111111111111111111111111",
                               ID " ",
                               ID "/r1",
                               "g0112233-4455-6677-8899-aabbccddeeff"};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct iov_name name;
    assert_int_equal(iov_name_parse(wrong[i], &name), -EINVAL);
  }
}

/* As 3FS's clients do, which unlink by this name. */
static void names_are_formatted_as_3fs_does(void **state) {
  (void)state;
  const char *const names[] = {ID,
                               ID ".b4096",
                               ID ".r32.t0",
                               ID ".w-32.ph.t250.f110",
                               ID ".r0.pl.t2147483647",
                               ID
                               ".b9223372036854775807.r-2147483647.ph.t2147483647.f"
                               "1111111111111111111111111111111111111111111111111111111111111111"};
  for (size_t i = 0; i < COUNT(names); i++) {
    char text[IOV_NAME_ROOM];
    struct iov_name name = parsed(names[i]);
    assert_int_equal(iov_name_format(&name, text), strlen(names[i]));
    assert_string_equal(text, names[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(buffer_names_have_an_id_and_a_block_size),
      cmocka_unit_test(ring_attributes_may_have_any_order),
      cmocka_unit_test(invalid_names_are_rejected),
      cmocka_unit_test(names_are_formatted_as_3fs_does),
  };
  return cmocka_run_group_tests_name("storage/name", tests, NULL, NULL);
}
