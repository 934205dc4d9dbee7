/* SPDX-License-Identifier: MIT
 * Device memory that its owner wrapped and lends: it is open here while copies are under way on it,
 * and shows a hazard for as long, as cross-memory attach does (attach.c). So its owner, whose
 * release waits until no cell holds the handle, frees nothing that is open here. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/map/map.h"
#include "memory/ticket.h"

#define LENT_MAX (HAZARDS / 2) /* at a time towards one peer; the other cells are for the CPU's */

struct map_ipc {
  struct ticket ticket;
  uint8_t token[IPC_TOKEN];
  uint32_t users;       /* copies under way */
  unsigned cell;        /* while there are any */
  struct memory memory; /* likewise */
};

struct memory *binding_memory(struct map_binding *binding) {
  return binding->lent ? &binding->lent->memory : &binding->memory;
}

static int withdrawn(void) {
  return error_set(HAUL_ESTALE, 0, NULL, "look it up again", "the peer withdrew the region");
}

/* Nobody looks at the board before the cell is seen. */
static int borrow(struct map_endpoint *endpoint, struct map_binding *binding) {
  struct map_ipc *lent = binding->lent;
  if (!map_alive_behind_cell(endpoint, binding->handle))
    return withdrawn();
  return memory_ipc_import(&lent->ticket, lent->token, &lent->memory);
}

int ipc_begin(struct map_endpoint *endpoint, struct map_binding *binding) {
  struct map_ipc *lent = binding->lent;
  if (lent && lent->users > 0 && !map_alive(endpoint, binding->handle))
    return withdrawn(); /* its owner waits until it is closed here */
  if (!lent || lent->users++ > 0)
    return 0;
  int cell = endpoint->lent < LENT_MAX ? hazard_show(endpoint, binding->handle) : -1;
  if (cell < 0) {
    lent->users = 0;
    return 1;
  }
  lent->cell = (unsigned)cell;
  int code = borrow(endpoint, binding);
  if (code) {
    hazard_clear(endpoint, lent->cell);
    lent->users = 0;
    return code;
  }
  endpoint->lent++;
  return 0;
}

void ipc_end(struct map_endpoint *endpoint, struct map_binding *binding) {
  struct map_ipc *lent = binding->lent;
  if (!lent || --lent->users > 0)
    return;
  memory_free(&lent->memory);
  hazard_clear(endpoint, lent->cell);
  endpoint->lent--;
}

/* What is known of it without having it: enough to tell who copies. */
static int describe(const struct ticket *ticket, struct memory *memory) {
  struct haul_place place;
  const struct provider *provider;
  int code = memory_locate(ticket, &place, &provider);
  *memory = (struct memory){.provider = code ? NULL : provider,
                            .place = place,
                            .length = ticket->length,
                            .imported = true,
                            .writable = true};
  return code;
}

int ipc_open(struct map_binding *binding, const struct ticket *ticket,
             const uint8_t token[IPC_TOKEN]) {
  int code = describe(ticket, &binding->memory);
  if (code)
    return code;
  if (!binding->memory.provider->ipc_import)
    return error_set(HAUL_ENOTSUP, 0, NULL, NULL, "memory of this kind cannot be lent");
  struct map_ipc *lent = alloc_zero(1, sizeof *lent);
  if (!lent)
    return error_memory("lent memory");
  lent->ticket = *ticket;
  memcpy(lent->token, token, IPC_TOKEN);
  binding->lent = lent;
  return 0;
}

void ipc_close(struct map_binding *binding) {
  alloc_free(binding->lent);
  binding->lent = NULL;
}
