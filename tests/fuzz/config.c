/* SPDX-License-Identifier: MIT
 * The text of a configuration: every mistake has its line, and what is accepted is within bounds.
 */
#include <stdio.h>
#include <string.h>

#include "node/config.h"
#include "rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static char text[RIG_INPUT + 1];
  struct config config = {.path = ""};
  if (length > RIG_INPUT)
    return 0;
  memcpy(text, bytes, length);
  text[length] = '\0';
  int code = config_parse(text, "haul.conf", &config);
  RIG_ASSERT(code == 0 || code == HAUL_EINVAL);
  if (code) {
    RIG_ASSERT(strncmp(haul_error_last()->object, "haul.conf:", 10) == 0);
    RIG_ASSERT(haul_error_last()->text[0] && haul_error_last()->hint[0]);
    return 0;
  }
  RIG_ASSERT(config.values.tcp_rails <= 16 && config.values.max_regions <= 1048576);
  RIG_ASSERT(config.values.spin_ns >= 0 && config.values.transfer_ns >= 0);
  RIG_ASSERT(config.values.liveness_ns == 0 || config.values.liveness_ns >= 10000000);
  RIG_ASSERT(strlen(config.name) < sizeof config.name);
  return 0;
}
