/* SPDX-License-Identifier: MIT
 * Regions: the public calls, publishing and withdrawing, serving lookups, looking up at peers. */
#include <limits.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "memory/copy.h"
#include "memory/staging.h"
#include "memory/ticket.h"
#include "node/peer.h"

#define PAGE 24 /* entries of NAMES: at most 24 * 273 bytes, which fit CONTROL_BODY_MAX */

/* Pins the memory at once if the node has memory of a device whose engine pins. */
static __attribute__((noinline)) int alloc_pinned(haul_node *node, struct haul_place place,
                                                  size_t length, unsigned flags,
                                                  haul_region **region) {
  int code = heap_alloc(node->heap, place, length, flags, region);
  if (code == 0)
    staging_pin(heap_staging(node->heap), &(*region)->memory, -1);
  return code;
}

HAUL_API int haul_region_alloc(haul_node *node, struct haul_place place, size_t length,
                               unsigned flags, haul_region **region) {
  if (error_enter_inline("haul_region_alloc") != 0) /* the hot path makes only tail calls */
    return HAUL_EFORK;
  if (__builtin_expect(!node || !region, 0))
    return node_enter("haul_region_alloc", false, "node or region is NULL");
  if (__builtin_expect(flags & HAUL_REGION_PINNED, 0))
    return alloc_pinned(node, place, length, flags, region);
  return heap_alloc(node->heap, place, length, flags, region);
}

HAUL_API int haul_region_wrap(haul_node *node, void *address, size_t length, haul_region **region) {
  int code = node_enter("haul_region_wrap", node && region, "node or region is NULL");
  return code ? code : heap_wrap(node->heap, address, length, region);
}

HAUL_API int haul_region_wrap_file(haul_node *node, int descriptor, uint64_t offset, size_t length,
                                   haul_region **region) {
  int code = node_enter("haul_region_wrap_file", node && region, "node or region is NULL");
  return code ? code : heap_wrap_file(node->heap, descriptor, offset, length, region);
}

HAUL_API int haul_region_import(haul_node *node, const struct haul_ticket *ticket, int descriptor,
                                haul_region **region) {
  int code =
      node_enter("haul_region_import", node && ticket && region, "node, ticket or region is NULL");
  return code ? code : heap_import(node->heap, ticket, descriptor, region);
}

HAUL_API int haul_region_export(haul_region *region, unsigned rights,
                                const struct haul_tensor *layout, struct haul_ticket *ticket,
                                int *descriptor) {
  int code = node_enter("haul_region_export", region && ticket, "region or ticket is NULL");
  if (code)
    return code;
  return region_export(region, rights, layout, ticket, descriptor);
}

HAUL_API int haul_ticket_layout(const struct haul_ticket *ticket, struct haul_tensor *layout) {
  struct ticket unpacked;
  int code = node_enter("haul_ticket_layout", ticket && layout, "ticket or layout is NULL");
  if (code)
    return code;
  code = ticket_unpack(ticket, &unpacked);
  if (code)
    return code;
  if (!unpacked.has_layout)
    return error_set(HAUL_ENAME, 0, NULL, "pass a layout to haul_region_export",
                     "the ticket carries no layout");
  *layout = unpacked.layout;
  return 0;
}

static int set_dpdk(const char *call, struct haul_region *region, bool wanted) {
  int code = node_enter(call, region, "region is NULL");
  return code ? code : region_enroll(region, HAUL_DPDK, wanted);
}

HAUL_API int haul_region_dpdk_register(haul_region *region) {
  return set_dpdk("haul_region_dpdk_register", region, true);
}

HAUL_API int haul_region_dpdk_unregister(haul_region *region) {
  return set_dpdk("haul_region_dpdk_unregister", region, false);
}

HAUL_API void *haul_region_address(const haul_region *region) {
  return region ? region->memory.address : NULL;
}

HAUL_API size_t haul_region_length(const haul_region *region) {
  return region ? region->memory.length : 0;
}

HAUL_API struct haul_place haul_region_place(const haul_region *region) {
  return region ? region->memory.place : (struct haul_place){0, 0};
}

HAUL_API unsigned haul_region_rights(const haul_region *region) {
  if (!region)
    return 0;
  return HAUL_READ | (region->memory.writable ? HAUL_WRITE : 0);
}

HAUL_API int haul_region_copy(haul_region *to, uint64_t to_offset, haul_region *from,
                              uint64_t from_offset, size_t length, haul_deadline until) {
  int code = node_enter("haul_region_copy", to && from, "region is NULL");
  if (code)
    return code;
  code = region_check(to, to_offset, length);
  if (code == 0)
    code = region_check(from, from_offset, length);
  if (code == 0)
    code = error_if_passed(until, NULL);
  if (code || length == 0)
    return code;
  if (!memory_alive(&to->memory) || !memory_alive(&from->memory))
    return error_released(NULL);
  code = copy_sync(heap_staging(to->heap), &to->memory, to_offset, &from->memory, from_offset,
                   length, until);
  if (code == 0 && !(memory_alive(&to->memory) && memory_alive(&from->memory)))
    code = error_released(NULL);
  return code;
}

/* Retains the region's node, which may have been closed before the region. */
static int retain_open_node(struct haul_region *region, const char *name, struct haul_node **node) {
  *node = region_hold_node(region);
  if (*node && !node_is_closed(*node))
    return 0;
  if (*node)
    node_put(*node);
  return error_code(HAUL_ECLOSED, name);
}

static int publish(haul_region *region, const char *name, const struct haul_grant *grants,
                   size_t count) {
  uint64_t handle;
  struct haul_node *node;
  if (!region || !grants)
    return error_set(HAUL_EINVAL, 0, name, NULL, "region or grants is NULL");
  if (!memory_alive(&region->memory))
    return error_released(name);
  for (size_t i = 0; i < count; i++)
    if ((grants[i].rights & HAUL_WRITE) && !region->memory.writable)
      return error_set(HAUL_EACCESS, 0, name, "publish it with HAUL_READ only",
                       "the memory is read-only");
  int code = retain_open_node(region, name, &node);
  if (code)
    return code;
  code = exports_add(node->exports, region, name, grants, count, &handle);
  node_put(node);
  return code;
}

HAUL_API int haul_region_publish(haul_region *region, const char *name, unsigned rights) {
  const struct haul_grant everybody = {"*", rights};
  int code = error_enter("haul_region_publish");
  return code ? code : publish(region, name, &everybody, 1);
}

HAUL_API int haul_region_publish_to(haul_region *region, const char *name,
                                    const struct haul_grant *grants, size_t count) {
  int code = error_enter("haul_region_publish_to");
  return code ? code : publish(region, name, grants, count);
}

/* With the loop's lock. */
static void revoke_everywhere(struct haul_node *node, uint64_t handle, struct haul_region *region) {
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    for (size_t i = 0; transport_at(i); i++)
      if (transport_at(i)->revoke)
        transport_at(i)->revoke(peer->base.endpoints[i], handle, region);
  }
}

/* With the loop's lock. */
static bool peer_touches(const struct haul_peer *peer, uint64_t handle,
                         const struct haul_region *region) {
  bool touches = false;
  for (size_t i = 0; transport_at(i); i++)
    if (transport_at(i)->touches)
      touches |= transport_at(i)->touches(peer->base.endpoints[i], handle, region);
  return touches;
}

/* With the loop's lock: whether peers still touch the region. With `drop` they are dropped. */
static bool is_touched(struct haul_node *node, uint64_t handle, const struct haul_region *region,
                       bool drop) {
  bool touched = false;
  list_each_safe(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    if (!peer_touches(peer, handle, region))
      continue;
    touched = true;
    if (drop)
      peer_drop(peer, HAUL_EPEER,
                "the peer did not end a copy of a withdrawn region within the liveness timeout");
  }
  return touched;
}

/* Peers acknowledge to the loop, which this thread may have to run. */
static void wait_for_peers(struct haul_node *node) {
  if (node->config.progress == HAUL_PROGRESS_CALLER || loop_in_deferred(node->loop))
    loop_run(node->loop, clock_after(clock_now(), 20000));
  else
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

int regions_withdraw(struct haul_node *node, struct haul_region *region, const char *name) {
  uint64_t handle;
  int64_t until = clock_after(clock_now(), node->config.liveness_ns);
  loop_lock(node->loop);
  int code = exports_remove(node->exports, region, name, &handle);
  if (code == 0)
    revoke_everywhere(node, handle, region);
  for (bool late = false; code == 0 && is_touched(node, handle, region, late) && !late;) {
    loop_unlock(node->loop);
    wait_for_peers(node);
    late = clock_now() >= until;
    loop_lock(node->loop);
  }
  loop_unlock(node->loop);
  return code;
}

HAUL_API int haul_region_unpublish(haul_region *region, const char *name) {
  int code = node_enter("haul_region_unpublish", region && name, "region or name is NULL");
  if (code)
    return code;
  struct haul_node *node;
  code = retain_open_node(region, name, &node);
  if (code)
    return code;
  code = regions_withdraw(node, region, name);
  node_put(node);
  return code;
}

struct release {
  struct haul_node *node;
  struct haul_region *region;
};

static bool is_unused(void *user) {
  struct release *release = user;
  return !transfers_use(&release->node->transfers, release->region, NULL);
}

/* A NIC may access the memory for as long as its requests are not answered. It loses its queue pair
 * with the peer. */
static void drop_users(struct haul_node *node, const struct haul_region *region) {
  loop_lock(node->loop);
  list_each_safe(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    if (transfers_use(&node->transfers, region, &peer->base))
      peer_drop(peer, HAUL_EPEER,
                "a transfer of a released region did not end within the liveness timeout");
  }
  loop_unlock(node->loop);
}

/* In rounds, because another thread may be starting a transfer that one round does not see. */
static void abort_transfers(struct haul_node *node, struct haul_region *region) {
  struct release release = {node, region};
  int64_t until = clock_after(clock_now(), node->config.liveness_ns);
  while (!is_unused(&release) && clock_now() < until) {
    loop_lock(node->loop);
    transfers_abort(&node->transfers, region, NULL, HAUL_ECANCELED, "the region was released");
    loop_unlock(node->loop);
    loop_wait(node->loop, is_unused, NULL, &release, clock_after(clock_now(), 1000000));
  }
  if (!is_unused(&release))
    drop_users(node, region);
}

static void withdraw_region(haul_region *region) {
  atomic_store(&region->released, true);
  struct haul_node *node = region_hold_node(region);
  if (!node)
    return;
  /* Every name. Without locks, as it waits until no peer touches the region, at most for the
   * liveness timeout. */
  while (atomic_load(&region->names) > 0 && regions_withdraw(node, region, NULL) == 0)
    ;
  /* Another thread that closes the node holds the loop's lock until no peer touches the memory. */
  if (node_is_closed(node)) {
    loop_lock(node->loop);
    loop_unlock(node->loop);
  }
  abort_transfers(node, region);
  node_put(node);
}

/* A function of its own, so that the fast path below saves no registers for it. */
static __attribute__((noinline)) void release_published(haul_region *region) {
  if (error_enter("haul_region_release") == 0)
    withdraw_region(region);
  region_put(region);
}

HAUL_API void haul_region_release(haul_region *region) {
  if (!region)
    return;
  /* A region that was never published and is not in use only frees its memory. */
  bool plain = atomic_load_explicit(&region->refs, memory_order_acquire) == 1 &&
               !atomic_load_explicit(&region->was_published, memory_order_relaxed);
  if (__builtin_expect(plain, 1))
    region_put(region);
  else
    release_published(region);
}

/* Forgets grants of regions that are not published any more. */
static void compact_grants(struct haul_peer *peer) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < peer->granted_count; i++) {
    struct export_view view;
    if (exports_find(peer->node->exports, peer->granted[i], peer->base.identity, &view) != 0)
      continue;
    region_put(view.region);
    peer->granted[kept++] = peer->granted[i];
  }
  peer->granted_count = kept;
}

/* Counts the region against max_lookups. Grants are recorded only where there is a limit. */
static int grant(struct haul_peer *peer, uint64_t handle) {
  unsigned limit = peer->node->config.max_lookups;
  if (limit == UINT_MAX)
    return 0;
  for (uint32_t i = 0; i < peer->granted_count; i++)
    if (peer->granted[i] == handle)
      return 0;
  if (!peer->granted && !(peer->granted = alloc_zero(limit, sizeof *peer->granted)))
    return HAUL_ENOMEM;
  if (peer->granted_count == limit)
    compact_grants(peer);
  if (peer->granted_count == limit) {
    peer_log(peer, LOG_LIMIT, 0, "the peer looked up as many regions as max_lookups allows");
    return HAUL_ELIMIT;
  }
  peer->granted[peer->granted_count++] = handle;
  return 0;
}

void regions_serve_lookup(struct haul_peer *peer, struct wire *in, struct wire *out) {
  char name[NAME_MAX_BYTES + 1];
  struct export_view view = {.region = NULL};
  wire_get_string(in, name, sizeof name);
  int code = exports_find_name(peer->node->exports, name, peer->base.identity, &view);
  bool found = code == 0;
  if (found)
    code = grant(peer, view.handle);
  wire_put32(out, (uint32_t)code);
  if (code == 0) {
    wire_put64(out, view.handle);
    wire_put64(out, view.region->memory.length);
    wire_put16(out, view.region->memory.place.kind);
    wire_put16(out, view.region->memory.place.device);
    wire_put32(out, view.rights);
  }
  if (found)
    region_put(view.region);
}

void regions_serve_list(struct haul_peer *peer, struct wire *in, struct wire *out) {
  char after[NAME_MAX_BYTES + 1];
  wire_get_string(in, after, sizeof after);
  struct export_view views[PAGE];
  size_t count = exports_list(peer->node->exports, after, peer->base.identity, views, PAGE);
  wire_put32(out, (uint32_t)exports_count(peer->node->exports, peer->base.identity));
  wire_put16(out, (uint16_t)count);
  for (size_t i = 0; i < count; i++) {
    wire_put64(out, views[i].length);
    wire_put16(out, views[i].place.kind);
    wire_put16(out, views[i].place.device);
    wire_put32(out, views[i].rights);
    wire_put_string(out, views[i].name);
  }
}

struct lookup {
  struct request request; /* first */
  const char *name;
  struct remote_key key;
};

static int parse_found(struct request *request, struct wire *in) {
  struct lookup *lookup = (struct lookup *)request;
  int32_t status = (int32_t)wire_get32(in);
  if (in->failed || status > 0 || status < HAUL_EPATH)
    return HAUL_EPROTO;
  if (status == HAUL_ELIMIT)
    return error_set(status, 0, lookup->name, "raise max_lookups of the peer's node",
                     "the peer's limit of regions that this node may look up is reached");
  if (status == HAUL_ENOMEM)
    return error_set(status, 0, lookup->name, NULL, "the peer has no memory for the lookup");
  if (status)
    return error_set(status, 0, lookup->name,
                     "list the peer's regions: haul ls NODE; an exported file is NODE/EXPORT/PATH",
                     "the peer publishes no region of this name");
  lookup->key.handle = wire_get64(in);
  lookup->key.length = wire_get64(in);
  lookup->key.place.kind = wire_get16(in);
  lookup->key.place.device = wire_get16(in);
  lookup->key.rights = wire_get32(in);
  return 0;
}

HAUL_API int haul_peer_lookup(haul_peer *peer, const char *name, haul_deadline until,
                              haul_remote **remote) {
  uint8_t body[NAME_MAX_BYTES + 2];
  int code = error_enter("haul_peer_lookup");
  if (code)
    return code;
  if (!peer || !remote || !name_is_valid(name, NAME_MAX_BYTES))
    return error_set(HAUL_EINVAL, 0, NULL,
                     "pass a name of 1 to 255 printable ASCII characters without blanks",
                     peer && remote && name ? "invalid name" : "peer, remote or name is NULL");
  code = error_if_passed(until, name);
  if (code)
    return code;
  struct wire wire = wire_over(body, sizeof body);
  wire_put_string(&wire, name);
  struct lookup lookup = {.request = {.peer = peer, .parse = parse_found}, .name = name};
  code =
      control_request(&lookup.request, CONTROL_LOOKUP, body, sizeof body - wire_left(&wire), until);
  if (code)
    return code;
  return remote_open(&peer->node->transfers, &peer->base, &lookup.key, name, until, remote);
}

struct listing {
  struct request request; /* first */
  struct haul_published *entries;
  size_t room, count, total, page;
  char last[NAME_MAX_BYTES + 1];
};

static int parse_names(struct request *request, struct wire *in) {
  struct listing *listing = (struct listing *)request;
  listing->total = wire_get32(in);
  listing->page = wire_get16(in);
  if (listing->total > EXPORT_SLOTS_MAX)
    return HAUL_EPROTO; /* a caller may allocate room for all */
  for (size_t i = 0; i < listing->page && !in->failed; i++) {
    struct haul_published entry;
    memset(&entry, 0, sizeof entry);
    entry.length = wire_get64(in);
    entry.place.kind = wire_get16(in);
    entry.place.device = wire_get16(in);
    entry.rights = wire_get32(in);
    wire_get_string(in, entry.name, sizeof entry.name);
    /* The order bounds the number of requests, whatever the peer sends. */
    if (in->failed || !name_is_valid(entry.name, NAME_MAX_BYTES) ||
        strcmp(entry.name, listing->last) <= 0)
      return HAUL_EPROTO;
    memcpy(listing->last, entry.name, sizeof listing->last);
    if (listing->count < listing->room)
      listing->entries[listing->count] = entry;
    listing->count++;
  }
  return 0;
}

HAUL_API int haul_peer_list(haul_peer *peer, haul_deadline until, struct haul_published *entries,
                            size_t *count) {
  int code = node_enter("haul_peer_list", peer && count && (*count == 0 || entries),
                        "peer, entries or count is NULL");
  if (code == 0)
    code = error_if_passed(until, peer->base.name);
  if (code)
    return code;
  struct listing listing = {.entries = entries, .room = *count};
  do {
    uint8_t body[NAME_MAX_BYTES + 2];
    struct wire wire = wire_over(body, sizeof body);
    wire_put_string(&wire, listing.last);
    listing.request = (struct request){.peer = peer, .parse = parse_names};
    code = control_request(&listing.request, CONTROL_LIST, body, sizeof body - wire_left(&wire),
                           until);
    if (code)
      return code;
  } while (listing.page > 0 && listing.count < listing.total && listing.count < listing.room);
  /* With room left the list is complete, whatever total the peer claims. */
  bool whole = listing.count < listing.room || listing.count > listing.total;
  *count = whole ? listing.count : listing.total;
  return 0;
}
