/* SPDX-License-Identifier: MIT */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/sys.h"

/* Takes the place of libc's. */
ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
  (void)flags;
  memset(buffer, RIG_RANDOM, length);
  return (ssize_t)length;
}

_Noreturn void rig_fail(const char *condition, const char *file, int line) {
  fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
  abort();
}

static haul_region *publish(haul_node *node, enum rig_slot slot, struct haul_place place,
                            const char *name, unsigned rights) {
  static char wrapped[RIG_BYTES];
  haul_region *region;
  struct export_view view;
  if (slot == RIG_WRAPPED)
    RIG_ASSERT(haul_region_wrap(node, wrapped, sizeof wrapped, &region) == 0);
  else
    RIG_ASSERT(haul_region_alloc(node, place, RIG_BYTES, 0, &region) == 0);
  RIG_ASSERT(haul_region_publish(region, name, rights) == 0);
  RIG_ASSERT(exports_find(node->exports, RIG_HANDLE(slot), "", &view) == 0);
  region_put(view.region);
  return region;
}

static haul_node *node;
static haul_region *regions[5];

static void close_node(void) {
  for (size_t i = 0; i < sizeof regions / sizeof regions[0]; i++)
    haul_region_release(regions[i]);
  haul_node_close(node);
}

haul_node *rig_node(void) {
  const struct haul_place host = {HAUL_HOST, 0}, sim = {HAUL_SIM, 0};
  const unsigned both = HAUL_READ | HAUL_WRITE;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  if (node)
    return node;
  config.name = "fuzzed";
  config.progress = HAUL_PROGRESS_CALLER;
  config.copy_threads = UINT32_MAX;
  config.peer_events = 1;
  RIG_ASSERT(haul_node_open(&config, &node) == 0);
  RIG_ASSERT(haul_region_alloc(node, host, RIG_BYTES, HAUL_REGION_PRIVATE, &regions[0]) == 0);
  regions[1] = publish(node, RIG_HOST, host, "host", both);
  regions[2] = publish(node, RIG_READ_ONLY, host, "read-only", HAUL_READ);
  regions[3] = publish(node, RIG_SIM, sim, "sim", both);
  regions[4] = publish(node, RIG_WRAPPED, host, "wrapped", both);
  atexit(close_node);
  return node;
}

haul_region *rig_local(void) {
  rig_node();
  return regions[0];
}

static void make_pair(int ends[2]) {
  RIG_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
}

struct haul_peer *rig_peer(bool initiator, int *end) {
  int ends[2];
  struct haul_peer *peer;
  haul_node *own = rig_node();
  make_pair(ends);
  loop_lock(own->loop);
  const struct peer_info info = {own->fabric.node_id, own->fabric.boot, "peer", true, true, 1 << 20,
                                 REQUESTS_MAX,        PROTOCOL_HIGHEST};
  RIG_ASSERT(peer_new(own, &(struct stream){.fd = ends[0]}, &info, &peer) == 0);
  peer->base.initiator = initiator;
  peer->ready = initiator;
  RIG_ASSERT(peer_start(peer) == 0);
  loop_unlock(own->loop);
  if (initiator)
    peer->base.retain(&peer->base); /* the application's, or the node would drop it */
  *end = ends[1];
  return peer;
}

void rig_channel(struct haul_peer *peer, const char *name, int *end) {
  int ends[2];
  const struct transport *transport = transport_named(name);
  make_pair(ends);
  loop_lock(node->loop);
  transport->adopt(peer->base.endpoints[transport->index], 0, (struct stream){.fd = ends[0]});
  loop_unlock(node->loop);
  *end = ends[1];
}

void rig_progress(unsigned rounds) {
  for (unsigned i = 0; i < rounds && haul_node_progress(rig_node(), HAUL_NO_WAIT) > 0; i++)
    ;
}

void rig_drop(struct haul_peer *peer, int end) {
  struct haul_message message;
  close(end);
  loop_lock(node->loop);
  peer_drop(peer, HAUL_EPEER, "the input is at its end");
  loop_unlock(node->loop);
  if (peer->base.initiator)
    peer->base.put(&peer->base);
  peer_unref(peer);
  while (haul_message_receive(node, &message, HAUL_NO_WAIT) == 0)
    haul_message_release(&message);
}

bool rig_send(int end, const uint8_t *bytes, size_t length) {
  return length == 0 || send(end, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}
