/* SPDX-License-Identifier: MIT
 * What another process needs besides the descriptor to import a block. */
#ifndef HAUL_MEMORY_TICKET_H
#define HAUL_MEMORY_TICKET_H

#include <stdbool.h>

#include "haul/haul.h"

#define IPC_TOKEN 64

struct ticket {
  struct haul_place place;
  uint64_t length;
  uint64_t offset; /* of the block within the descriptor's memory */
  uint64_t generation;
  unsigned rights;
  uint8_t capability[16];    /* random; the descriptor's memory must carry the same */
  uint8_t identity[16];      /* random, the same in all tickets of a region; zero: not known */
  uint8_t extra[32];         /* the provider's own: a device's UUID, a size */
  bool has_layout, has_loan; /* not both */
  struct haul_tensor layout;
  uint8_t token[IPC_TOKEN]; /* as `lend` of the provider's gave it */
};

/* Fixed layout, little-endian, closed by an XXH3-64 over what goes before: that catches damage; a
 * forged ticket fails at the capability. */
void ticket_pack(const struct ticket *ticket, struct haul_ticket *packed);

/* HAUL_ETICKET with the detail for damage, another version, lengths that overflow, an impossible
 * layout (dimensions, bits, elements that lie outside the length). */
int ticket_unpack(const struct haul_ticket *packed, struct ticket *ticket);

/* HAUL_EINVAL with the detail when the layout cannot lie within `length` bytes. */
int tensor_check(const struct haul_tensor *layout, uint64_t length);

#endif
