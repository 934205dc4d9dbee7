/* SPDX-License-Identifier: MIT
 * Published regions: publishing and withdrawing, serving lookups, looking up at peers. */
#include <limits.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "node/requests.h"

#define PAGE 24 /* entries of NAMES: at most 24 * 273 bytes, which fit CONTROL_BODY_MAX */

/* ---- Publishing ---- */

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

/* With the loop's lock: whether peers still touch the region. With `fail` they are dropped. */
static bool is_touched(struct haul_node *node, uint64_t handle, const struct haul_region *region,
                       bool fail) {
  bool touched = false;
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    for (size_t i = 0; transport_at(i); i++) {
      const struct transport *transport = transport_at(i);
      if (!transport->touches || !transport->touches(peer->base.endpoints[i], handle, region))
        continue;
      touched = true;
      if (fail)
        peer_fail(peer, HAUL_EPEER,
                  "the peer did not end a copy of a withdrawn region within the liveness bound");
    }
  }
  return touched;
}

/* Removes the name, and waits without locks until no peer touches the region. */
static int withdraw(struct haul_node *node, struct haul_region *region, const char *name) {
  uint64_t handle;
  int64_t until = clock_after(clock_now(), node->config.liveness_ns);
  loop_lock(node->loop);
  int code = exports_remove(node->exports, region, name, &handle);
  if (code == 0)
    revoke_everywhere(node, handle, region);
  for (bool late = false; code == 0 && is_touched(node, handle, region, late) && !late;) {
    loop_unlock(node->loop);
    nanosleep(&(struct timespec){0, 20000}, NULL);
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
  code = withdraw(node, region, name);
  node_put(node);
  return code;
}

void names_withdraw(struct haul_node *node, struct haul_region *region) {
  while (atomic_load(&region->names) > 0 && withdraw(node, region, NULL) == 0)
    ;
}

/* ---- Serving ---- */

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

void names_serve_lookup(struct haul_peer *peer, struct wire *in, struct wire *out) {
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

void names_serve_list(struct haul_peer *peer, struct wire *in, struct wire *out) {
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

/* ---- Looking up ---- */

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
    return error_set(status, 0, lookup->name, "list the peer's regions: haul ls NODE",
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
                     "peer or remote is NULL, or the name is invalid");
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
