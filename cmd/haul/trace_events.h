/* SPDX-License-Identifier: MIT
 *
 * From the events of a node to those of the Chrome trace event format, which chrome://tracing and
 * Perfetto open: what begins is kept until it ends, and then written whole.
 */
#ifndef HAUL_TRACE_EVENTS_H
#define HAUL_TRACE_EVENTS_H

#include <stdio.h>

#include <haul/stats.h>

#include "common/output.h"

struct open_span;
struct track;

struct timeline {
  struct json json;
  uint64_t start; /* the node's clock: 0 of the timeline */
  uint64_t seed;  /* of the hashes: the node cannot make them alike */
  struct open_span *open;
  uint32_t *open_heads; /* as many as there is room, as below */
  uint32_t open_free, open_room;
  struct track *tracks;
  uint32_t *track_heads;
  uint32_t track_count, track_room;
};

void timeline_begin(struct timeline *timeline, FILE *out, const char *node, uint64_t start);
void timeline_event(struct timeline *timeline, const struct haul_trace_event *event);
/* A peer's name, for the tracks that it has or will have. */
void timeline_name(struct timeline *timeline, const struct haul_peer_stats *peer);
/* What has not ended ends at `end`, and says so. */
void timeline_end(struct timeline *timeline, uint64_t end, uint64_t lost);

#endif
