/* SPDX-License-Identifier: MIT
 * Frames of tcp: the parsers accept what the packers write, and nothing else. */
#include "support/check.h"

#include <string.h>

#include "fabric/tcp/frame.h"

static const struct frame good[] = {
    {FRAME_WRITE, 0, 1, 0, 7, UINT64_MAX, 1},
    {FRAME_WRITE, FRAME_CHECKSUM, FRAME_SEGMENTS_MAX, 0, UINT64_MAX, 1, FRAME_PAYLOAD_MAX},
    {FRAME_READ, FRAME_CHECKSUM, 2, 0, 0, 0, 2},
    {FRAME_ACK, 0, 0, 0, 9, 0, 0},
    {FRAME_ACK, 0, 0, HAUL_ESTALE, 9, 0, 0},
    {FRAME_ACK, 0, 0, HAUL_EINVAL, 9, 0, 0},
    {FRAME_DATA, 0, 0, 0, 9, 3, FRAME_PAYLOAD_MAX},
    {FRAME_FETCH_ADD, 0, 2, 0, 9, 3, 8},
    {FRAME_COMPARE_SWAP, 0, 2, 0, UINT64_MAX, 3, 8},
    {FRAME_PARK, 0, 0, 0, 0, 0, 0},
    {FRAME_PARKED, 0, 0, 0, 0, 0, 0},
    {FRAME_UNPARKED, 0, 0, 0, 0, 0, 0},
};

static int parse(const uint8_t *bytes, struct frame *frame) {
  const char *what = NULL;
  int code = frame_parse(bytes, frame, &what);
  assert_true(code == 0 || (code == HAUL_EPROTO && what && what[0]));
  return code;
}

static void packed_headers_parse_to_the_same_fields(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(good); i++) {
    uint8_t bytes[FRAME_HEADER], again[FRAME_HEADER];
    struct frame frame;
    frame_pack(&good[i], bytes);
    assert_int_equal(parse(bytes, &frame), 0);
    frame_pack(&frame, again);
    assert_memory_equal(bytes, again, sizeof bytes);
    assert_int_equal(frame.type, good[i].type);
    assert_int_equal(frame.flags, good[i].flags);
    assert_int_equal(frame.count, good[i].count);
    assert_int_equal(frame.status, good[i].status);
    assert_true(frame.request == good[i].request && frame.handle == good[i].handle);
    assert_true(frame.payload == good[i].payload);
  }
}

static void each_invalid_field_is_rejected(void **state) {
  (void)state;
  const struct frame bad[] = {
      {0, 0, 1, 0, 7, 7, 1},
      {10, 0, 1, 0, 7, 7, 1},
      {FRAME_PARK, FRAME_CHECKSUM, 0, 0, 0, 0, 0},
      {FRAME_PARK, 0, 1, 0, 0, 0, 1},
      {FRAME_PARKED, 0, 0, HAUL_EPEER, 0, 0, 0},
      {FRAME_PARKED, 0, 0, 0, 1, 0, 0},
      {FRAME_UNPARKED, 0, 0, 0, 0, 1, 0},
      {FRAME_UNPARKED, 0, 0, 0, 0, 0, 1},
      {255, 0, 1, 0, 7, 7, 1},
      {FRAME_WRITE, 2, 1, 0, 7, 7, 1},
      {FRAME_WRITE, 0xff, 1, 0, 7, 7, 1},
      {FRAME_WRITE, 0, 0, 0, 7, 7, 1},
      {FRAME_WRITE, 0, FRAME_SEGMENTS_MAX + 1, 0, 7, 7, FRAME_PAYLOAD_MAX},
      {FRAME_WRITE, 0, UINT16_MAX, 0, 7, 7, FRAME_PAYLOAD_MAX},
      {FRAME_WRITE, 0, 1, 0, 7, 7, 0},
      {FRAME_WRITE, 0, 1, 0, 7, 7, FRAME_PAYLOAD_MAX + 1},
      {FRAME_WRITE, 0, 1, 0, 7, 7, UINT64_MAX},
      {FRAME_WRITE, 0, 1, HAUL_EPEER, 7, 7, 1},
      {FRAME_READ, 0, 0, 0, 7, 7, 1},
      {FRAME_READ, 0, 1, 0, 7, 7, 0},
      {FRAME_READ, 0, 1, 1, 7, 7, 1},
      {FRAME_ACK, 0, 1, 0, 7, 7, 0},
      {FRAME_ACK, 0, 0, 0, 7, 7, 1},
      {FRAME_ACK, 0, 0, 1, 7, 7, 0},
      {FRAME_ACK, 0, 0, HAUL_EPATH, 7, 7, 0},
      {FRAME_ACK, 0, 0, HAUL_EPATH - 1, 7, 7, 0},
      {FRAME_ACK, 0, 0, INT32_MIN, 7, 7, 0},
      {FRAME_DATA, 0, 1, 0, 7, 7, 1},
      {FRAME_DATA, 0, 0, 0, 7, 7, 0},
      {FRAME_DATA, 0, 0, HAUL_EPEER, 7, 7, 1},
      {FRAME_FETCH_ADD, 0, 1, 0, 7, 7, 8},
      {FRAME_FETCH_ADD, 0, 3, 0, 7, 7, 8},
      {FRAME_FETCH_ADD, 0, 2, 0, 7, 7, 7},
      {FRAME_FETCH_ADD, 0, 2, 0, 7, 7, 9},
      {FRAME_COMPARE_SWAP, 0, 2, 0, 7, 7, 16},
      {FRAME_COMPARE_SWAP, 0, 0, 0, 7, 7, 8},
      {FRAME_COMPARE_SWAP, FRAME_CHECKSUM, 2, 0, 7, 7, 8},
      {FRAME_COMPARE_SWAP, 0, 2, HAUL_EPEER, 7, 7, 8},
  };
  for (size_t i = 0; i < COUNT(bad); i++) {
    uint8_t bytes[FRAME_HEADER];
    struct frame frame;
    frame_pack(&bad[i], bytes);
    assert_int_equal(parse(bytes, &frame), HAUL_EPROTO);
  }
}

static void magic_and_reserved_bytes_are_checked(void **state) {
  (void)state;
  for (size_t at = 0; at < FRAME_HEADER; at++) {
    uint8_t bytes[FRAME_HEADER];
    struct frame frame;
    frame_pack(&good[0], bytes);
    bytes[at] ^= 0x80;
    if (at < 4 || at >= 36)
      assert_int_equal(parse(bytes, &frame), HAUL_EPROTO);
  }
}

/* No bit of an accepted header is ignored: packing it again gives the same bytes. */
static void an_accepted_header_has_one_encoding(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(good); i++) {
    for (size_t bit = 0; bit < 8 * FRAME_HEADER; bit++) {
      uint8_t bytes[FRAME_HEADER], again[FRAME_HEADER];
      struct frame frame;
      frame_pack(&good[i], bytes);
      bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
      if (parse(bytes, &frame) != 0)
        continue;
      frame_pack(&frame, again);
      assert_memory_equal(bytes, again, sizeof bytes);
    }
  }
}

static int parse_segments_of(uint8_t type, const struct frame_segment *segments, uint16_t count,
                             uint64_t payload) {
  uint8_t bytes[FRAME_SEGMENT * FRAME_SEGMENTS_MAX];
  struct frame_segment got[FRAME_SEGMENTS_MAX];
  const char *what = NULL;
  struct frame frame = {.type = type, .count = count, .payload = payload};
  for (uint16_t i = 0; i < count; i++)
    frame_pack_segment(&segments[i], bytes + i * FRAME_SEGMENT);
  int code = frame_parse_segments(bytes, &frame, got, &what);
  assert_true(code == 0 || (code == HAUL_EPROTO && what && what[0]));
  if (code == 0)
    assert_memory_equal(got, segments, count * sizeof *segments);
  return code;
}

static int parse_segments(const struct frame_segment *segments, uint16_t count, uint64_t payload) {
  return parse_segments_of(FRAME_WRITE, segments, count, payload);
}

/* One segment of 8 bytes and two operands; the second one of a FETCH_ADD is 0. */
static void operands_of_atomics_are_checked(void **state) {
  (void)state;
  static const struct {
    uint8_t type;
    struct frame_segment segments[2];
    int code;
  } cases[] = {
      {FRAME_FETCH_ADD, {{0, 8}, {UINT64_MAX, 0}}, 0},
      {FRAME_FETCH_ADD, {{UINT64_MAX - 8, 8}, {0, 0}}, 0},
      {FRAME_COMPARE_SWAP, {{64, 8}, {UINT64_MAX, UINT64_MAX}}, 0},
      {FRAME_COMPARE_SWAP, {{64, 8}, {0, 0}}, 0},
      {FRAME_FETCH_ADD, {{0, 8}, {1, 1}}, HAUL_EPROTO},
      {FRAME_FETCH_ADD, {{0, 0}, {1, 0}}, HAUL_EPROTO},
      {FRAME_FETCH_ADD, {{0, 7}, {1, 0}}, HAUL_EPROTO},
      {FRAME_FETCH_ADD, {{0, 9}, {1, 0}}, HAUL_EPROTO},
      {FRAME_COMPARE_SWAP, {{0, 4}, {4, 4}}, HAUL_EPROTO},
      {FRAME_COMPARE_SWAP, {{UINT64_MAX - 7, 8}, {1, 2}}, HAUL_EPROTO},
      {FRAME_COMPARE_SWAP, {{0, UINT64_MAX}, {1, 2}}, HAUL_EPROTO},
  };
  for (size_t i = 0; i < COUNT(cases); i++)
    assert_int_equal(parse_segments_of(cases[i].type, cases[i].segments, 2, 8), cases[i].code);
}

static void segments_must_add_up_to_the_payload(void **state) {
  (void)state;
  static const struct {
    struct frame_segment segments[3];
    uint64_t payload;
    int code;
  } cases[] = {
      {{{0, 1}, {1, 2}, {9, 3}}, 6, 0},
      {{{UINT64_MAX - 1, 1}, {0, 1}, {0, 1}}, 3, 0},
      {{{0, 1}, {1, 2}, {9, 3}}, 7, HAUL_EPROTO},
      {{{0, 1}, {1, 2}, {9, 3}}, 5, HAUL_EPROTO},
      {{{0, 3}, {1, 0}, {9, 3}}, 6, HAUL_EPROTO},
      {{{0, 3}, {1, 3}, {9, 0}}, 6, HAUL_EPROTO},
      {{{0, 0}, {1, 3}, {9, 3}}, 6, HAUL_EPROTO},
      {{{UINT64_MAX, 1}, {0, 1}, {0, 1}}, 3, HAUL_EPROTO},
      {{{0, UINT64_MAX}, {1, 7}, {9, 1}}, 7, HAUL_EPROTO}, /* the sum wraps to 7 */
      {{{0, UINT64_MAX - 2}, {1, 2}, {9, 8}}, 7, HAUL_EPROTO},
  };
  for (size_t i = 0; i < COUNT(cases); i++)
    assert_int_equal(parse_segments(cases[i].segments, 3, cases[i].payload), cases[i].code);
}

static void the_maximum_of_segments_is_accepted(void **state) {
  (void)state;
  struct frame_segment segments[FRAME_SEGMENTS_MAX];
  for (size_t i = 0; i < COUNT(segments); i++)
    segments[i] = (struct frame_segment){i * 5000, 4096};
  assert_int_equal(parse_segments(segments, FRAME_SEGMENTS_MAX, 4096 * FRAME_SEGMENTS_MAX), 0);
}

static void trailers_are_checked(void **state) {
  (void)state;
  static const int32_t statuses[] = {0, HAUL_EINVAL, HAUL_ESTALE, 1, HAUL_EPATH, INT32_MAX};
  for (size_t i = 0; i < COUNT(statuses); i++) {
    uint8_t bytes[FRAME_TRAILER];
    const char *what = NULL;
    struct frame_trailer trailer = {UINT64_C(0x0123456789abcdef), statuses[i]}, got;
    frame_pack_trailer(&trailer, bytes);
    assert_int_equal(frame_parse_trailer(bytes, &got, &what), i < 3 ? 0 : HAUL_EPROTO);
    assert_true(got.checksum == trailer.checksum || i >= 3);
    for (size_t at = 12; at < FRAME_TRAILER; at++) {
      bytes[at] ^= 1;
      assert_int_equal(frame_parse_trailer(bytes, &got, &what), HAUL_EPROTO);
      assert_non_null(what);
      bytes[at] ^= 1;
    }
  }
}

/* Segments in another order are another payload. */
static void the_checksum_depends_on_the_order_of_segments(void **state) {
  (void)state;
  uint64_t ab = frame_checksum(frame_checksum(0, 0xa), 0xb);
  uint64_t ba = frame_checksum(frame_checksum(0, 0xb), 0xa);
  assert_true(ab != ba);
  assert_true(frame_checksum(0, 5) == 5); /* a single segment: its own */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(packed_headers_parse_to_the_same_fields),
      cmocka_unit_test(each_invalid_field_is_rejected),
      cmocka_unit_test(magic_and_reserved_bytes_are_checked),
      cmocka_unit_test(an_accepted_header_has_one_encoding),
      cmocka_unit_test(segments_must_add_up_to_the_payload),
      cmocka_unit_test(operands_of_atomics_are_checked),
      cmocka_unit_test(the_maximum_of_segments_is_accepted),
      cmocka_unit_test(trailers_are_checked),
      cmocka_unit_test(the_checksum_depends_on_the_order_of_segments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
