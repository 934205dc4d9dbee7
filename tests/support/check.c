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

/* splitmix64's finaliser (Steele, Lea, Flood 2014) over the number of the 8-byte word. */
static uint64_t word_at(uint64_t i, uint64_t seed) {
  uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed;
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

void pattern_fill(void *bytes, size_t length, uint64_t seed) {
  uint8_t *at = bytes;
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = word_at(i / 8, seed);
    memcpy(at + i, &word, length - i < 8 ? length - i : 8);
  }
}

void pattern_check(const void *bytes, size_t length, uint64_t seed) {
  const uint8_t *at = bytes;
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = word_at(i / 8, seed);
    if (memcmp(at + i, &word, length - i < 8 ? length - i : 8) != 0)
      fail_msg("bytes differ from the pattern at %zu of %zu", i, length);
  }
}
