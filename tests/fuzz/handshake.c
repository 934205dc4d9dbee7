/* SPDX-License-Identifier: MIT
 * Hello and welcome. What is accepted, packed again, is the same bytes. */
#include <string.h>

#include "rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct hello hello;
  struct welcome welcome;
  uint8_t again[HANDSHAKE_MAX];
  if (length >= HANDSHAKE_HEAD) {
    RIG_ASSERT(hello_body(bytes) <= (int)(HANDSHAKE_MAX - HANDSHAKE_HEAD));
    RIG_ASSERT(welcome_body(bytes) <= (int)(HANDSHAKE_MAX - HANDSHAKE_HEAD));
  }
  if (hello_parse(bytes, length, &hello) == 0) {
    RIG_ASSERT(hello_pack(&hello, again) == length);
    RIG_ASSERT(memcmp(bytes + HANDSHAKE_HEAD, again + HANDSHAKE_HEAD, length - HANDSHAKE_HEAD) ==
               0);
  }
  if (welcome_parse(bytes, length, &welcome) == 0) {
    RIG_ASSERT(welcome_pack(&welcome, again) == length);
    RIG_ASSERT(memcmp(bytes + HANDSHAKE_HEAD, again + HANDSHAKE_HEAD, length - HANDSHAKE_HEAD) ==
               0);
  }
  return 0;
}
