/* SPDX-License-Identifier: MIT
 * Converts events of nodes to the Chrome trace event format, which chrome://tracing and Perfetto
 * open. An event is kept from its begin to its end, and then written as one. */
#ifndef HAUL_TRACE_EVENTS_H
#define HAUL_TRACE_EVENTS_H

#include <stdio.h>

#include <haul/stats.h>

#include "common/output.h"
#include "trace_link.h"

struct open_span;
struct track;

/* One node of the file. */
struct timeline {
  struct json *json;
  unsigned process;    /* its number in the file, from 1 */
  unsigned processes;  /* of the file */
  struct links *links; /* collects the two sides of slices; NULL: no other node is in the file */
  uint64_t start;      /* clock of the node at time 0 of the timeline */
  uint64_t written;    /* transfers, slices and points */
  uint64_t seed;       /* of the hashes, against collisions chosen by the node */
  struct open_span *open;
  uint32_t *open_heads; /* open_room entries; track_heads has track_room */
  uint32_t open_free, open_room;
  struct track *tracks;
  uint32_t *track_heads;
  uint32_t track_count, track_room;
};

/* Begins the file; a call of timeline_file_end is due. */
void timeline_file_begin(struct json *json, FILE *out);
/* Begins the list of members beside the events, which json_end_object ends, twice. */
void timeline_file_end(struct json *json);

/* `name` is that of the process. Fields other than json, process, processes and links are
 * overwritten. */
void timeline_begin(struct timeline *timeline, const char *name, uint64_t start);
void timeline_event(struct timeline *timeline, const struct haul_trace_event *event);
/* Names a peer in its present and later tracks. */
void timeline_name(struct timeline *timeline, const struct haul_peer_stats *peer);
/* Ends open events at `end`, marked as unfinished. */
void timeline_end(struct timeline *timeline, uint64_t end);

/* A point of a track, at which an arrow begins or ends. */
struct arrow_end {
  const struct timeline *timeline;
  uint32_t track; /* as in struct links */
  uint64_t at;
};
/* Writes an event of one nanosecond within another one: Perfetto draws an arrow from the end of its
 * first event to the begin of its second one, so a long event would hide its time. */
void timeline_mark(const struct timeline *timeline, const char *name, uint32_t track, uint64_t at);
/* Draws an arrow between two events that last at these points. `id` is unique in the file. */
void timeline_arrow(const char *name, uint64_t id, struct arrow_end from, struct arrow_end to);

#endif
