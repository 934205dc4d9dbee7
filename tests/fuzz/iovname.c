/* SPDX-License-Identifier: MIT
 * Names under 3fs-virt/iovs: what is taken is spelled so that it means the same. */
#include "storage/ring.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct iov_name name, again;
  char text[IOV_NAME_ROOM];
  char *copy = malloc(length + 1);
  RIG_ASSERT(copy);
  memcpy(copy, bytes, length);
  copy[length] = '\0';
  int code = iov_name_parse(copy, &name);
  RIG_ASSERT(code == 0 || code == -EINVAL);
  free(copy);
  if (code)
    return 0;
  size_t spelled = iov_name_format(&name, text);
  RIG_ASSERT(spelled < IOV_NAME_ROOM && spelled == strlen(text));
  RIG_ASSERT(iov_name_parse(text, &again) == 0);
  RIG_ASSERT(memcmp(name.id, again.id, sizeof name.id) == 0 && name.block == again.block &&
             name.ring == again.ring && name.for_read == again.for_read &&
             name.depth == again.depth && name.timeout_ms == again.timeout_ms &&
             name.flags == again.flags && name.priority == again.priority);
  return 0;
}
