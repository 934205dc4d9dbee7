/* SPDX-License-Identifier: MIT
 * Heads of control frames. */
#include "support/check.h"

#include "core/wire.h"
#include "node/control.h"

#define MAGIC 0x4c544348u /* on the wire: HCTL */

static int parse(uint32_t magic, unsigned type, unsigned zero, uint32_t length,
                 struct control_frame *frame) {
  uint8_t head[CONTROL_HEAD] = {0};
  struct wire wire = wire_over(head, sizeof head);
  wire_put32(&wire, magic);
  wire_put16(&wire, (uint16_t)type);
  wire_put16(&wire, (uint16_t)zero);
  wire_put32(&wire, length);
  wire_put32(&wire, 0x01020304);
  assert_int_equal(wire_left(&wire), 0);
  return control_parse(head, frame);
}

static void known_types_are_read(void **state) {
  (void)state;
  for (unsigned type = CONTROL_READY; type <= CONTROL_LAST; type++) {
    struct control_frame frame;
    assert_int_equal(parse(MAGIC, type, 0, 12, &frame), 0);
    assert_int_equal(frame.type, type);
    assert_int_equal(frame.length, 12);
    assert_int_equal(frame.request, 0x01020304);
  }
}

static void unknown_types_are_refused(void **state) {
  (void)state;
  struct control_frame frame;
  for (unsigned type = 0; type <= UINT16_MAX; type++)
    if (type < CONTROL_READY || type > CONTROL_LAST)
      assert_int_equal(parse(MAGIC, type, 0, 12, &frame), HAUL_EPROTO);
}

static void magic_and_zero_are_looked_at(void **state) {
  (void)state;
  struct control_frame frame;
  for (unsigned bit = 0; bit < 32; bit++)
    assert_int_equal(parse(MAGIC ^ 1u << bit, CONTROL_PING, 0, 0, &frame), HAUL_EPROTO);
  for (unsigned bit = 0; bit < 16; bit++)
    assert_int_equal(parse(MAGIC, CONTROL_PING, 1u << bit, 0, &frame), HAUL_EPROTO);
}

static void each_type_has_its_bound(void **state) {
  (void)state;
  static const struct {
    unsigned type;
    uint32_t length;
    int code;
  } cases[] = {
      {CONTROL_LOOKUP, 0, 0},
      {CONTROL_LOOKUP, CONTROL_BODY_MAX, 0},
      {CONTROL_LOOKUP, CONTROL_BODY_MAX + 1, HAUL_EPROTO},
      {CONTROL_NAMES, UINT32_MAX, HAUL_EPROTO},
      {CONTROL_MESSAGE, 8, 0}, /* a tag and no bytes */
      {CONTROL_MESSAGE, 7, HAUL_EPROTO},
      {CONTROL_MESSAGE, 0, HAUL_EPROTO},
      {CONTROL_MESSAGE, HAUL_MESSAGE_MAX + 8, 0},
      {CONTROL_MESSAGE, HAUL_MESSAGE_MAX + 9, HAUL_EPROTO},
      {CONTROL_MESSAGE, UINT32_MAX, HAUL_EPROTO},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct control_frame frame;
    assert_int_equal(parse(MAGIC, cases[i].type, 0, cases[i].length, &frame), cases[i].code);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_types_are_read),
      cmocka_unit_test(unknown_types_are_refused),
      cmocka_unit_test(magic_and_zero_are_looked_at),
      cmocka_unit_test(each_type_has_its_bound),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
