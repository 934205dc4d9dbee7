/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/client.h"
#include "common/fail.h"

#define PAUSE_FACTOR 10 /* a store that cannot be reached takes a tenth of the time at most */
#define PAUSE_LEAST  (10 * HAUL_MILLISECOND)
#define PAUSE_HUNG   HAUL_SECOND

bool is_link_failure(int code) {
  switch (code) {
  case HAUL_EPEER:
  case HAUL_ESTALE:
  case HAUL_EPATH:
  case HAUL_ENOPATH:
  case HAUL_EPROTO:
  case HAUL_ETIMEDOUT:
  case HAUL_ECLOSED:
  case HAUL_ECONNECT:
    return true;
  default:
    return false;
  }
}

void link_free(struct link *link) {
  for (unsigned i = 0; i < TIERS; i++)
    haul_remote_release(link->remotes[i]);
  haul_remote_release(link->device_blocks);
  haul_peer_close(link->peer);
  free(link);
}

void link_put(struct haul_cache *cache, struct link *link) {
  pthread_mutex_lock(&cache->lock);
  bool last = --link->users == 0;
  pthread_mutex_unlock(&cache->lock);
  if (last)
    link_free(link);
}

haul_remote *link_blocks(const struct link *link, unsigned tier) {
  return tier == DEVICE_TIER ? link->device_blocks : link->remotes[tier];
}

static int fail_no_store(void) {
  return fail(HAUL_EPROTO, "haul_cache", NULL, "use the same version of haul on both sides",
              "its region " REGION_NAME " is no store");
}

static double estimate_look(haul_region *region, haul_remote *remote,
                            const struct haul_transfer_options *options) {
  struct haul_path path = {.cost_ns = 0};
  size_t count = 1;
  return haul_explain(region, remote, HAUL_OP_READ, sizeof(uint64_t), options, &path, &count) ==
                     0 &&
                 path.open
             ? path.cost_ns
             : 0;
}

/* Reads and checks the numbers of a tier. */
static int read_header(struct haul_cache *cache, struct link *link, unsigned tier,
                       haul_deadline until) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_place host = {HAUL_HOST, 0};
  const struct haul_piece piece = {0, 0, sizeof(struct header)};
  haul_remote *remote = link->remotes[tier];
  struct header *header = &link->headers[tier];
  haul_region *region;
  if (haul_remote_length(remote) < HEADER_BYTES)
    return fail_no_store();
  int code = haul_region_alloc(cache->node, host, HEADER_BYTES, HAUL_REGION_PRIVATE, &region);
  if (code)
    return code;
  options.deadline = until;
  options.only = cache->only;
  code = haul_read(region, remote, &piece, 1, &options, NULL);
  if (code == 0)
    memcpy(header, haul_region_address(region), sizeof *header);
  if (tier == MEMORY_TIER)
    link->look_ns = estimate_look(region, remote, &options);
  haul_region_release(region);
  uint64_t apart = tier == DEVICE_TIER ? haul_remote_length(link->device_blocks) : 0;
  if (code == 0 && ((tier == DEVICE_TIER && apart == 0) ||
                    !header_is_sound(header, haul_remote_length(remote), apart)))
    return fail_no_store();
  return code;
}

/* A node without its store, which may come back, must not look like one that has no key. */
static int look_up(const struct link *link, const char *name, haul_deadline until,
                   haul_remote **remote) {
  int code = haul_peer_lookup(link->peer, name, until, remote);
  if (code == HAUL_ENAME)
    return fail(HAUL_ECONNECT, "haul_cache", NULL, "start the store: haul cache serve",
                "the node serves no store");
  return code;
}

static int find_tier(struct haul_cache *cache, struct link *link, unsigned tier,
                     haul_deadline until) {
  int code = look_up(link, tier_region(tier), until, &link->remotes[tier]);
  if (code == 0 && tier == DEVICE_TIER)
    code = look_up(link, DEVICE_BLOCKS_NAME, until, &link->device_blocks);
  return code ? code : read_header(cache, link, tier, until);
}

/* The header of the memory tier tells which others there are. */
static int find_tiers(struct haul_cache *cache, struct link *link, haul_deadline until) {
  int code = find_tier(cache, link, MEMORY_TIER, until);
  if (code)
    return code;
  uint64_t bits = atomic_load(&link->headers[MEMORY_TIER].tiers) | TIER_BIT(MEMORY_TIER);
  if (bits >= TIER_BIT(TIERS)) /* a key may be in a tier that is unknown here */
    return fail_no_store();
  for (unsigned i = 0; i < TIERS && code == 0; i++) {
    unsigned tier = tier_order[i];
    if (!(bits & TIER_BIT(tier)))
      continue;
    link->order[link->tiers++] = tier;
    if (tier != MEMORY_TIER)
      code = find_tier(cache, link, tier, until);
  }
  return code;
}

static int connect_link(struct haul_cache *cache, const char *address, haul_deadline until,
                        struct link **out) {
  struct link *link = calloc(1, sizeof *link);
  if (!link)
    return fail_memory("haul_cache");
  int code = haul_peer_connect(cache->node, address, until, &link->peer);
  if (code == 0)
    code = find_tiers(cache, link, until);
  if (code) {
    link_free(link);
    return code;
  }
  link->users = 2;
  *out = link;
  return 0;
}

/* Holds the lock. */
static void keep_reason(struct member *member, int code, const struct haul_error *error) {
  member->code = code;
  snprintf(member->reason, sizeof member->reason, "%.191s", error->text);
  snprintf(member->hint, sizeof member->hint, "%.191s", error->hint);
}

/* Holds the lock, but for the time of connecting. */
static int connect_member(struct haul_cache *cache, struct member *member, haul_deadline until,
                          struct link **out) {
  haul_deadline began = haul_deadline_in(0), limit = haul_deadline_in(cache->connect_ns);
  member->connecting = true;
  pthread_mutex_unlock(&cache->lock);
  int code = connect_link(cache, member->address, limit < until ? limit : until, out);
  pthread_mutex_lock(&cache->lock);
  member->connecting = false;
  pthread_cond_broadcast(&cache->changed);
  if (code == 0) {
    member->link = *out;
    member->link->number = ++cache->next_link;
    return 0;
  }
  keep_reason(member, code, haul_error_last());
  if (code != HAUL_ETIMEDOUT || limit < until) { /* the caller's deadline says nothing about it */
    int64_t pause = (haul_deadline_in(0) - began) * PAUSE_FACTOR;
    member->retry_at = haul_deadline_in(pause > PAUSE_LEAST ? pause : PAUSE_LEAST);
  }
  return code;
}

/* Holds the lock. Waits while another thread connects the member. */
static int await_connection(struct haul_cache *cache, struct member *member, haul_deadline until) {
  const struct timespec limit = {until / HAUL_SECOND, until % HAUL_SECOND};
  while (member->connecting)
    if (pthread_cond_timedwait(&cache->changed, &cache->lock, &limit))
      return HAUL_ETIMEDOUT;
  return 0;
}

/* Holds the lock. */
static void drop(struct member *member, struct link **unused) {
  if (--member->link->users == 0)
    *unused = member->link;
  member->link = NULL;
}

/* Holds the lock. The reason not to connect now. */
static int refuse(struct member *member) {
  if (member->left) {
    member->code = HAUL_EPEER;
    snprintf(member->reason, sizeof member->reason, "its entry in the directory is gone");
    snprintf(member->hint, sizeof member->hint, "start the store");
  }
  return fail(member->code, "haul_cache", member->address, member->hint, "%s", member->reason);
}

int link_get(struct haul_cache *cache, unsigned number, haul_deadline until, struct link **link) {
  struct member *member = &cache->members[number];
  struct link *unused = NULL;
  pthread_mutex_lock(&cache->lock);
  int code = await_connection(cache, member, until);
  if (code == 0 && member->link && haul_peer_status(member->link->peer))
    drop(member, &unused);
  if (code == 0 && member->link) {
    *link = member->link;
    member->link->users++;
  } else if (code == 0 && (member->left || haul_deadline_in(0) < member->retry_at)) {
    code = refuse(member);
  } else if (code == 0) {
    code = connect_member(cache, member, until, link);
  }
  pthread_mutex_unlock(&cache->lock);
  if (unused)
    link_free(unused);
  return code;
}

void link_failed(struct haul_cache *cache, unsigned number, struct link *link, int code,
                 int64_t waited) {
  struct member *member = &cache->members[number];
  struct link *unused = NULL;
  const struct haul_error *error = haul_error_last();
  pthread_mutex_lock(&cache->lock);
  if (member->link == link) {
    keep_reason(member, code, error);
  }
  if (member->link == link && (code != HAUL_ETIMEDOUT || waited >= cache->connect_ns)) {
    drop(member, &unused);
    if (code == HAUL_ETIMEDOUT) /* it hangs; otherwise connecting shows whether it is there */
      member->retry_at = haul_deadline_in(PAUSE_HUNG);
  }
  pthread_mutex_unlock(&cache->lock);
  if (unused)
    link_free(unused);
}
