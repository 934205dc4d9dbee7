/* SPDX-License-Identifier: MIT */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

void check_failure(int status, int code, const char *call, const char *file, int line) {
  const struct haul_error *last = haul_error_last();
  if (status != code) {
    print_error("%s: %s (%s), wanted %s\n", call, haul_error_name(status),
                status < 0 ? last->text : "", haul_error_name(code));
    _fail(file, line);
  }
  if (last->code != code || !last->text[0] || !last->hint[0]) {
    print_error("%s: the detail says %s, text '%s', hint '%s'\n", call, haul_error_name(last->code),
                last->text, last->hint);
    _fail(file, line);
  }
}

void check_success(int status, const char *call, const char *file, int line) {
  if (status == 0)
    return;
  const struct haul_error *last = haul_error_last();
  print_error("%s: %s: %s: %s (%s)\n", call, haul_error_name(status), last->object, last->text,
              last->hint);
  _fail(file, line);
}

#define CHUNK 512 /* words */

/* splitmix64's finaliser (Steele, Lea, Flood 2014) over the number of the 8-byte word. Not
 * instrumented, as that would dominate a test's time; sanitizers check its users. */
__attribute__((no_sanitize("address", "thread"))) static void
make_words(uint64_t words[CHUNK], size_t first, uint64_t seed) {
  for (size_t i = 0; i < CHUNK; i++) {
    uint64_t z = (first + i + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    words[i] = z ^ z >> 31;
  }
}

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

void pattern_fill(void *bytes, size_t length, uint64_t seed) {
  uint64_t words[CHUNK];
  for (size_t at = 0; at < length; at += sizeof words) {
    make_words(words, at / 8, seed);
    memcpy((uint8_t *)bytes + at, words, least(length - at, sizeof words));
  }
}

void pattern_check(const void *bytes, size_t length, uint64_t seed) {
  const uint8_t *found = bytes;
  uint64_t words[CHUNK];
  for (size_t at = 0; at < length; at += sizeof words) {
    make_words(words, at / 8, seed);
    size_t here = least(length - at, sizeof words), i = 0;
    if (memcmp(found + at, words, here) == 0)
      continue;
    while (found[at + i] == ((const uint8_t *)words)[i])
      i++;
    fail_msg("bytes differ from the pattern at %zu of %zu", at + i, length);
  }
}
