/* SPDX-License-Identifier: MIT
 * Looks into the library's objects that no call answers without a chance for other fibers. */
#include "node/peer.h"

bool peer_has_ended(const haul_peer *peer);

bool peer_has_ended(const haul_peer *peer) {
  return atomic_load(&peer->base.ended) != 0;
}
