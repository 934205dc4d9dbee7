/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "node.h"

#define CALL_MAX    (3 * S) /* time limit of a call */
#define RETRY_AFTER (100 * MS)

static struct link links[NODES];
static struct haul_region *id_buffer;

void links_open(void) {
  struct haul_place host = {HAUL_HOST, 0};
  memset(links, 0, sizeof links);
  if (haul_region_alloc(self.node, host, 64, 0, &id_buffer) != 0)
    violation("haul_region_alloc: %s", haul_error_last()->text);
}

static void drop(struct link *link) {
  for (unsigned i = 0; i < KINDS; i++) {
    haul_remote_release(link->remotes[i]);
    link->remotes[i] = NULL;
  }
  haul_peer_close(link->peer);
  link->peer = NULL;
  link->retry_at = skewed_now() + RETRY_AFTER;
}

static void connect_to(struct link *link, unsigned owner) {
  struct process *process = &self.shared->processes[owner];
  char address[sizeof process->addresses[0]];
  if (skewed_now() < link->retry_at || !atomic_load(&process->ready))
    return;
  memcpy(address, process->addresses[chance(2)], sizeof address);
  int code = haul_peer_connect(self.node, address, haul_deadline_in(CALL_MAX), &link->peer);
  may_fail(code, "haul_peer_connect");
  if (code) {
    link->peer = NULL;
    link->retry_at = skewed_now() + RETRY_AFTER;
    return;
  }
  atomic_fetch_add(&self.process->counts.connected, 1);
}

struct haul_peer *link_peer(unsigned owner) {
  struct link *link = &links[owner];
  if (link->peer && haul_peer_status(link->peer) != 0) {
    if (link->in_use)
      return NULL;
    drop(link);
  }
  /* Healthy connections are closed too. */
  if (link->peer && !link->in_use && chance(200) == 0)
    drop(link);
  if (!link->peer)
    connect_to(link, owner);
  return link->peer;
}

/* The region's id; 0: not readable now. */
static uint64_t read_id(struct haul_remote *remote) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, sizeof(uint64_t)};
  uint64_t id;
  options.deadline = haul_deadline_in(CALL_MAX);
  int code = haul_read(id_buffer, remote, &piece, 1, &options, NULL);
  may_fail(code, "haul_read of a region's id");
  memcpy(&id, haul_region_address(id_buffer), sizeof id);
  return code ? 0 : id;
}

static void look_up(struct link *link, unsigned owner, unsigned kind) {
  struct lane *lane = &self.shared->lanes[self.number][owner][kind];
  struct haul_remote *remote;
  int code = haul_peer_lookup(link->peer, region_names[kind], haul_deadline_in(CALL_MAX), &remote);
  may_fail(code, "haul_peer_lookup");
  if (code)
    return;
  uint64_t id = read_id(remote);
  if (id == 0) {
    haul_remote_release(remote);
    return;
  }
  if (id > atomic_load(&self.shared->region_ids))
    violation("a region's id was read as %llu", (unsigned long long)id);
  if (id != atomic_load(&lane->region))
    lane_begin(lane, id);
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

void link_hold(unsigned owner) {
  links[owner].in_use++;
}

void link_release(unsigned owner) {
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
  haul_region_release(id_buffer);
}
