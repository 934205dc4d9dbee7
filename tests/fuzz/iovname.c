/* SPDX-License-Identifier: MIT
 * Names under 3fs-virt/iovs: what is taken is spelled so that it means the same. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "storage/name.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct name name, again;
  char text[NAME_ROOM];
  char *copy = malloc(length + 1);
  RIG_ASSERT(copy);
  memcpy(copy, bytes, length);
  copy[length] = '\0';
  int code = name_parse(copy, &name);
  RIG_ASSERT(code == 0 || code == -EINVAL);
  free(copy);
  if (code)
    return 0;
  size_t spelled = name_format(&name, text);
  RIG_ASSERT(spelled < NAME_ROOM && spelled == strlen(text));
  RIG_ASSERT(name_parse(text, &again) == 0);
  RIG_ASSERT(memcmp(name.id, again.id, sizeof name.id) == 0 && name.block == again.block &&
             name.ring == again.ring && name.for_read == again.for_read &&
             name.depth == again.depth && name.timeout_ms == again.timeout_ms &&
             name.flags == again.flags && name.priority == again.priority);
  return 0;
}
