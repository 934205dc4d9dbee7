/* SPDX-License-Identifier: MIT
 * Tickets. The first byte says whether a forger signs the rest. */
#include <string.h>
#include <xxhash.h>

#include "memory/ticket.h"
#include "rig.h"

static void sign(struct haul_ticket *packed) {
  const size_t summed = sizeof packed->bytes - 8;
  uint64_t sum = XXH3_64bits(packed->bytes, summed);
  for (size_t i = 0; i < 8; i++)
    packed->bytes[summed + i] = (uint8_t)(sum >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct haul_ticket packed = {{0}}, again;
  struct ticket ticket, second;
  struct haul_tensor layout;
  if (length < 1)
    return 0;
  size_t rest = length - 1 < sizeof packed.bytes ? length - 1 : sizeof packed.bytes;
  memcpy(packed.bytes, bytes + 1, rest);
  if (bytes[0] & 1)
    sign(&packed);
  int code = ticket_unpack(&packed, &ticket);
  RIG_ASSERT(code == 0 || code == HAUL_ETICKET);
  int layout_code = haul_ticket_layout(&packed, &layout);
  if (code) {
    RIG_ASSERT(layout_code == HAUL_ETICKET);
    return 0;
  }
  RIG_ASSERT(layout_code == (ticket.has_layout ? 0 : HAUL_ENAME));
  RIG_ASSERT(ticket.length > 0 && ticket.offset + ticket.length >= ticket.length);
  if (ticket.has_layout)
    RIG_ASSERT(tensor_check(&ticket.layout, ticket.length) == 0);
  ticket_pack(&ticket, &again);
  RIG_ASSERT(ticket_unpack(&again, &second) == 0 && second.length == ticket.length);
  return 0;
}
