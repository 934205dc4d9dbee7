/* SPDX-License-Identifier: MIT
 * What names and keys may do to a terminal and to JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache.h"
#include "common/output.h"
#include "common/text.h"

static const struct {
  const char *text, *clean, *json; /* what terminals and JSON get */
} rows[] = {
    {"plain", "plain", "plain"},
    {"\x1b[31m", "?[31m", "\\u001b[31m"},
    {"a\x7f", "a?", "a\\u007f"},
    {"\xc2\x9b", "??", "\\u009b"},
    {"\xc2\xa0", "\xc2\xa0", "\xc2\xa0"},
    {"\xd8\x9c", "??", "\\u061c"},
    {"\xe2\x80\x8d", "\xe2\x80\x8d", "\xe2\x80\x8d"}, /* U+200D joins parts of emoji */
    {"\xe2\x80\x8e", "???", "\\u200e"},
    {"\xe2\x80\x8f", "???", "\\u200f"},
    {"\xe2\x80\xa7", "\xe2\x80\xa7", "\xe2\x80\xa7"},
    {"\xe2\x80\xa8", "???", "\\u2028"},
    {"\xe2\x80\xa9", "???", "\\u2029"},
    {"\xe2\x80\xaa", "???", "\\u202a"},
    {"a\xe2\x80\xae"
     "b",
     "a???b", "a\\u202eb"},
    {"\xe2\x80\xaf", "\xe2\x80\xaf", "\xe2\x80\xaf"},
    {"\xe2\x81\xa5", "\xe2\x81\xa5", "\xe2\x81\xa5"},
    {"\xe2\x81\xa6", "???", "\\u2066"},
    {"\xe2\x81\xa9", "???", "\\u2069"},
    {"\xe2\x81\xaa", "\xe2\x81\xaa", "\xe2\x81\xaa"},
    {"\xef\xbb\xbf", "???", "\\ufeff"},
    {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    {"\xff"
     "a",
     "?a", "\\ufffda"},
    {"\xe2\x80", "??", "\\ufffd\\ufffd"}, /* the start of a character */
};

static void text_for_terminals_is_clean(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[32];
    snprintf(text, sizeof text, "%s", rows[i].text);
    text_clean(text);
    assert_string_equal(text, rows[i].clean);
  }
}

static void text_in_json_is_escaped(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char wanted[64], *got = NULL;
    size_t length;
    struct json json = {.out = open_memstream(&got, &length)};
    assert_non_null(json.out);
    json_text(&json, NULL, rows[i].text);
    fclose(json.out);
    snprintf(wanted, sizeof wanted, "\"%s\"", rows[i].json);
    assert_string_equal(got, wanted);
    free(got);
  }
}

static void keys_in_json_are_exact(void **state) {
  static const struct {
    const char *key, *json;
    size_t length;
  } keys[] = {
      {"plain", "\"key\": \"plain\"", 5},
      {"\x1b\xe2\x80\xae", "\"key\": \"\\u001b\\u202e\"", 4},
      {"a\xff", "\"key\": \"a\\ufffd\", \"key_hex\": \"61ff\"", 2},
      {"a\0b", "\"key\": \"a\", \"key_hex\": \"610062\"", 3},
      {"\0", "\"key\": \"\", \"key_hex\": \"00\"", 1},
  };
  (void)state;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    char wanted[128], *got = NULL;
    size_t length;
    struct json json = {.out = open_memstream(&got, &length), .flat = 1};
    assert_non_null(json.out);
    json_object(&json, NULL);
    cache_key_json(&json, keys[i].key, keys[i].length);
    json_end_object(&json);
    fclose(json.out);
    snprintf(wanted, sizeof wanted, "{%s}\n", keys[i].json);
    assert_string_equal(got, wanted);
    free(got);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_for_terminals_is_clean),
      cmocka_unit_test(text_in_json_is_escaped),
      cmocka_unit_test(keys_in_json_are_exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
