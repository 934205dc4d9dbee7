/* SPDX-License-Identifier: MIT
 * One link for two nodes that connect to each other. Node A has connected to B, and B connects to
 * A:
 *
 *   A  names its link in the welcome (share_offer), by the id that B drew for it. B's node id is a
 *      claim; a false B learns the link's id, and can refer B to that link when B calls it.
 *   B  finds that link among those that it accepted, and sends HOLD over it (share_join). A false A
 *      that connected to B is not found, as the id comes from the node that B called.
 *   A  takes a use for B, which B's RELEASE or the end of the link gives back, and sends HELD. B
 *      closes the new connection before READY, so that A's application does not hear of it.
 *
 * Each call of B gets a link of its own, so a link is held once. If any of it fails, the new
 * connection becomes a link. Both connections must have the same
 * identities and the same encryption. Over Unix sockets the side that connects knows no identity,
 * so their links are not shared. If both call at once, each has accepted the other's connection
 * before its own welcome comes, and no link is named: the node with the larger id calls again. */
#ifndef HAUL_NODE_SHARE_H
#define HAUL_NODE_SHARE_H

#include "node/handshake.h"
#include "node/peer.h"

#define CROSSINGS_MAX 2 /* calls again at most, after 2 and 8 ms */

/* With the loop's lock: names the link that this node made to the newcomer's node, if there is one.
 */
void share_offer(const struct haul_peer *newcomer, struct welcome *welcome);
/* Until when a part of a call may last that can be done without: it leaves time for the rest. */
haul_deadline share_until(const struct haul_node *node, haul_deadline until);
/* Without locks: the link that the new connection's welcome names, with a use, once its other side
 * holds it; NULL: there is none. */
struct haul_peer *share_join(const struct haul_peer *connection, haul_deadline until);
/* Without locks: whether the same two nodes called each other and this one has to call again. Waits
 * for the other's link first, longer with each attempt. */
bool share_crosses(const struct haul_peer *connection, unsigned attempt, haul_deadline until);

/* Frames; with the loop's lock. HAUL_EPROTO. */
void share_serve_hold(struct haul_peer *peer, struct wire *in, struct wire *out);
int share_on_held(struct haul_peer *peer, struct wire in, uint32_t id);
/* With the loop's lock: gives the other side's use back. May free the peer. */
void share_end(struct haul_peer *peer);
/* With the loop's lock: releases a link of the other side that this node does not use any more.
 * Returns whether this node has to close the link. */
bool share_sweep(struct haul_peer *peer);
/* Without locks: waits for the abandoned writes of earlier links to the same node, as they must not
 * overwrite those of `next`. After half of the time, or the liveness timeout, closes these links,
 * though the other side may use them, and waits for their end. 0, or HAUL_ETIMEDOUT with the
 * detail. */
int share_settle(struct haul_peer *next, haul_deadline until);

#endif
