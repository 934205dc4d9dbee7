/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "transfer/transfer.h"

/* ---- Routes ---- */

static void estimate_one(struct haul_remote *remote, size_t i, const struct memory *local,
                         enum haul_operation operation, struct estimate *estimate) {
  struct endpoint *endpoint = remote->link->endpoints[i];
  memset(estimate, 0, sizeof *estimate);
  if (remote->bound[i])
    endpoint->transport->estimate(endpoint, &remote->key, remote->bindings[i], local, operation,
                                  estimate);
  else
    snprintf(estimate->reason, sizeof estimate->reason, "%s",
             remote->reasons[i][0] ? remote->reasons[i] : endpoint->reason);
}

static double cost(const struct estimate *estimate, uint64_t bytes) {
  return estimate->latency_ns + estimate->ns_per_byte * (double)bytes;
}

static bool is_open(const struct estimate *estimate) {
  return estimate->open && !estimate->only_asked;
}

/* The open path that is cheapest for `bytes`, or -1. */
static int cheapest(const struct route *route, uint64_t bytes) {
  int best = -1;
  for (int i = 0; transport_at((size_t)i); i++)
    if (is_open(&route->estimates[i]) &&
        (best < 0 || cost(&route->estimates[i], bytes) < cost(&route->estimates[best], bytes)))
      best = i;
  return best;
}

/* The largest size up to which `a`, the cheaper one for `from`, stays cheaper than `b`. */
static uint64_t crossing(const struct estimate *a, const struct estimate *b, uint64_t from) {
  if (a->ns_per_byte <= b->ns_per_byte)
    return UINT64_MAX;
  double at = (b->latency_ns - a->latency_ns) / (a->ns_per_byte - b->ns_per_byte);
  if (at >= 0x1p63)
    return UINT64_MAX;
  return at > (double)from ? (uint64_t)at : from;
}

static void make_steps(struct route *route) {
  uint64_t from = 0;
  while (route->step_count < TRANSPORTS_MAX) {
    int best = cheapest(route, from);
    uint64_t up_to = UINT64_MAX;
    if (best < 0)
      return;
    for (int i = 0; transport_at((size_t)i); i++) {
      uint64_t here = i == best || !is_open(&route->estimates[i])
                          ? UINT64_MAX
                          : crossing(&route->estimates[best], &route->estimates[i], from);
      if (here < up_to)
        up_to = here;
    }
    route->steps[route->step_count++] = (struct step){up_to, (uint32_t)best};
    if (up_to == UINT64_MAX)
      return;
    from = up_to + 1;
  }
}

/* Between memories of one host a NIC moves each byte twice over the bus that it hangs on, and takes
 * a line that others need. Until it is measured, half of what a path within the host moves is as
 * much as it counts for. */
static void prefer_within_host(struct route *route) {
  const struct estimate *within = NULL;
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->within_host && route->estimates[i].open)
      within = &route->estimates[i];
  for (size_t i = 0; within && transport_at(i); i++) {
    struct estimate *estimate = &route->estimates[i];
    if (estimate == within)
      continue;
    if (estimate->ns_per_byte < 2 * within->ns_per_byte)
      estimate->ns_per_byte = 2 * within->ns_per_byte;
    if (estimate->latency_ns < within->latency_ns)
      estimate->latency_ns = within->latency_ns;
  }
}

static void make_route(struct haul_remote *remote, const struct memory *local,
                       enum haul_operation operation, struct route *route) {
  for (size_t i = 0; transport_at(i); i++)
    estimate_one(remote, i, local, operation, &route->estimates[i]);
  prefer_within_host(route);
  make_steps(route);
}

/* All that estimates look at, packed. Both atomics have the same. Host memory that the remote's
 * engine cannot read by itself takes a copy more than what is pinned. */
static uint64_t sort_of(const struct haul_remote *remote, const struct memory *local,
                        enum haul_operation operation) {
  const struct provider *there = provider_of(remote->key.place.kind);
  uint64_t asked = operation == HAUL_OP_WRITE ? 0 : operation == HAUL_OP_READ ? 1 : 2;
  bool foreign = local->wrapped || local->imported, viewed = local->view;
  bool by_cpu = viewed && there && there->needs_cpu && there->needs_cpu(local);
  return (uint64_t)local->place.kind << 48 | (uint64_t)local->place.device << 32 | asked << 8 |
         foreign * 4u | viewed * 2u | by_cpu;
}

static struct route *find(struct route *from, uint64_t sort) {
  while (from && from->sort != sort)
    from = from->next;
  return from;
}

/* Puts it in front, unless another thread did so meanwhile: then that one's. */
static struct route *add_route(struct haul_remote *remote, struct route *route) {
  struct route *first = atomic_load_explicit(&remote->routes, memory_order_acquire), *other;
  do {
    other = find(first, route->sort);
    route->next = first;
  } while (!other && !atomic_compare_exchange_weak(&remote->routes, &first, route));
  if (other)
    alloc_free(route);
  return other ? other : route;
}

struct route *remote_route(struct haul_remote *remote, const struct memory *local,
                           enum haul_operation operation) {
  uint64_t sort = sort_of(remote, local, operation);
  struct route *route = find(atomic_load_explicit(&remote->routes, memory_order_acquire), sort);
  if (__builtin_expect(route != NULL, 1))
    return route;
  route = alloc_zero(1, sizeof *route);
  if (!route) {
    error_memory("routes");
    return NULL;
  }
  route->sort = sort;
  make_route(remote, local, operation, route);
  return add_route(remote, route);
}

/* Where both sides have a view the costs of small copies do not depend on the local kind. */
void remote_take_direct(struct haul_remote *remote, enum haul_operation operation) {
  char here;
  struct memory local = {.provider = provider_of(HAUL_HOST),
                         .place = {HAUL_HOST, 0},
                         .view = &here,
                         .address = &here,
                         .writable = true};
  struct route route = {.step_count = 0};
  make_route(remote, &local, operation, &route);
  if (route.step_count == 0)
    return;
  struct direct direct = route.estimates[route.steps[0].index].direct;
  if (direct.limit > route.steps[0].up_to)
    direct.limit = (uint32_t)route.steps[0].up_to;
  remote->direct[operation - 1] = direct;
}

/* Why the path cannot be taken; "" when it can. */
static const char *refusal(const struct haul_remote *remote, size_t i,
                           const struct estimate *estimate, const struct wish *wish) {
  const struct endpoint *endpoint = remote->link->endpoints[i];
  const struct haul_transfer_options *options = wish->options;
  if (!estimate->open)
    return estimate->reason[0] ? estimate->reason : "closed";
  /* Acquire: the reason was set before. */
  if (!atomic_load_explicit(&endpoint->open, memory_order_acquire))
    return endpoint->reason[0] ? endpoint->reason : "closed";
  if (wish->avoided & 1u << i)
    return wish->reason;
  if (options && options->only && options->only != endpoint->transport->name)
    return "another path was asked for";
  if (estimate->only_asked && !(options && options->only))
    return estimate->reason;
  if (options && (options->flags & HAUL_REQUIRE_ZERO_COPY) && !estimate->zero_copy)
    return "it buffers on the way, and zero copy was asked for";
  return "";
}

static int no_path(const struct haul_remote *remote, const struct route *route,
                   const struct wish *wish) {
  char reasons[250] = "";
  size_t at = 0;
  int ended = atomic_load(&remote->link->ended);
  int failing = atomic_load(&remote->link->failing);
  if (ended)
    return error_set(ended, 0, remote->name, "%s|connect again", remote->link->ended_reason);
  if (failing)
    return error_set(failing, 0, remote->name, "the connection to the peer broke|connect again");
  for (size_t i = 0; transport_at(i) && at < sizeof reasons; i++)
    at += (size_t)snprintf(reasons + at, sizeof reasons - at, "%snot %s: %s", i ? "; " : "",
                           transport_at(i)->name, refusal(remote, i, &route->estimates[i], wish));
  return error_set(HAUL_ENOPATH, 0, remote->name, "|%s", reasons);
}

/* By the steps, in a few nanoseconds: false when the path is closed, or there is none. */
static bool route_by_steps(const struct haul_remote *remote, const struct route *route,
                           uint64_t bytes, size_t *index) {
  uint32_t i = 0;
  while (i < route->step_count && bytes > route->steps[i].up_to)
    i++;
  if (i == route->step_count)
    return false;
  *index = route->steps[i].index;
  return atomic_load_explicit(&remote->link->endpoints[*index]->open, memory_order_acquire);
}

/* With options, or when the path of the steps is closed: all of them, one by one. */
static int route_slowly(const struct haul_remote *remote, const struct route *route, uint64_t bytes,
                        const struct wish *wish, size_t *index) {
  bool found = false;
  double best = 0;
  for (size_t i = 0; transport_at(i); i++) {
    const struct estimate *estimate = &route->estimates[i];
    if (refusal(remote, i, estimate, wish)[0])
      continue;
    double here = cost(estimate, bytes);
    if (found && here >= best)
      continue;
    found = true;
    best = here;
    *index = i;
  }
  return found ? 0 : no_path(remote, route, wish);
}

int route_choose(const struct haul_remote *remote, const struct route *route, uint64_t bytes,
                 const struct wish *wish, size_t *index) {
  const struct haul_transfer_options *options = wish->options;
  bool any = !wish->avoided &&
             (!options || (!options->only && !(options->flags & HAUL_REQUIRE_ZERO_COPY)));
  if (any && route_by_steps(remote, route, bytes, index))
    return 0;
  return route_slowly(remote, route, bytes, wish, index);
}

/* A device's engine and buffers are on the way. */
static bool is_pipeline(const struct estimate *estimate) {
  return estimate->copies_dma > 0 && !estimate->zero_copy;
}

struct tune *route_slices(struct route *route, size_t index) {
  return is_pipeline(&route->estimates[index]) ? &route->slices[index] : NULL;
}

/* ---- In words ---- */

/* The slices of a pipeline, of which there are several. */
static void say_slices(const struct route *route, size_t i, uint64_t bytes, const struct wish *wish,
                       struct haul_path *path) {
  uint32_t slice = wish->slice ? wish->slice : slice_best(&route->slices[i], bytes);
  size_t at = strlen(path->detail);
  if (path->open && is_pipeline(&route->estimates[i]) && bytes > slice)
    snprintf(path->detail + at, sizeof path->detail - at, "%sslices of %u %s", at ? ", " : "",
             slice >> 20 ? slice >> 20 : slice >> 10, slice >> 20 ? "MiB" : "KiB");
}

static void describe(const struct haul_remote *remote, size_t i, const struct route *route,
                     uint64_t bytes, uint64_t pieces, const struct wish *wish, int chosen,
                     struct haul_path *path) {
  const struct estimate *estimate = &route->estimates[i];
  bool small = bytes < estimate->small || bytes < pieces * estimate->small_piece ||
               atomic_load(&remote->link->endpoints[i]->as_small);
  const char *reason = refusal(remote, i, estimate, wish);
  memset(path, 0, sizeof *path);
  snprintf(path->name, sizeof path->name, "%s", transport_at(i)->name);
  path->chosen = (int)i == chosen;
  path->open = reason[0] == '\0' || path->chosen;
  path->copies_cpu = estimate->copies_cpu;
  path->copies_kernel = estimate->copies_kernel + (small ? estimate->copies_kernel_small : 0);
  path->copies_dma = estimate->copies_dma;
  path->zero_copy = estimate->zero_copy;
  snprintf(path->detail, sizeof path->detail, "%s", estimate->detail);
  if (path->open)
    path->cost_ns = cost(estimate, bytes);
  else
    snprintf(path->reason, sizeof path->reason, "%s", reason);
  say_slices(route, i, bytes, wish, path);
}

/* The chosen one first, then the open ones by cost, then the closed ones. */
static bool goes_before(const struct haul_path *a, const struct haul_path *b) {
  if (a->chosen != b->chosen)
    return a->chosen;
  if (a->open != b->open)
    return a->open;
  return a->open && a->cost_ns < b->cost_ns;
}

static void compare(const struct haul_path *chosen, struct haul_path *path) {
  double times = path->cost_ns / (chosen->cost_ns > 0 ? chosen->cost_ns : 1);
  if (times < 1.05)
    snprintf(path->reason, sizeof path->reason, "estimated about as fast");
  else
    snprintf(path->reason, sizeof path->reason, "estimated %.1f times slower", times);
}

size_t route_paths(const struct haul_remote *remote, const struct route *route, uint64_t bytes,
                   uint64_t pieces, const struct wish *wish, int chosen, struct haul_path *paths) {
  size_t count = 0;
  for (size_t i = 0; transport_at(i); i++) {
    struct haul_path path;
    describe(remote, i, route, bytes, pieces, wish, chosen, &path);
    size_t at = count++;
    for (; at > 0 && goes_before(&path, &paths[at - 1]); at--)
      paths[at] = paths[at - 1];
    paths[at] = path;
  }
  for (size_t i = 1; i < count; i++)
    if (paths[i].open && paths[0].chosen)
      compare(&paths[0], &paths[i]);
  return count;
}
