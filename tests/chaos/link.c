/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "node.h"

#define CONNECTS (3 * S) /* as long as one may take */
#define PAUSES   (100 * MS)

static struct link links[NODES];
static struct haul_region *number_here;

void links_open(void) {
  struct haul_place host = {HAUL_HOST, 0};
  memset(links, 0, sizeof links);
  if (haul_region_alloc(me.node, host, 64, 0, &number_here) != 0)
    violation("haul_region_alloc: %s", haul_error_last()->text);
}

static void drop(struct link *link) {
  for (unsigned i = 0; i < KINDS; i++) {
    haul_remote_release(link->remotes[i]);
    link->remotes[i] = NULL;
  }
  haul_peer_close(link->peer);
  link->peer = NULL;
  link->retry_at = strained_now() + PAUSES;
}

static void connect_to(struct link *link, unsigned owner) {
  struct seat *seat = &me.board->seats[owner];
  char address[sizeof seat->addresses[0]];
  if (strained_now() < link->retry_at || !atomic_load(&seat->ready))
    return;
  memcpy(address, seat->addresses[chance(2)], sizeof address);
  int code = haul_peer_connect(me.node, address, haul_deadline_in(CONNECTS), &link->peer);
  may_fail(code, "haul_peer_connect");
  if (code) {
    link->peer = NULL;
    link->retry_at = strained_now() + PAUSES;
    return;
  }
  atomic_fetch_add(&me.seat->tally.connected, 1);
}

struct haul_peer *link_peer(unsigned owner) {
  struct link *link = &links[owner];
  if (link->peer && haul_peer_status(link->peer) != 0) {
    if (link->in_use)
      return NULL;
    drop(link);
  }
  /* A connection that is well ends, too. */
  if (link->peer && !link->in_use && chance(200) == 0)
    drop(link);
  if (!link->peer)
    connect_to(link, owner);
  return link->peer;
}

/* Which region it is; 0: not to be found out now. */
static uint64_t read_number(struct haul_remote *remote) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, sizeof(uint64_t)};
  uint64_t number;
  options.deadline = haul_deadline_in(CONNECTS);
  int code = haul_read(number_here, remote, &piece, 1, &options, NULL);
  may_fail(code, "haul_read of a region's number");
  memcpy(&number, haul_region_address(number_here), sizeof number);
  return code ? 0 : number;
}

static void look_up(struct link *link, unsigned owner, unsigned kind) {
  static const char *const names[KINDS] = {"host", "private", "wrapped", "sim"};
  struct lane *lane = &me.board->lanes[me.number][owner][kind];
  struct haul_remote *remote;
  int code = haul_peer_lookup(link->peer, names[kind], haul_deadline_in(CONNECTS), &remote);
  may_fail(code, "haul_peer_lookup");
  if (code)
    return;
  uint64_t number = read_number(remote);
  if (number == 0) {
    haul_remote_release(remote);
    return;
  }
  if (number > atomic_load(&me.board->regions))
    violation("a region's number was read as %llu", (unsigned long long)number);
  if (number != atomic_load(&lane->region))
    lane_begin(lane, number);
  link->remotes[kind] = remote;
}

struct haul_remote *link_remote(unsigned owner, unsigned kind) {
  struct link *link = &links[owner];
  if (!link_peer(owner))
    return NULL;
  if (!link->remotes[kind])
    look_up(link, owner, kind);
  return link->remotes[kind];
}

void link_take(unsigned owner) {
  links[owner].in_use++;
}

void link_give(unsigned owner) {
  links[owner].in_use--;
}

void link_forget(unsigned owner, unsigned kind) {
  haul_remote_release(links[owner].remotes[kind]);
  links[owner].remotes[kind] = NULL;
}

void links_close(void) {
  for (unsigned i = 0; i < NODES; i++)
    if (links[i].peer)
      drop(&links[i]);
  haul_region_release(number_here);
}
