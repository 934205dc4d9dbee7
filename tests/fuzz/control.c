/* SPDX-License-Identifier: MIT
 * The control connection after its handshake. The first byte says which side this is and what it
 * asks; the rest is what the peer sends. */
#include <haul/stats.h>
#include <string.h>
#include <sys/socket.h>

#include "rig.h"

static void check_entries(const struct haul_published *entries, size_t count) {
  for (size_t i = 0; i < count; i++) {
    RIG_ASSERT(memchr(entries[i].name, 0, sizeof entries[i].name));
    RIG_ASSERT(i == 0 || strcmp(entries[i - 1].name, entries[i].name) < 0);
  }
}

static void ask(struct haul_peer *peer, unsigned what) {
  haul_deadline soon = haul_deadline_in(1000000);
  struct haul_published entries[8];
  size_t count = 8;
  haul_remote *remote;
  if (what == 1 && haul_peer_lookup(peer, "name", soon, &remote) == 0)
    haul_remote_release(remote);
  if (what == 2 && haul_peer_list(peer, soon, entries, &count) == 0)
    check_entries(entries, count < 8 ? count : 8);
  struct haul_node_stats stats;
  struct haul_peer_stats peers[8];
  count = 8;
  if (what == 3 && haul_peer_stats_of(peer, soon, &stats, peers, &count) == 0)
    for (size_t i = 0; i < count && i < 8; i++) {
      RIG_ASSERT(memchr(peers[i].name, 0, sizeof peers[i].name));
      RIG_ASSERT(memchr(peers[i].identity, 0, sizeof peers[i].identity));
      RIG_ASSERT(i == 0 || peers[i - 1].number < peers[i].number);
    }
  struct haul_trace trace = {0};
  struct haul_trace_event events[8];
  count = 8;
  if (what == 4 && haul_peer_trace_of(peer, soon, &trace, events, &count) == 0) {
    RIG_ASSERT(count <= 8 && trace.next > 0);
    for (size_t i = 0; i < count; i++)
      RIG_ASSERT(events[i].kind >= HAUL_TRACE_SUBMIT && events[i].kind <= HAUL_TRACE_REQUEST &&
                 memchr(events[i].path, 0, sizeof events[i].path));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  int end;
  if (length < 1 || length > RIG_INPUT)
    return 0;
  unsigned what = bytes[0] % 5;
  struct haul_peer *peer = rig_peer(what > 0, &end);
  rig_send(end, bytes + 1, length - 1);
  shutdown(end, SHUT_WR);
  if (what > 0)
    ask(peer, what);
  rig_progress(16);
  rig_drop(peer, end);
  return 0;
}
