/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "transfer/transfer.h"

/* ---- Life ---- */

static void bind_one(struct haul_remote *remote, const struct transport *transport,
                     haul_deadline until) {
  struct endpoint *endpoint = remote->link->endpoints[transport->index];
  if (!atomic_load(&endpoint->open))
    return; /* its own reason stands */
  if (!transport->bind) {
    remote->bound[transport->index] = true;
    return;
  }
  if (transport->bind(endpoint, &remote->key, until, &remote->bindings[transport->index]) == 0)
    remote->bound[transport->index] = true;
  else
    snprintf(remote->reasons[transport->index], sizeof remote->reasons[0], "%s",
             haul_error_last()->text);
}

int remote_open(struct transfers *transfers, struct link *link, const struct remote_key *key,
                const char *name, haul_deadline until, struct haul_remote **out) {
  struct haul_remote *remote = alloc_zero(1, sizeof *remote);
  if (!remote)
    return error_memory("remote region");
  atomic_store(&remote->refs, 1);
  link->retain(link);
  remote->link = link;
  remote->transfers = transfers;
  remote->heap = transfers->fabric->heap;
  remote->key = *key;
  snprintf(remote->name, sizeof remote->name, "%s", name);
  const struct transport *transport;
  for (size_t i = 0; (transport = transport_at(i)); i++)
    bind_one(remote, transport, until);
  if (key->rights & HAUL_WRITE)
    remote_take_direct(remote, HAUL_OP_WRITE);
  if (key->rights & HAUL_READ)
    remote_take_direct(remote, HAUL_OP_READ);
  *out = remote;
  return 0;
}

void remote_put(struct haul_remote *remote) {
  if (atomic_fetch_sub(&remote->refs, 1) != 1)
    return;
  const struct transport *transport;
  for (size_t i = 0; (transport = transport_at(i)); i++)
    if (remote->bound[i] && transport->unbind)
      transport->unbind(remote->link->endpoints[i], remote->bindings[i]);
  for (struct route *route = atomic_load(&remote->routes), *next; route; route = next) {
    next = route->next;
    alloc_free(route);
  }
  remote->link->put(remote->link);
  alloc_free(remote);
}

/* ---- Public ---- */

HAUL_API uint64_t haul_remote_length(const haul_remote *remote) {
  return remote ? remote->key.length : 0;
}

HAUL_API struct haul_place haul_remote_place(const haul_remote *remote) {
  return remote ? remote->key.place : (struct haul_place){0, 0};
}

HAUL_API unsigned haul_remote_rights(const haul_remote *remote) {
  return remote ? remote->key.rights : 0;
}

HAUL_API void haul_remote_release(haul_remote *remote) {
  if (remote)
    remote_put(remote);
}
