/* SPDX-License-Identifier: MIT
 * The file service's messages. The first byte selects the parser: 0 a request, an operation its
 * response, 255 an I/O summary, else a list of names. Accepted messages must encode to the same
 * bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "storage/service/protocol.h"

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

static void read_response(uint16_t operation, const uint8_t *bytes, size_t length) {
  struct protocol_fields fields;
  static uint8_t again[PROTOCOL_RESPONSE_ROOM];
  int status = protocol_get_response(bytes, length, operation, &fields);
  RIG_ASSERT(status <= 0 && status >= -4095);
  if (status)
    return;
  RIG_ASSERT(protocol_put_response(operation, 0, &fields, again) == length);
  RIG_ASSERT(memcmp(again, bytes, length) == 0);
}

static void read_names(const uint8_t *bytes, size_t length) {
  struct protocol_name name;
  struct wire wire = wire_over(bytes, length);
  while (wire_left(&wire) > 0 && protocol_get_name(&wire, &name))
    RIG_ASSERT(*name.text && !strchr(name.text, '/') && strlen(name.text) <= NAME_MAX);
}

#define SUMMARY 255

static void read_summary(const uint8_t *bytes, size_t length) {
  struct io_summary summary;
  static uint8_t again[PROTOCOL_BYTES_MAX];
  if (protocol_get_summary(bytes, length, &summary))
    return;
  RIG_ASSERT(summary.report.path_count <= HAUL_PATHS_MAX && summary.pages <= summary.report.bytes);
  RIG_ASSERT(protocol_put_summary(&summary, again, sizeof again) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  if (length == 0)
    return 0;
  /* A copy of the exact length, so that a sanitizer finds reads beyond it. */
  uint8_t *copy = malloc(length - 1 ? length - 1 : 1);
  RIG_ASSERT(copy);
  memcpy(copy, bytes + 1, length - 1);
  if (bytes[0] == 0)
    read_request(copy, length - 1);
  else if (bytes[0] < PROTOCOL_OPERATIONS)
    read_response(bytes[0], copy, length - 1);
  else if (bytes[0] == SUMMARY)
    read_summary(copy, length - 1);
  else
    read_names(copy, length - 1);
  free(copy);
  return 0;
}
