/* SPDX-License-Identifier: MIT
 * What the node knows of the machine and of itself. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "memory/staging.h"
#include "node/node.h"

static void describe(const struct provider *provider, unsigned device, struct haul_device *info) {
  memset(info, 0, sizeof *info);
  info->place = (struct haul_place){provider->kind, (uint16_t)device};
  info->emulated = provider->emulated;
  info->numa = -1;
  if (provider->describe)
    provider->describe(device, info);
}

HAUL_API int haul_device_list(haul_node *node, struct haul_device *devices, size_t *count) {
  int code = error_enter("haul_device_list");
  if (code)
    return code;
  if (!node || !count || (*count > 0 && !devices))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no node or no room");
  size_t all = 0;
  const struct provider *provider;
  for (size_t i = 0; (provider = provider_at(i)); i++) {
    for (unsigned device = 0; device < provider_devices(provider); device++, all++) {
      if (all < *count)
        describe(provider, device, &devices[all]);
    }
  }
  *count = all;
  return 0;
}

HAUL_API int haul_port_list(haul_node *node, struct haul_place from, struct haul_port *ports,
                            size_t *count) {
  int code = error_enter("haul_port_list");
  if (code)
    return code;
  if (!node || !count || (*count > 0 && !ports))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no node or no room");
  const struct provider *provider = provider_of(from.kind);
  if (!provider || from.device >= provider_devices(provider))
    return error_set(HAUL_EPLACE, 0, NULL, "haul_device_list has them all",
                     "there is no such device");
  struct haul_device device;
  size_t all = 0;
  describe(provider, from.device, &device);
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->ports)
      all += transport_at(i)->ports(&device, all < *count ? ports + all : NULL,
                                    all < *count ? *count - all : 0);
  *count = all;
  return 0;
}

typedef size_t checks_fn(struct haul_check *checks, size_t room);

static size_t add_checks(checks_fn *fill, struct haul_check *checks, size_t room, size_t all) {
  if (!fill)
    return all;
  return all + fill(all < room ? checks + all : NULL, all < room ? room - all : 0);
}

HAUL_API int haul_check_list(haul_node *node, struct haul_check *checks, size_t *count) {
  int code = error_enter("haul_check_list");
  if (code)
    return code;
  if (!node || !count || (*count > 0 && !checks))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no node or no room");
  size_t all = 0;
  for (size_t i = 0; provider_at(i); i++)
    all = add_checks(provider_at(i)->checks, checks, *count, all);
  for (size_t i = 0; transport_at(i); i++)
    all = add_checks(transport_at(i)->checks, checks, *count, all);
  *count = all;
  return 0;
}

/* ---- Counters ---- */

typedef void each_fn(void *user, const char *name, uint64_t value);

struct totals {
  uint64_t writes, reads, atomics, bytes_out, bytes_in, errors, served, served_in, served_out;
};

static void add(struct totals *totals, const struct endpoint_counters *counters) {
  totals->writes += atomic_load_explicit(&counters->writes, memory_order_relaxed);
  totals->reads += atomic_load_explicit(&counters->reads, memory_order_relaxed);
  totals->atomics += atomic_load_explicit(&counters->atomics, memory_order_relaxed);
  totals->bytes_out += atomic_load_explicit(&counters->bytes_out, memory_order_relaxed);
  totals->bytes_in += atomic_load_explicit(&counters->bytes_in, memory_order_relaxed);
  totals->errors += atomic_load_explicit(&counters->errors, memory_order_relaxed);
  totals->served += atomic_load_explicit(&counters->served, memory_order_relaxed);
  totals->served_in += atomic_load_explicit(&counters->served_in, memory_order_relaxed);
  totals->served_out += atomic_load_explicit(&counters->served_out, memory_order_relaxed);
}

static void tell(each_fn *each, void *user, const char *prefix, const char *path,
                 const struct totals *totals) {
  const struct {
    const char *name;
    uint64_t value;
  } all[] = {{"writes", totals->writes},        {"reads", totals->reads},
             {"atomics", totals->atomics},      {"bytes_out", totals->bytes_out},
             {"bytes_in", totals->bytes_in},    {"errors", totals->errors},
             {"served", totals->served},        {"served_in", totals->served_in},
             {"served_out", totals->served_out}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s.%s.%s", prefix, path, all[i].name);
    each(user, name, all[i].value);
  }
}

/* With the loop's lock. Peers that left are part of the paths' totals. */
static void tell_paths(struct haul_node *node, each_fn *each, void *user) {
  for (size_t i = 0; transport_at(i); i++) {
    struct totals totals = {0};
    add(&totals, &node->fabric.left[i]);
    list_each(item, &node->peers) {
      struct haul_peer *peer = list_entry(item, struct haul_peer, list);
      struct totals own = {0};
      char prefix[80];
      add(&own, &peer->base.endpoints[i]->counters);
      add(&totals, &peer->base.endpoints[i]->counters);
      snprintf(prefix, sizeof prefix, "peer.%s", peer->base.name);
      tell(each, user, prefix, transport_at(i)->name, &own);
    }
    tell(each, user, "path", transport_at(i)->name, &totals);
  }
}

static void tell_node(struct haul_node *node, each_fn *each, void *user) {
  struct heap_counters heap;
  heap_counters(node->heap, &heap);
  each(user, "pool.allocated", heap.allocated);
  each(user, "pool.freed", heap.freed);
  each(user, "pool.hits", heap.hits);
  each(user, "pool.misses", heap.misses);
  each(user, "pool.bytes", heap.pooled_bytes);
  each(user, "pool.trimmed", heap.trimmed);
  struct staging_counters staging;
  staging_counters(heap_staging(node->heap), &staging);
  each(user, "staging.bytes", staging.bytes);
  each(user, "staging.limit", staging.limit);
  each(user, "staging.waits", staging.waits);
  each(user, "imports.shared", heap.imports_shared);
  each(user, "imports.expired", heap.imports_expired);
  each(user, "node.published", exports_count(node->exports, NULL));
  each(user, "node.transfers", atomic_load(&node->transfers.handles));
  each(user, "node.transfers_bytes",
       atomic_load(&node->transfers.bytes) + atomic_load(&node->fabric.work_bytes));
  each(user, "node.transfers_posted", atomic_load(&node->transfers.started));
  each(user, "node.transfers_failed", atomic_load(&node->transfers.failed));
  each(user, "node.slices_retried", atomic_load(&node->transfers.retried));
  each(user, "node.slices_held", atomic_load(&node->transfers.waited));
}

static void tell_all(struct haul_node *node, each_fn *each, void *user) {
  tell_node(node, each, user);
  for (size_t i = 0; provider_at(i); i++)
    if (provider_at(i)->counters)
      provider_at(i)->counters(each, user);
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->counters && node->fabric.shared[i])
      transport_at(i)->counters(&node->fabric, each, user);
  loop_lock(node->loop);
  each(user, "node.peers", node->peer_count);
  tell_paths(node, each, user);
  loop_unlock(node->loop);
}

HAUL_API int haul_counter_list(haul_node *node, each_fn *each, void *user) {
  int code = node_enter("haul_counter_list", node);
  if (code)
    return code;
  if (!each)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "nobody to tell");
  tell_all(node, each, user);
  return 0;
}

struct wanted {
  const char *name;
  uint64_t value;
  bool found;
};

static void match(void *user, const char *name, uint64_t value) {
  struct wanted *wanted = user;
  if (strcmp(name, wanted->name) != 0)
    return;
  wanted->value += value; /* two peers may have one name */
  wanted->found = true;
}

HAUL_API int haul_counter_read(haul_node *node, const char *name, uint64_t *value) {
  struct wanted wanted = {.name = name};
  int code = node_enter("haul_counter_read", node);
  if (code)
    return code;
  if (!name || !value)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no name, or no place for the value");
  tell_all(node, match, &wanted);
  if (!wanted.found)
    return error_set(HAUL_ENAME, 0, name, "haul_counter_list tells all",
                     "there is no such counter");
  *value = wanted.value;
  return 0;
}
