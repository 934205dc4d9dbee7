/* SPDX-License-Identifier: MIT
 * IPC mappings of device memory that its owner wrapped. A mapping is open while copies on it are in
 * progress, and holds a hazard cell meanwhile (attach.c): the owner's release waits until no cell
 * holds the handle, so it frees nothing that is mapped here. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/map/map.h"
#include "memory/ticket.h"

#define IPC_OPEN_MAX (HAZARDS / 2) /* towards one peer; copies by the CPU use the other cells */

struct map_ipc {
  struct ticket ticket;
  uint8_t token[IPC_TOKEN];
  uint32_t users;       /* copies in progress */
  unsigned cell;        /* while there are users */
  struct memory memory; /* likewise */
};

struct memory *binding_memory(struct map_binding *binding) {
  return binding->ipc ? &binding->ipc->memory : &binding->memory;
}

int ipc_begin(struct map_endpoint *endpoint, struct map_binding *binding) {
  struct map_ipc *ipc = binding->ipc;
  if (ipc && ipc->users > 0 && !map_alive(endpoint, binding->handle))
    return map_stale(); /* the owner waits until it is closed here */
  if (!ipc || ipc->users > 0) {
    if (ipc)
      ipc->users++;
    return 0;
  }
  int cell = endpoint->ipc_open < IPC_OPEN_MAX ? hazard_set(endpoint, binding->handle) : -1;
  if (cell < 0)
    return 1;
  int code = map_alive_after_hazard(endpoint, binding->handle)
                 ? memory_ipc_import(&ipc->ticket, ipc->token, &ipc->memory)
                 : map_stale();
  if (code) {
    hazard_clear(endpoint, (unsigned)cell);
    return code;
  }
  ipc->cell = (unsigned)cell;
  ipc->users = 1;
  endpoint->ipc_open++;
  return 0;
}

void ipc_end(struct map_endpoint *endpoint, struct map_binding *binding) {
  struct map_ipc *ipc = binding->ipc;
  if (!ipc || --ipc->users > 0)
    return;
  memory_free(&ipc->memory);
  hazard_clear(endpoint, ipc->cell);
  endpoint->ipc_open--;
}

int ipc_bind(struct map_binding *binding, const struct ticket *ticket,
             const uint8_t token[IPC_TOKEN]) {
  struct haul_place place;
  const struct provider *provider;
  int code = memory_locate(ticket, &place, &provider);
  if (code)
    return code;
  if (!provider->ipc_import)
    return error_set(HAUL_ENOTSUP, 0, NULL, NULL, "memory of this kind has no IPC mapping");
  struct map_ipc *ipc = alloc_zero(1, sizeof *ipc);
  if (!ipc)
    return error_memory("IPC mapping");
  ipc->ticket = *ticket;
  memcpy(ipc->token, token, IPC_TOKEN);
  binding->ipc = ipc;
  binding->memory = (struct memory){.provider = provider,
                                    .place = place,
                                    .length = ticket->length,
                                    .imported = true,
                                    .writable = true};
  return 0;
}

void ipc_unbind(struct map_binding *binding) {
  alloc_free(binding->ipc);
  binding->ipc = NULL;
}
