/* SPDX-License-Identifier: MIT
 * A foreign descriptor: the first byte says how it was made, the footer and the ticket's claims
 * come from the rest. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/wire.h"
#include "memory/pages.h"
#include "memory/shm.h"
#include "memory/ticket.h"
#include "rig.h"

enum making { SEALED = 1, HAS_FOOTER = 2, CUT = 4, READ_ONLY_TICKET = 8, AS_SIM = 16 };

static int make_memory(uint8_t making, size_t pages, struct wire *footer) {
  int fd = memfd_create("haul-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  size_t length = pages * page_size();
  off_t size = (off_t)(length + (making & HAS_FOOTER ? page_size() : 0) - (making & CUT ? 1 : 0));
  uint8_t bytes[64] = {0};
  RIG_ASSERT(fd >= 0 && ftruncate(fd, size) == 0);
  wire_get_bytes(footer, bytes, wire_left(footer) < 64 ? wire_left(footer) : 64);
  if (making & HAS_FOOTER)
    RIG_ASSERT(pwrite(fd, bytes, sizeof bytes, (off_t)length) == sizeof bytes);
  if (making & SEALED)
    RIG_ASSERT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct wire wire = wire_over(bytes, length);
  struct ticket ticket = {.rights = HAUL_READ};
  struct memory memory;
  rig_node();
  uint8_t making = wire_get8(&wire);
  size_t pages = wire_get8(&wire) % 4 + 1u;
  ticket.place.kind = making & AS_SIM ? HAUL_SIM : HAUL_HOST;
  ticket.rights |= making & READ_ONLY_TICKET ? 0 : HAUL_WRITE;
  ticket.length = wire_get64(&wire);
  ticket.offset = wire_get64(&wire);
  wire_get_bytes(&wire, ticket.capability, sizeof ticket.capability);
  wire_get_bytes(&wire, ticket.extra, sizeof ticket.extra);
  if (wire.failed)
    return 0;
  int fd = make_memory(making, pages, &wire);
  if (memory_import(&ticket, fd, &memory) == 0) {
    RIG_ASSERT(memory.length <= pages * page_size() && memory_alive(&memory));
    if (memory.view) { /* every byte that it claims is there */
      volatile const uint8_t *view = memory.view;
      RIG_ASSERT(view[0] == 0 && view[memory.length - 1] == 0);
    }
    memory_free(&memory);
  }
  close(fd);
  return 0;
}
