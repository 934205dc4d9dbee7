/* SPDX-License-Identifier: MIT
 * Names: publishing them, answering peers that ask, asking peers. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "node/node.h"

#define PAGE 24 /* entries of a list that surely fit CONTROL_BODY_MAX */

/* ---- Publishing ---- */

/* A region may be held for longer than its node. 0: held, to be put. */
static int hold_open_node(struct haul_region *region, const char *name, struct haul_node **node) {
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
    return error_set(HAUL_EINVAL, 0, name, NULL, "no region, or nobody to publish it to");
  if (!memory_alive(&region->memory))
    return error_released(name);
  for (size_t i = 0; i < count; i++)
    if ((grants[i].rights & HAUL_WRITE) && !region->memory.writable)
      return error_set(HAUL_EACCESS, 0, name, "publish it with HAUL_READ alone",
                       "the memory may not be written");
  int code = hold_open_node(region, name, &node);
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

/* Whether a peer still touches the region; those that do are dropped when it is `late`. With the
 * loop's lock. */
static bool is_touched(struct haul_node *node, uint64_t handle, const struct haul_region *region,
                       bool late) {
  bool touched = false;
  list_each(item, &node->peers) {
    struct haul_peer *peer = list_entry(item, struct haul_peer, list);
    for (size_t i = 0; transport_at(i); i++) {
      const struct transport *transport = transport_at(i);
      if (!transport->touches || !transport->touches(peer->base.endpoints[i], handle, region))
        continue;
      touched = true;
      if (late)
        peer_fail(peer, HAUL_EPEER, "it did not end a copy within the liveness bound");
    }
  }
  return touched;
}

/* Between two looks the others are served. */
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
  int code = error_enter("haul_region_unpublish");
  if (code)
    return code;
  if (!region || !name)
    return error_set(HAUL_EINVAL, 0, name, NULL, "no region or no name");
  struct haul_node *node;
  code = hold_open_node(region, name, &node);
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

/* ---- Answering ---- */

static bool is_told(const struct haul_peer *peer, uint64_t handle) {
  for (uint32_t i = 0; i < peer->told_count; i++)
    if (peer->told[i] == handle)
      return true;
  return false;
}

/* Of those that are not published any more the peer may be told others. */
static void forget_ended(struct haul_peer *peer) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < peer->told_count; i++) {
    struct export_view view;
    if (exports_find(peer->node->exports, peer->told[i], peer->base.identity, &view) != 0)
      continue;
    region_put(view.region);
    peer->told[kept++] = peer->told[i];
  }
  peer->told_count = kept;
}

/* Whether the peer may have this region too. What it is told is kept only where there is a limit.
 */
static int tell(struct haul_peer *peer, uint64_t handle) {
  unsigned most = peer->node->config.max_lookups;
  if (most == UINT_MAX || is_told(peer, handle))
    return 0;
  if (!peer->told && !(peer->told = alloc_zero(most, sizeof *peer->told)))
    return HAUL_ENOMEM;
  if (peer->told_count == most)
    forget_ended(peer);
  if (peer->told_count == most) {
    peer_log(peer, LOG_LIMIT, 0, "it knows as many regions as max_lookups allows");
    return HAUL_ELIMIT;
  }
  peer->told[peer->told_count++] = handle;
  return 0;
}

int names_on_lookup(struct haul_peer *peer, uint32_t request, const uint8_t *body, size_t length) {
  char name[NAME_MAX_BYTES + 1];
  uint8_t answer[64];
  struct export_view view;
  struct wire in = wire_over(body, length);
  struct wire out = wire_over(answer, sizeof answer);
  wire_get_string(&in, name, sizeof name);
  if (in.failed || wire_left(&in) > 0)
    return HAUL_EPROTO;
  int code = exports_find_name(peer->node->exports, name, peer->base.identity, &view);
  int refused = code ? code : tell(peer, view.handle);
  wire_put32(&out, (uint32_t)refused);
  if (code == 0 && refused)
    region_put(view.region);
  if (refused == 0) {
    wire_put64(&out, view.handle);
    wire_put64(&out, view.region->memory.length);
    wire_put16(&out, view.region->memory.place.kind);
    wire_put16(&out, view.region->memory.place.device);
    wire_put32(&out, view.rights);
    region_put(view.region);
  }
  control_send(peer, CONTROL_FOUND, request, answer, sizeof answer - wire_left(&out));
  return 0;
}

int names_on_list(struct haul_peer *peer, uint32_t request, const uint8_t *body, size_t length) {
  char after[NAME_MAX_BYTES + 1];
  uint8_t answer[CONTROL_BODY_MAX];
  struct wire in = wire_over(body, length);
  struct wire out = wire_over(answer, sizeof answer);
  wire_get_string(&in, after, sizeof after);
  if (in.failed || wire_left(&in) > 0)
    return HAUL_EPROTO;
  struct export_view views[PAGE];
  size_t count = exports_list(peer->node->exports, after, peer->base.identity, views, PAGE);
  wire_put32(&out, (uint32_t)exports_count(peer->node->exports, peer->base.identity));
  wire_put16(&out, (uint16_t)count);
  for (size_t i = 0; i < count; i++) {
    wire_put64(&out, views[i].length);
    wire_put16(&out, views[i].place.kind);
    wire_put16(&out, views[i].place.device);
    wire_put32(&out, views[i].rights);
    wire_put_string(&out, views[i].name);
  }
  control_send(peer, CONTROL_NAMES, request, answer, sizeof answer - wire_left(&out));
  return 0;
}

/* ---- Asking ---- */

struct lookup {
  struct request request; /* first */
  const char *name;
  struct remote_key key;
};

static int take_found(struct request *request, const uint8_t *body, size_t length) {
  struct lookup *lookup = (struct lookup *)request;
  struct wire wire = wire_over(body, length);
  int32_t status = (int32_t)wire_get32(&wire);
  if (wire.failed || status > 0 || status < HAUL_EPATH)
    return HAUL_EPROTO;
  if (status == HAUL_ELIMIT)
    return error_set(status, 0, lookup->name, "raise max_lookups of the peer's node",
                     "the peer lets this node use no more regions at a time");
  if (status == HAUL_ENOMEM)
    return error_set(status, 0, lookup->name, NULL, "the peer has no memory for the lookup");
  if (status)
    return error_set(status, 0, lookup->name, "list its regions: haul ls NODE",
                     "the peer publishes no region of this name");
  lookup->key.handle = wire_get64(&wire);
  lookup->key.length = wire_get64(&wire);
  lookup->key.place.kind = wire_get16(&wire);
  lookup->key.place.device = wire_get16(&wire);
  lookup->key.rights = wire_get32(&wire);
  return wire.failed || wire_left(&wire) > 0 ? HAUL_EPROTO : 0;
}

HAUL_API int haul_peer_lookup(haul_peer *peer, const char *name, haul_deadline until,
                              haul_remote **remote) {
  uint8_t body[NAME_MAX_BYTES + 2];
  int code = error_enter("haul_peer_lookup");
  if (code)
    return code;
  if (!peer || !remote || !name_is_valid(name, NAME_MAX_BYTES))
    return error_set(HAUL_EINVAL, 0, NULL,
                     "a name is 1 to 255 printable ASCII bytes without blanks",
                     "no peer, or not a name");
  struct wire wire = wire_over(body, sizeof body);
  wire_put_string(&wire, name);
  struct lookup lookup = {.request = {.peer = peer, .take = take_found}, .name = name};
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

static int take_names(struct request *request, const uint8_t *body, size_t length) {
  struct listing *listing = (struct listing *)request;
  struct wire wire = wire_over(body, length);
  listing->total = wire_get32(&wire);
  listing->page = wire_get16(&wire);
  for (size_t i = 0; i < listing->page && !wire.failed; i++) {
    struct haul_published entry;
    memset(&entry, 0, sizeof entry);
    entry.length = wire_get64(&wire);
    entry.place.kind = wire_get16(&wire);
    entry.place.device = wire_get16(&wire);
    entry.rights = wire_get32(&wire);
    wire_get_string(&wire, entry.name, sizeof entry.name);
    /* Sorted, so that a peer cannot keep us asking. */
    if (wire.failed || !name_is_valid(entry.name, NAME_MAX_BYTES) ||
        strcmp(entry.name, listing->last) <= 0)
      return HAUL_EPROTO;
    memcpy(listing->last, entry.name, sizeof listing->last);
    if (listing->count < listing->room)
      listing->entries[listing->count] = entry;
    listing->count++;
  }
  return wire.failed || wire_left(&wire) > 0 ? HAUL_EPROTO : 0;
}

HAUL_API int haul_peer_list(haul_peer *peer, haul_deadline until, struct haul_published *entries,
                            size_t *count) {
  int code = error_enter("haul_peer_list");
  if (code)
    return code;
  if (!peer || !count || (*count > 0 && !entries))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no peer or no room for entries");
  struct listing listing = {.entries = entries, .room = *count};
  do {
    uint8_t body[NAME_MAX_BYTES + 2];
    struct wire wire = wire_over(body, sizeof body);
    wire_put_string(&wire, listing.last);
    listing.request = (struct request){.peer = peer, .take = take_names};
    code = control_request(&listing.request, CONTROL_LIST, body, sizeof body - wire_left(&wire),
                           until);
    if (code)
      return code;
  } while (listing.page > 0 && listing.count < listing.total && listing.count < listing.room);
  /* With room left the list is over, whatever total the peer told. */
  bool whole = listing.count < listing.room || listing.count > listing.total;
  *count = whole ? listing.count : listing.total;
  return 0;
}
