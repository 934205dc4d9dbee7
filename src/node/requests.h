/* SPDX-License-Identifier: MIT
 * Handlers of peers' requests, by which control.c serves them. Those named ..._serve... run with
 * the loop's lock. They read the request from `in` and write the response, of at most
 * CONTROL_BODY_MAX bytes, to `out`. A request that they leave unread, or that is too short, drops
 * the peer. */
#ifndef HAUL_NODE_REQUESTS_H
#define HAUL_NODE_REQUESTS_H

#include "node/peer.h"

/* ---- names.c: published regions ---- */

void names_serve_lookup(struct haul_peer *peer, struct wire *in, struct wire *out);
void names_serve_list(struct haul_peer *peer, struct wire *in, struct wire *out);
/* Unpublishes every name of the region; without locks. Waits until no peer touches it, at most for
 * the liveness bound. */
void names_withdraw(struct haul_node *node, struct haul_region *region);

/* ---- stats.c: what the node does ---- */

void stats_serve(struct haul_peer *peer, struct wire *in, struct wire *out);
/* Whether this peer may read statistics and traces: setting `any_observer`. */
bool stats_may_observe(const struct haul_peer *peer);
/* Sets the detail of a peer that refused to show them, and returns HAUL_EACCESS. */
int stats_refused(const struct haul_peer *peer);

/* ---- trace.c: events of transfers ---- */

void trace_serve(struct haul_peer *peer, struct wire *in, struct wire *out);
/* Fires 3 s after the last read: stops the recording. */
void trace_expire(struct timer *timer);

#endif
