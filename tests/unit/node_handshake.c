/* SPDX-License-Identifier: MIT
 * The first bytes of a connection: what is packed is parsed, in any cut nothing else is. */
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

#include "node/handshake.h"

static struct hello control_hello(void) {
  struct hello hello = {.lowest = 1,
                        .highest = PROTOCOL_HIGHEST,
                        .role = ROLE_CONTROL,
                        .name = "a node",
                        .message_window = 99,
                        .window = 17};
  memset(hello.node_id, 0xa1, 16);
  memset(hello.boot, 0xb2, 16);
  return hello;
}

static struct hello channel_hello(void) {
  struct hello hello = {.lowest = 1,
                        .highest = PROTOCOL_HIGHEST,
                        .role = ROLE_CHANNEL,
                        .transport = "tcp",
                        .index = 15};
  memset(hello.node_id, 0xa1, 16);
  memset(hello.boot, 0xb2, 16);
  memset(hello.token, 0xc3, 16);
  return hello;
}

static struct welcome accepting(void) {
  struct welcome welcome = {.version = PROTOCOL_HIGHEST,
                            .lowest = PROTOCOL_LOWEST,
                            .highest = PROTOCOL_HIGHEST + 1,
                            .message_window = 77,
                            .window = 128};
  memset(welcome.node_id, 0xa1, 16);
  memset(welcome.boot, 0xb2, 16);
  memset(welcome.token, 0xc3, 16);
  memset(welcome.share, 0xd4, 16);
  memset(welcome.shared, 0xe5, 16);
  memset(welcome.name, 'n', sizeof welcome.name - 1);
  memset(welcome.companion, 'c', sizeof welcome.companion - 1);
  return welcome;
}

static struct welcome refusing(void) {
  struct welcome welcome = {.lowest = 1, .highest = 2, .code = HAUL_ELIMIT};
  memset(welcome.reason, 'r', sizeof welcome.reason - 1);
  return welcome;
}

static void hellos_come_back(void **state) {
  (void)state;
  struct hello hellos[] = {control_hello(), channel_hello(), control_hello()};
  memset(hellos[2].name, 'x', sizeof hellos[2].name - 1);
  for (size_t i = 0; i < COUNT(hellos); i++) {
    uint8_t bytes[HANDSHAKE_MAX];
    struct hello got;
    size_t length = hello_pack(&hellos[i], bytes);
    assert_in_range(length, HANDSHAKE_HEAD + 1, HANDSHAKE_MAX);
    assert_int_equal(hello_body(bytes), length - HANDSHAKE_HEAD);
    assert_int_equal(hello_parse(bytes, length, &got), 0);
    assert_memory_equal(&got, &hellos[i], sizeof got);
  }
}

static void welcomes_are_parsed_as_sent(void **state) {
  (void)state;
  struct welcome welcomes[] = {accepting(), refusing()};
  for (size_t i = 0; i < COUNT(welcomes); i++) {
    uint8_t bytes[HANDSHAKE_MAX];
    struct welcome got;
    size_t length = welcome_pack(&welcomes[i], bytes);
    assert_in_range(length, HANDSHAKE_HEAD + 1, HANDSHAKE_MAX);
    assert_int_equal(welcome_body(bytes), length - HANDSHAKE_HEAD);
    assert_int_equal(welcome_parse(bytes, length, &got), 0);
    assert_memory_equal(&got, &welcomes[i], sizeof got);
  }
}

/* The parsers get exactly the bytes there are, so that the sanitizer sees one read too many. */
static int parse_hello(const uint8_t *bytes, size_t length) {
  uint8_t *exact = malloc(length ? length : 1);
  struct hello hello;
  memcpy(exact, bytes, length);
  int code = hello_parse(exact, length, &hello);
  free(exact);
  return code;
}

static int parse_welcome(const uint8_t *bytes, size_t length) {
  uint8_t *exact = malloc(length ? length : 1);
  struct welcome welcome;
  memcpy(exact, bytes, length);
  int code = welcome_parse(exact, length, &welcome);
  free(exact);
  return code;
}

/* With the length that the head announces, and with the number of bytes present. */
static void cut(const uint8_t *whole, size_t length, size_t length_at,
                int (*parse)(const uint8_t *, size_t)) {
  uint8_t bytes[HANDSHAKE_MAX + 8] = {0};
  for (size_t left = 0; left < length; left++) {
    memcpy(bytes, whole, length);
    assert_int_equal(parse(bytes, left), HAUL_EPROTO);
    if (left < HANDSHAKE_HEAD)
      continue;
    bytes[length_at] = (uint8_t)(left - HANDSHAKE_HEAD);
    bytes[length_at + 1] = (uint8_t)((left - HANDSHAKE_HEAD) >> 8);
    assert_int_equal(parse(bytes, left), HAUL_EPROTO);
  }
  memcpy(bytes, whole, length);
  assert_int_equal(parse(bytes, length), 0);
  assert_int_equal(parse(bytes, length + 1), HAUL_EPROTO);
  bytes[length_at] = (uint8_t)(length + 1 - HANDSHAKE_HEAD);
  bytes[length_at + 1] = (uint8_t)((length + 1 - HANDSHAKE_HEAD) >> 8);
  assert_int_equal(parse(bytes, length + 1), HAUL_EPROTO); /* a byte too many */
}

static void a_cut_at_any_byte_is_refused(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hellos[] = {control_hello(), channel_hello()};
  struct welcome welcomes[] = {accepting(), refusing()};
  for (size_t i = 0; i < 2; i++) {
    size_t length = hello_pack(&hellos[i], bytes);
    cut(bytes, length, 12, parse_hello);
    length = welcome_pack(&welcomes[i], bytes);
    cut(bytes, length, 14, parse_welcome);
  }
}

static void the_magic_is_looked_at(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello = control_hello();
  struct welcome welcome = accepting();
  for (size_t at = 0; at < 8; at++) {
    size_t length = hello_pack(&hello, bytes);
    bytes[at] ^= 1;
    assert_int_equal(hello_body(bytes), -1);
    assert_int_equal(parse_hello(bytes, length), HAUL_EPROTO);
    length = welcome_pack(&welcome, bytes);
    bytes[at] ^= 1;
    assert_int_equal(welcome_body(bytes), -1);
    assert_int_equal(parse_welcome(bytes, length), HAUL_EPROTO);
  }
  size_t length = hello_pack(&hello, bytes); /* nor is one the other */
  assert_int_equal(parse_welcome(bytes, length), HAUL_EPROTO);
}

static void a_body_has_its_bound(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello = control_hello();
  hello_pack(&hello, bytes);
  bytes[12] = (HANDSHAKE_MAX - HANDSHAKE_HEAD) & 0xff;
  bytes[13] = (HANDSHAKE_MAX - HANDSHAKE_HEAD) >> 8;
  assert_int_equal(hello_body(bytes), HANDSHAKE_MAX - HANDSHAKE_HEAD);
  bytes[12]++;
  assert_int_equal(hello_body(bytes), -1);
  bytes[12] = bytes[13] = 0xff;
  assert_int_equal(hello_body(bytes), -1);
}

static void a_version_mismatch_is_reported(void **state) {
  (void)state;
  static const struct {
    uint16_t lowest, highest;
    int code;
  } cases[] = {
      {PROTOCOL_LOWEST, PROTOCOL_HIGHEST, 0},  {0, UINT16_MAX, 0},
      {PROTOCOL_HIGHEST, UINT16_MAX, 0},       {PROTOCOL_HIGHEST + 1, UINT16_MAX, HAUL_EVERSION},
      {0, PROTOCOL_LOWEST - 1, HAUL_EVERSION},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    uint8_t bytes[HANDSHAKE_MAX];
    struct hello got, hello = control_hello();
    hello.lowest = cases[i].lowest;
    hello.highest = cases[i].highest;
    size_t length = hello_pack(&hello, bytes);
    assert_int_equal(hello_parse(bytes, length, &got), cases[i].code);
    assert_int_equal(got.lowest, cases[i].lowest);
    assert_int_equal(got.highest, cases[i].highest);
  }
}

/* A newer peer's body may be anything: the head alone tells the versions. */
static void a_newer_body_is_not_read(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello got, hello = control_hello();
  hello.lowest = PROTOCOL_HIGHEST + 1;
  hello.highest = PROTOCOL_HIGHEST + 4;
  size_t length = hello_pack(&hello, bytes);
  memset(bytes + HANDSHAKE_HEAD, 0xff, length - HANDSHAKE_HEAD);
  assert_int_equal(hello_parse(bytes, length, &got), HAUL_EVERSION);
  assert_int_equal(got.lowest, PROTOCOL_HIGHEST + 1);
}

static void a_welcome_in_another_version_is_refused(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct welcome got, welcome = accepting();
  welcome.version = welcome.highest = PROTOCOL_HIGHEST + 1;
  size_t length = welcome_pack(&welcome, bytes);
  assert_int_equal(welcome_parse(bytes, length, &got), HAUL_EVERSION);
  assert_int_equal(got.highest, PROTOCOL_HIGHEST + 1);
}

static void a_refusal_needs_a_code(void **state) {
  (void)state;
  static const int32_t bad[] = {0, 1, HAUL_EAUTH - 1, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < COUNT(bad); i++) {
    uint8_t bytes[HANDSHAKE_MAX];
    struct welcome got, welcome = refusing();
    welcome.code = bad[i];
    size_t length = welcome_pack(&welcome, bytes);
    assert_int_equal(welcome_parse(bytes, length, &got), HAUL_EPROTO);
  }
}

static void an_unknown_role_is_refused(void **state) {
  (void)state;
  for (unsigned role = 0; role < 256; role++) {
    uint8_t bytes[HANDSHAKE_MAX];
    struct hello hello = control_hello();
    size_t length = hello_pack(&hello, bytes);
    bytes[HANDSHAKE_HEAD] = (uint8_t)role;
    if (role != ROLE_CONTROL)
      assert_int_equal(parse_hello(bytes, length), HAUL_EPROTO);
  }
}

static void names_have_their_room(void **state) {
  (void)state;
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello = control_hello();
  memset(hello.name, 'x', sizeof hello.name - 1);
  size_t length = hello_pack(&hello, bytes);
  const size_t name_at = HANDSHAKE_HEAD + 2 + 32;
  assert_int_equal(bytes[name_at], sizeof hello.name - 1);
  bytes[name_at] = sizeof hello.name; /* takes a byte of the window: 64 do not fit */
  assert_int_equal(parse_hello(bytes, length), HAUL_EPROTO);
  bytes[name_at] = sizeof hello.name - 1;
  bytes[name_at + 2] = '\0';
  assert_int_equal(parse_hello(bytes, length), HAUL_EPROTO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hellos_come_back),
      cmocka_unit_test(welcomes_are_parsed_as_sent),
      cmocka_unit_test(a_cut_at_any_byte_is_refused),
      cmocka_unit_test(the_magic_is_looked_at),
      cmocka_unit_test(a_body_has_its_bound),
      cmocka_unit_test(a_version_mismatch_is_reported),
      cmocka_unit_test(a_newer_body_is_not_read),
      cmocka_unit_test(a_welcome_in_another_version_is_refused),
      cmocka_unit_test(a_refusal_needs_a_code),
      cmocka_unit_test(an_unknown_role_is_refused),
      cmocka_unit_test(names_have_their_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
