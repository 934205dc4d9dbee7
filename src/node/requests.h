/* SPDX-License-Identifier: MIT
 * Handlers of peers' requests, by which control.c serves them. Those named ..._serve... run with
 * the loop's lock. They read the request from `in` and write the response, of at most
 * CONTROL_BODY_MAX bytes, to `out`. A request that they leave unread, or that is too short, drops
 * the peer. */
#ifndef HAUL_NODE_REQUESTS_H
#define HAUL_NODE_REQUESTS_H

#include "node/peer.h"

/* ---- regions.c: published regions ---- */

void regions_serve_lookup(struct haul_peer *peer, struct wire *in, struct wire *out);
void regions_serve_list(struct haul_peer *peer, struct wire *in, struct wire *out);

/* ---- stats.c: statistics and trace events ---- */

void stats_serve(struct haul_peer *peer, struct wire *in, struct wire *out);
void trace_serve(struct haul_peer *peer, struct wire *in, struct wire *out);
/* Fires 3 s after the last read: stops the recording. */
void trace_expire(struct timer *timer);

#endif
