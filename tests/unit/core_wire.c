/* SPDX-License-Identifier: MIT */
#include "support/check.h"

#include "core/wire.h"

static void fields_are_little_endian(void **state) {
  (void)state;
  uint8_t bytes[15] = {0};
  static const uint8_t wanted[15] = {1, 3, 2, 7, 6, 5, 4, 15, 14, 13, 12, 11, 10, 9, 8};
  struct wire out = wire_over(bytes, sizeof bytes);
  wire_put8(&out, 1);
  wire_put16(&out, 0x0203);
  wire_put32(&out, 0x04050607);
  wire_put64(&out, UINT64_C(0x08090a0b0c0d0e0f));
  assert_false(out.failed);
  assert_int_equal(wire_left(&out), 0);
  assert_memory_equal(bytes, wanted, sizeof bytes);

  struct wire in = wire_over(bytes, sizeof bytes);
  assert_int_equal(wire_get8(&in), 1);
  assert_int_equal(wire_get16(&in), 0x0203);
  assert_int_equal(wire_get32(&in), 0x04050607);
  assert_true(wire_get64(&in) == UINT64_C(0x08090a0b0c0d0e0f));
  assert_false(in.failed);
}

static void a_failed_cursor_stays_failed(void **state) {
  (void)state;
  uint8_t bytes[4] = {1, 2, 3, 4}, got[2] = {9, 9};
  struct wire in = wire_over(bytes, sizeof bytes);
  assert_int_equal(wire_get8(&in), 1);
  assert_int_equal(wire_get32(&in), 0);
  assert_true(in.failed);
  assert_int_equal(wire_get8(&in), 0); /* three bytes are left and not returned */
  wire_get_bytes(&in, got, 2);
  assert_int_equal(got[0] | got[1], 0);
  assert_null(wire_take(&in, 0));

  struct wire out = wire_over(bytes, sizeof bytes);
  wire_put64(&out, 0);
  assert_true(out.failed);
  wire_put8(&out, 77);
  assert_int_equal(bytes[0], 1);
}

static void an_empty_buffer_has_no_room(void **state) {
  (void)state;
  struct wire wire = wire_over(NULL, 0);
  wire_put_bytes(&wire, "", 0);
  assert_false(wire.failed);
  assert_int_equal(wire_get8(&wire), 0);
  assert_true(wire.failed);
}

static void strings_round_trip(void **state) {
  (void)state;
  uint8_t bytes[16] = {0};
  char text[6];
  struct wire out = wire_over(bytes, sizeof bytes);
  wire_put_string(&out, "");
  wire_put_string(&out, "haul!");
  assert_false(out.failed);
  assert_int_equal(wire_left(&out), 16 - 2 - 7);
  struct wire in = wire_over(bytes, sizeof bytes);
  wire_get_string(&in, text, sizeof text);
  assert_string_equal(text, "");
  wire_get_string(&in, text, sizeof text); /* exactly fits with its terminator */
  assert_string_equal(text, "haul!");
  assert_false(in.failed);
}

static void control_characters_are_not_sent(void **state) {
  (void)state;
  uint8_t bytes[16] = {0};
  char text[16];
  struct wire out = wire_over(bytes, sizeof bytes);
  wire_put_string(&out, "a\n\033[m\377z");
  struct wire in = wire_over(bytes, sizeof bytes);
  wire_get_string(&in, text, sizeof text);
  assert_string_equal(text, "a??[m?z");
}

/* `length` bytes behind a length field of `claimed`. */
static bool string_fails(unsigned claimed, const char *body, size_t length, size_t room) {
  uint8_t bytes[64] = {0};
  char text[64] = "untouched";
  struct wire out = wire_over(bytes, sizeof bytes);
  wire_put16(&out, (uint16_t)claimed);
  wire_put_bytes(&out, body, length);
  struct wire in = wire_over(bytes, 2 + length);
  wire_get_string(&in, text, room);
  assert_true(!in.failed || text[0] == '\0');
  return in.failed;
}

static void bad_strings_fail_and_leave_an_empty_one(void **state) {
  (void)state;
  assert_false(string_fails(4, "good", 4, 5));
  assert_true(string_fails(4, "good", 4, 4)); /* no room for the terminator */
  assert_true(string_fails(5, "good", 4, 64));
  assert_true(string_fails(65535, "good", 4, 64));
  assert_true(string_fails(4, "go\0d", 4, 64));
  assert_true(string_fails(1, "\0", 1, 64));
  assert_true(string_fails(3, "\033[m", 3, 64)); /* no control characters */
  assert_true(string_fails(1, "\177", 1, 64));
  assert_true(string_fails(2, "\302\233", 2, 64));
  assert_true(string_fails(1, "", 0, 64));
}

struct all {
  uint8_t small;
  int32_t negative;
  uint64_t large;
  uint8_t bytes[3];
  char text[8];
};

static void list_fields(struct wire *wire, struct all *all) {
  WIRE(wire, 8, all->small);
  WIRE(wire, 32, all->negative);
  WIRE(wire, 64, all->large);
  wire_bytes(wire, all->bytes, sizeof all->bytes);
  wire_string(wire, all->text, sizeof all->text);
}

static void one_list_of_fields_writes_and_reads(void **state) {
  (void)state;
  uint8_t bytes[64];
  struct all all, got;
  memset(&got, 0, sizeof got);
  memset(&all, 0, sizeof all); /* the padding, too */
  all.small = 200;
  all.negative = -28;
  all.large = UINT64_MAX - 1;
  memcpy(all.bytes, "\1\2\3", 3);
  strcpy(all.text, "text");
  struct wire out = wire_over(bytes, sizeof bytes);
  list_fields(&out, &all);
  size_t length = sizeof bytes - wire_left(&out);
  assert_int_equal(length, 1 + 4 + 8 + 3 + 2 + 4);
  struct wire in = wire_from(bytes, length);
  list_fields(&in, &got);
  assert_false(in.failed);
  assert_int_equal(wire_left(&in), 0);
  assert_memory_equal(&got, &all, sizeof all);
  in = wire_from(bytes, length - 1);
  list_fields(&in, &got);
  assert_true(in.failed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fields_are_little_endian),
      cmocka_unit_test(a_failed_cursor_stays_failed),
      cmocka_unit_test(an_empty_buffer_has_no_room),
      cmocka_unit_test(strings_round_trip),
      cmocka_unit_test(control_characters_are_not_sent),
      cmocka_unit_test(bad_strings_fail_and_leave_an_empty_one),
      cmocka_unit_test(one_list_of_fields_writes_and_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
