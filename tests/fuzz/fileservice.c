/* SPDX-License-Identifier: MIT
 * The file service's messages. The first byte says whether the rest is a request, an answer, and
 * to which operation, a list of names, or how bytes went; what is taken is written as it was. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "storage/service/protocol.h"
#include "storage/service/told.h"

static void read_request(const uint8_t *bytes, size_t length) {
  static struct protocol_request request;
  static uint8_t again[PROTOCOL_REQUEST_ROOM];
  int status = protocol_get_request(bytes, length, &request);
  RIG_ASSERT(status == 0 || status == -EPROTO || status == -EOPNOTSUPP);
  if (status)
    return;
  RIG_ASSERT(protocol_put_request(&request, again) == length);
  RIG_ASSERT(memcmp(again, bytes, length) == 0);
}

static void read_answer(uint16_t operation, const uint8_t *bytes, size_t length) {
  struct protocol_fields fields;
  static uint8_t again[PROTOCOL_ANSWER_ROOM];
  int status = protocol_get_answer(bytes, length, operation, &fields);
  RIG_ASSERT(status <= 0 && status >= -4095);
  if (status)
    return;
  RIG_ASSERT(protocol_put_answer(operation, 0, &fields, again) == length);
  RIG_ASSERT(memcmp(again, bytes, length) == 0);
}

static void read_names(const uint8_t *bytes, size_t length) {
  struct protocol_name name;
  struct wire wire = wire_over(bytes, length);
  while (wire_left(&wire) > 0 && protocol_get_name(&wire, &name))
    RIG_ASSERT(*name.text && !strchr(name.text, '/') && strlen(name.text) <= NAME_MAX);
}

#define TOLD 255

static void read_told(const uint8_t *bytes, size_t length) {
  struct told told;
  static uint8_t again[PROTOCOL_BYTES_MAX];
  if (told_get(bytes, length, &told))
    return;
  RIG_ASSERT(told.report.path_count <= HAUL_PATHS_MAX && told.pages <= told.report.bytes);
  RIG_ASSERT(told_put(&told, again, sizeof again) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  if (length == 0)
    return 0;
  /* As long as it is and no longer, so that a sanitizer sees what is read beyond it. */
  uint8_t *copy = malloc(length - 1 ? length - 1 : 1);
  RIG_ASSERT(copy);
  memcpy(copy, bytes + 1, length - 1);
  if (bytes[0] == 0)
    read_request(copy, length - 1);
  else if (bytes[0] < PROTOCOL_OPERATIONS)
    read_answer(bytes[0], copy, length - 1);
  else if (bytes[0] == TOLD)
    read_told(copy, length - 1);
  else
    read_names(copy, length - 1);
  free(copy);
  return 0;
}
