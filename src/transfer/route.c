/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "transfer/transfer.h"

static void estimate_one(struct haul_remote *remote, size_t i, const struct memory *local,
                         unsigned refusal, enum haul_operation operation,
                         struct estimate *estimate) {
  struct endpoint *endpoint = remote->link->endpoints[i];
  *estimate = (struct estimate){.refusal = refusal};
  if (remote->bound[i])
    endpoint->transport->estimate(endpoint, &remote->key, remote->bindings[i], local, operation,
                                  estimate);
  else
    snprintf(estimate->reason, sizeof estimate->reason, "%s",
             remote->reasons[i][0] ? remote->reasons[i] : endpoint_reason(endpoint));
}

static void raise_line(struct line *line, const struct line *floor) {
  if (line->ns_per_byte < 2 * floor->ns_per_byte)
    line->ns_per_byte = 2 * floor->ns_per_byte;
  if (line->latency_ns < floor->latency_ns)
    line->latency_ns = floor->latency_ns;
}

/* Within a host a NIC moves each byte over its bus twice, and occupies the wire. So until it is
 * measured, it counts at most half the bandwidth of the path within the host. */
static void prefer_within_host(struct route *route) {
  const struct estimate *within = NULL;
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->within_host && route->estimates[i].open)
      within = &route->estimates[i];
  for (size_t i = 0; within && transport_at(i); i++)
    for (unsigned send = 0; send < SEND_MODES && within != &route->estimates[i]; send++)
      raise_line(&route->estimates[i].lines[send], &within->lines[lines_mode(within->lines, 1)]);
}

static __attribute__((cold)) void init_route(struct haul_remote *remote, const struct memory *local,
                                             unsigned refusal, enum haul_operation operation,
                                             struct route *route) {
  for (size_t i = 0; transport_at(i); i++) {
    estimate_one(remote, i, local, refusal, operation, &route->estimates[i]);
    if (route->estimates[i].outdated)
      route->outdated = route->estimates[i].outdated;
  }
  prefer_within_host(route);
  route->costs = costs_of(remote->link, route->type, remote->key.place, route->estimates);
}

/* Packs every input of the estimates. Both atomics have the same ones. Host memory that the remote
 * device's engine cannot read takes one more copy than pinned memory. */
static uint64_t type_of(const struct haul_remote *remote, const struct memory *local,
                        unsigned refusal, enum haul_operation operation) {
  const struct provider *there = provider_of(remote->key.place.kind);
  uint64_t access = operation == HAUL_OP_WRITE ? 0 : operation == HAUL_OP_READ ? 1 : 2;
  bool foreign = local->wrapped || local->imported, viewed = local->view;
  bool by_cpu = viewed && there && there->needs_cpu && there->needs_cpu(local);
  return (uint64_t)local->place.kind << 48 | (uint64_t)local->place.device << 32 |
         (uint64_t)refusal << 16 | access << 8 | foreign * 4u | viewed * 2u | by_cpu;
}

/* The latest of its type. */
static struct route *find_route(struct route *from, uint64_t type) {
  while (from && from->type != type)
    from = from->next;
  return from;
}

static bool holds(const struct route *route) {
  return route && !(route->outdated && atomic_load_explicit(route->outdated, memory_order_relaxed));
}

/* Adds the route, or returns the same one that another thread added meanwhile. */
static struct route *add_route(struct haul_remote *remote, struct route *route) {
  struct route *first = atomic_load_explicit(&remote->routes, memory_order_acquire);
  do {
    struct route *other = find_route(first, route->type);
    if (holds(other)) {
      alloc_free(route);
      return other;
    }
    route->next = first;
  } while (!atomic_compare_exchange_weak(&remote->routes, &first, route));
  return route;
}

/* Only one transport registers device memory. */
static unsigned refusal_of(struct haul_remote *remote, struct haul_region *local) {
  for (size_t i = 0; transport_at(i); i++)
    if (remote->bound[i] && transport_at(i)->refusal)
      return transport_at(i)->refusal(remote->link->endpoints[i], local);
  return 0;
}

struct route *remote_route(struct haul_remote *remote, struct haul_region *region,
                           enum haul_operation operation) {
  const struct memory *local = &region->memory;
  unsigned refusal = local->view ? 0 : refusal_of(remote, region);
  uint64_t type = type_of(remote, local, refusal, operation);
  struct route *route =
      find_route(atomic_load_explicit(&remote->routes, memory_order_acquire), type);
  if (__builtin_expect(holds(route), 1))
    return route;
  route = alloc_zero(1, sizeof *route);
  if (!route) {
    error_memory("routes");
    return NULL;
  }
  route->type = type;
  init_route(remote, local, refusal, operation, route);
  return add_route(remote, route);
}

__attribute__((cold)) const char *route_refusal(const struct haul_remote *remote,
                                                const struct route *route, size_t i,
                                                const struct constraints *constraints) {
  const struct estimate *estimate = &route->estimates[i];
  const struct endpoint *endpoint = remote->link->endpoints[i];
  if (!estimate->open)
    return estimate->reason[0] ? estimate->reason : "closed";
  if (!atomic_load(&endpoint->open)) {
    const char *reason = endpoint_reason(endpoint);
    return *reason ? reason : "closed";
  }
  if (constraints->avoided & 1u << i)
    return constraints->reason;
  if (constraints->only && constraints->only != endpoint->transport->name)
    return "excluded by the option 'only'";
  if (!constraints->only && !rules_allow(&remote->transfers->rules, i))
    return remote->transfers->rules.left_out;
  if (estimate->explicit_only && !constraints->only)
    return estimate->reason;
  if (constraints->flags & HAUL_REQUIRE_ZERO_COPY && !estimate->zero_copy)
    return "it buffers the data, but zero copy was required";
  return "";
}

/* A closed path stays closed. When all are, the peer fails: the next connection may have one. */
static int no_path(const struct haul_remote *remote, const struct route *route,
                   const struct constraints *constraints) {
  char reasons[250] = "";
  size_t at = 0;
  bool closed = true;
  int ended = atomic_load(&remote->link->ended);
  int failing = atomic_load(&remote->link->failing);
  if (ended)
    return error_set(ended, 0, remote->name, NULL, "%s", remote->link->ended_reason);
  if (failing)
    return error_set(failing, 0, remote->name, NULL, "the connection to the peer broke");
  for (size_t i = 0; transport_at(i); i++) {
    closed &= endpoint_is_closed(remote->link->endpoints[i]);
    if (at < sizeof reasons)
      at += (size_t)snprintf(reasons + at, sizeof reasons - at, "%snot %s: %s", i ? "; " : "",
                             transport_at(i)->name, route_refusal(remote, route, i, constraints));
  }
  if (closed)
    remote->link->fail(remote->link, HAUL_EPEER, "every path to the peer broke");
  return error_set(HAUL_ENOPATH, 0, remote->name, reasons, "%s", haul_error_text(HAUL_ENOPATH));
}

double route_cost(const struct route *route, size_t i, uint64_t bytes, bool *known) {
  double estimated = lines_ns(route->estimates[i].lines, bytes);
  if (known)
    *known = false;
  return route->costs ? estimated * costs_correction(route->costs, i, bytes, known) : estimated;
}

int route_rule(const struct haul_remote *remote, uint64_t bytes,
               const struct constraints *constraints) {
  return constraints->only ? -1 : rules_path(&remote->transfers->rules, bytes);
}

/* Compares all paths: under constraints or rules, or when the cheapest path is closed. */
static int choose_slowly(const struct haul_remote *remote, const struct route *route,
                         uint64_t bytes, const struct constraints *constraints, size_t *index) {
  /* The path that is taken whatever its cost, if it can be. */
  int preferred = route_rule(remote, bytes, constraints);
  if (preferred < 0 && route->costs)
    preferred = route->costs->single_copy;
  if (preferred >= 0 && route_refusal(remote, route, (size_t)preferred, constraints)[0])
    preferred = -1;
  int found = preferred;
  double best = 0;
  for (size_t i = 0; preferred < 0 && transport_at(i); i++) {
    double here = route_cost(route, i, bytes, NULL);
    if (route_refusal(remote, route, i, constraints)[0] || (found >= 0 && here >= best))
      continue;
    found = (int)i;
    best = here;
  }
  *index = found >= 0 ? (size_t)found : 0;
  return found >= 0 ? 0 : no_path(remote, route, constraints);
}

int route_choose(const struct haul_remote *remote, const struct route *route, uint64_t bytes,
                 const struct constraints *constraints, size_t *index) {
  bool any = !constraints->avoided && !constraints->only &&
             !(constraints->flags & HAUL_REQUIRE_ZERO_COPY) && remote->transfers->rules.count == 0;
  int best = any && route->costs ? costs_best(route->costs, bytes) : -1;
  /* The fast path is the cheapest one, unless it is closed. */
  if (best < 0 || !atomic_load_explicit(&remote->link->endpoints[best]->open, memory_order_acquire))
    return choose_slowly(remote, route, bytes, constraints, index);
  *index = (size_t)best;
  return 0;
}

struct constraints transfer_constraints(const struct haul_transfer *transfer) {
  uint32_t avoided = atomic_load(&transfer->avoided);
  const char *reason = atomic_load(&transfer->avoided_reason);
  return (struct constraints){.only = transfer->only,
                              .flags = transfer->flags,
                              .avoided = avoided,
                              .reason = reason ? reason : "the path refused the transfer",
                              .slice = transfer->slice};
}

/* Works that race here choose the same path, or one that the next of them finds closed. */
int transfer_path(struct haul_transfer *transfer, size_t *path) {
  const struct haul_remote *remote = transfer->remote;
  *path = (size_t)atomic_load_explicit(&transfer->path, memory_order_relaxed);
  if (atomic_load_explicit(&remote->link->endpoints[*path]->open, memory_order_acquire) &&
      !(atomic_load_explicit(&transfer->avoided, memory_order_relaxed) & 1u << *path))
    return 0;
  struct constraints constraints = transfer_constraints(transfer);
  int code = route_choose(remote, transfer->route, transfer->bytes, &constraints, path);
  if (code == 0)
    atomic_store_explicit(&transfer->path, (uint8_t)*path, memory_order_relaxed);
  return code;
}

/* Between mapped memories the costs of small copies do not depend on the kind of the local one. */
static void set_direct(struct haul_remote *remote, enum haul_operation operation) {
  char here;
  struct memory local = {.provider = provider_of(HAUL_HOST),
                         .place = {HAUL_HOST, 0},
                         .view = &here,
                         .address = &here,
                         .writable = true};
  struct route route = {.type = type_of(remote, &local, 0, operation)};
  const struct constraints none = {.only = NULL};
  size_t best, other;
  init_route(remote, &local, 0, operation, &route);
  if (route_choose(remote, &route, 1, &none, &best) != 0)
    return;
  struct direct direct = route.estimates[best].direct;
  while (direct.limit > 0 &&
         (route_choose(remote, &route, direct.limit, &none, &other) != 0 || other != best))
    direct.limit /= 2;
  remote->direct[operation - 1] = direct;
}

/* Slices are tuned on paths with bounce buffers. */
struct tune *route_slices(struct route *route, size_t index) {
  const struct estimate *estimate = &route->estimates[index];
  return estimate->copies_dma > 0 && !estimate->zero_copy ? &route->slices[index] : NULL;
}

static void bind_transport(struct haul_remote *remote, const struct transport *transport,
                           haul_deadline until) {
  struct endpoint *endpoint = remote->link->endpoints[transport->index];
  if (!atomic_load(&endpoint->open) && !atomic_load(&endpoint->interrupted))
    return; /* endpoint_reason tells why */
  if (!transport->bind ||
      transport->bind(endpoint, &remote->key, until, &remote->bindings[transport->index]) == 0)
    remote->bound[transport->index] = true;
  else
    snprintf(remote->reasons[transport->index], sizeof remote->reasons[0], "%s",
             haul_error_last()->text);
}

__attribute__((cold)) int remote_open(struct transfers *transfers, struct link *link,
                                      const struct remote_key *key, const char *name,
                                      haul_deadline until, struct haul_remote **out) {
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
    bind_transport(remote, transport, until);
  if (key->rights & HAUL_WRITE)
    set_direct(remote, HAUL_OP_WRITE);
  if (key->rights & HAUL_READ)
    set_direct(remote, HAUL_OP_READ);
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
