/* SPDX-License-Identifier: MIT
 * Tickets: what another process needs, besides a descriptor, to import a block of memory. */
#ifndef HAUL_MEMORY_TICKET_H
#define HAUL_MEMORY_TICKET_H

#include <stdbool.h>

#include "haul/haul.h"

#define IPC_TOKEN 64

struct ticket {
  struct haul_place place;
  uint64_t length;
  uint64_t offset; /* of the block in the descriptor's memory */
  uint64_t generation;
  unsigned rights;
  uint8_t capability[16];     /* random; also in the descriptor's memory */
  uint8_t identity[16];       /* random, the same in all tickets of a region; zero: none */
  uint8_t extra[32];          /* for the provider: a device's UUID, a size */
  bool has_layout, has_token; /* not both */
  struct haul_tensor layout;
  uint8_t token[IPC_TOKEN]; /* from the provider's ipc_export */
};

/* Packs it little-endian in a fixed layout, with an XXH3-64 at the end, which detects damage. The
 * capability detects forged tickets. */
void ticket_pack(const struct ticket *ticket, struct haul_ticket *packed);

/* HAUL_ETICKET with the detail: damage, another version, overflowing lengths, an impossible layout
 * (dimensions, bits, elements outside the length). */
int ticket_unpack(const struct haul_ticket *packed, struct ticket *ticket);

/* HAUL_EINVAL with the detail if the layout exceeds `length` bytes. */
int tensor_check(const struct haul_tensor *layout, uint64_t length);

#endif
