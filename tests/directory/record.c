/* SPDX-License-Identifier: MIT
 * Base64 of etcd's JSON: strict, and the bytes come back as they were. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "directory/record.h"

static char *decode(const char *text, size_t *length) {
  json_t *string = json_string(text);
  char *bytes = bytes_of_json(string, length);
  json_decref(string);
  return bytes;
}

static void malformed_base64_is_rejected(void **state) {
  static const char *const bad[] = {"=",    "==",    "====",  "A===",     "AA=",      "AAA",
                                    "A",    "AA==A", "=AAA",  "AA=A",     "AAA=AAAA", "AA==AAAA",
                                    "A A=", "AAA\n", "AAA-",  "AAA_",     "AAA\x7f",  "AAA\xc3\xa4",
                                    "AB==", "AAB=",  "AAAA=", "AAAA====", " AAA",     "AAA ="};
  size_t length;
  (void)state;
  for (size_t i = 0; i < COUNT(bad); i++)
    if (decode(bad[i], &length))
      fail_msg("'%s' was accepted", bad[i]);
  assert_null(bytes_of_json(NULL, &length));
}

static void valid_base64_is_decoded(void **state) {
  static const struct {
    const char *text, *bytes;
  } good[] = {{"", ""},        {"Zg==", "f"},         {"Zm8=", "fo"},
              {"Zm9v", "foo"}, {"Zm9vYmE=", "fooba"}, {"+/+/", "\xfb\xff\xbf"}};
  (void)state;
  for (size_t i = 0; i < COUNT(good); i++) {
    size_t length;
    char *bytes = decode(good[i].text, &length);
    assert_non_null(bytes);
    assert_string_equal(bytes, good[i].bytes);
    assert_int_equal(length, strlen(good[i].bytes));
    free(bytes);
  }
}

static void encoded_bytes_are_decoded_again(void **state) {
  char bytes[256];
  (void)state;
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (char)(255 - i);
  for (size_t size = 0; size <= sizeof bytes; size++) {
    size_t length;
    json_t *string = json_bytes(bytes, size);
    char *decoded = bytes_of_json(string, &length);
    assert_non_null(decoded);
    assert_int_equal(length, size);
    assert_memory_equal(decoded, bytes, size);
    free(decoded);
    json_decref(string);
  }
}

static size_t allocations_left;

static void *limited_malloc(size_t size) {
  return allocations_left > 0 && allocations_left-- ? malloc(size) : NULL;
}

static const char *format_place(struct haul_place place, char *text, size_t size) {
  (void)place;
  snprintf(text, size, "host");
  return text;
}

static int parse_place(const char *text, struct haul_place *place) {
  *place = (struct haul_place){HAUL_HOST, 0};
  return strcmp(text, "host");
}

/* Other nodes would ignore an entry without its length, or know one address less. */
static void a_value_is_whole_or_there_was_no_memory(void **state) {
  const struct directory_library library = {.place_format = format_place,
                                            .place_parse = parse_place};
  const struct haul_directory_entry entry = {.kind = HAUL_DIRECTORY_REGION,
                                             .length = 10,
                                             .rights = HAUL_READ,
                                             .address_count = 2,
                                             .addresses = {"tcp://10.0.0.1:1", "unix:///a"}};
  char *text = NULL;
  (void)state;
  json_set_alloc_funcs(limited_malloc, free);
  for (size_t most = 0; !text; most++) {
    assert_true(most < 1000);
    allocations_left = most;
    text = value_of(&library, &entry);
  }
  json_set_alloc_funcs(malloc, free);
  struct haul_directory_entry read = {.kind = HAUL_DIRECTORY_REGION};
  assert_true(value_parse(&library, text, strlen(text), &read));
  assert_int_equal(read.address_count, 2);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(malformed_base64_is_rejected),
      cmocka_unit_test(valid_base64_is_decoded),
      cmocka_unit_test(encoded_bytes_are_decoded_again),
      cmocka_unit_test(a_value_is_whole_or_there_was_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
