/* SPDX-License-Identifier: MIT
 * Converts events of a node to the Chrome trace event format, which chrome://tracing and Perfetto
 * open. An event is kept from its begin to its end, and then written as one. */
#ifndef HAUL_TRACE_EVENTS_H
#define HAUL_TRACE_EVENTS_H

#include <stdio.h>

#include <haul/stats.h>

#include "common/output.h"

struct open_span;
struct track;

struct timeline {
  struct json json;
  uint64_t start; /* clock of the node at time 0 of the timeline */
  uint64_t seed;  /* of the hashes, against collisions chosen by the node */
  struct open_span *open;
  uint32_t *open_heads; /* open_room entries; track_heads has track_room */
  uint32_t open_free, open_room;
  struct track *tracks;
  uint32_t *track_heads;
  uint32_t track_count, track_room;
};

void timeline_begin(struct timeline *timeline, FILE *out, const char *node, uint64_t start);
void timeline_event(struct timeline *timeline, const struct haul_trace_event *event);
/* Names a peer in its present and later tracks. */
void timeline_name(struct timeline *timeline, const struct haul_peer_stats *peer);
/* Ends open events at `end`, marked as unfinished. */
void timeline_end(struct timeline *timeline, uint64_t end, uint64_t lost);

#endif
