/* SPDX-License-Identifier: MIT
 * Messages whose payload is in a region: the rendezvous protocol. The sender lends the region to
 * the peer (fabric/exports.h) and sends an offer, which is a request. The receiver reads the region
 * like any remote one, and responds. Then the sender withdraws the region. */
#ifndef HAUL_NODE_OFFER_H
#define HAUL_NODE_OFFER_H

#include "core/wire.h"
#include "node/message.h"

#define OFFER_VERSION 8u  /* of the protocol */
#define OFFER_COST    64u /* bytes of the message window, besides MESSAGE_OVERHEAD */

/* Queues the offer as a message of kind HAUL_MESSAGE_OFFER, with the loop's lock. HAUL_EPROTO or
 * HAUL_ENOMEM. */
int offer_receive(struct haul_peer *peer, uint32_t request, struct wire *in);
/* The application releases the message: refuses the offer unless it was read. */
void offer_refuse(struct incoming *message);

#endif
