/* SPDX-License-Identifier: MIT */
#include "support/rails.h"

#include "fabric/tcp/tcp.h"
#include "node/peer.h"
#include "support/check.h"

void open_rails(struct haul_remote *remote, struct haul_region *local) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, 1};
  options.only = "tcp";
  options.deadline = haul_deadline_in(20000000000);
  assert_works(haul_read(local, remote, &piece, 1, &options, NULL));
  struct haul_node *node = ((struct haul_peer *)remote->link)->node;
  const struct tcp_endpoint *endpoint =
      (const struct tcp_endpoint *)remote->link->endpoints[tcp_transport.index];
  for (bool dialing = true; dialing;) {
    loop_lock(node->loop);
    dialing = endpoint->dial.active;
    loop_unlock(node->loop);
    if (dialing)
      haul_node_progress(node, haul_deadline_in(1000000));
  }
}
