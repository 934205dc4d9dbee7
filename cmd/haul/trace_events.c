/* SPDX-License-Identifier: MIT */
#include "trace_events.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

#define PROCESS 1

/* Something that has begun. */
struct open_span {
  struct haul_trace_event began;
};

/* Spans of one track lie beside each other, so what overlaps takes another lane. */
struct track {
  uint64_t peer;
  char path[8];
  bool served;
  unsigned lane; /* from 0 on */
  uint64_t busy; /* until then */
};

static const char *operation_name(enum haul_operation operation) {
  static const char *const names[] = {"write", "read", "fetch-add", "compare-swap"};
  return operation >= HAUL_OP_WRITE && operation <= HAUL_OP_COMPARE_SWAP
             ? names[operation - HAUL_OP_WRITE]
             : "?";
}

/* ---- What is open ---- */

static bool is_served(enum haul_trace_kind kind) {
  return kind == HAUL_TRACE_SERVE || kind == HAUL_TRACE_SERVED;
}

static bool belongs(const struct haul_trace_event *began, enum haul_trace_kind kind,
                    const struct haul_trace_event *ends) {
  return began->kind == kind && began->transfer == ends->transfer && began->peer == ends->peer &&
         (kind != HAUL_TRACE_POST || began->slice == ends->slice);
}

static void begin(struct timeline *timeline, const struct haul_trace_event *event) {
  if (timeline->open_count == timeline->open_room) {
    timeline->open_room = timeline->open_room ? 2 * timeline->open_room : 64;
    timeline->open = must_realloc(timeline->open, timeline->open_room * sizeof timeline->open[0]);
  }
  timeline->open[timeline->open_count++].began = *event;
}

/* The latest first: it is nearly always the one. False: its begin was not seen. */
static bool take(struct timeline *timeline, enum haul_trace_kind kind,
                 const struct haul_trace_event *ends, struct haul_trace_event *began) {
  for (size_t i = timeline->open_count; i-- > 0;) {
    if (!belongs(&timeline->open[i].began, kind, ends))
      continue;
    *began = timeline->open[i].began;
    timeline->open[i] = timeline->open[--timeline->open_count];
    return true;
  }
  return false;
}

/* ---- Tracks ---- */

static void write_track(struct timeline *timeline, size_t index, const char *name) {
  const struct track *track = &timeline->tracks[index];
  struct json *json = &timeline->json;
  char text[128], lane[32] = "";
  if (track->lane > 0)
    snprintf(lane, sizeof lane, " (%u)", track->lane + 1);
  snprintf(text, sizeof text, "%s%s %s%s", track->served ? "for " : "", name,
           track->path[0] ? track->path : "-", lane);
  json_object(json, NULL);
  json_text(json, "ph", "M");
  json_text(json, "name", "thread_name");
  json_number(json, "pid", PROCESS);
  json_number(json, "tid", index + 1);
  json_object(json, "args");
  json_text(json, "name", text);
  json_end_object(json);
  json_end_object(json);
}

/* A lane that is free from `from` on: as spans come in the order of their ends, one that ended
 * before is. */
static size_t find_track(struct timeline *timeline, const struct haul_trace_event *event,
                         uint64_t from) {
  bool served = is_served(event->kind);
  unsigned lanes = 0;
  for (size_t i = 0; i < timeline->track_count; i++) {
    const struct track *track = &timeline->tracks[i];
    if (track->peer != event->peer || track->served != served ||
        strcmp(track->path, event->path) != 0)
      continue;
    if (track->busy <= from)
      return i;
    lanes++;
  }
  if (timeline->track_count == timeline->track_room) {
    timeline->track_room = timeline->track_room ? 2 * timeline->track_room : 16;
    timeline->tracks =
        must_realloc(timeline->tracks, timeline->track_room * sizeof timeline->tracks[0]);
  }
  struct track *track = &timeline->tracks[timeline->track_count];
  *track = (struct track){.peer = event->peer, .served = served, .lane = lanes};
  memcpy(track->path, event->path, sizeof track->path);
  char name[32];
  snprintf(name, sizeof name, "peer %" PRIu64, event->peer);
  write_track(timeline, timeline->track_count, name);
  return timeline->track_count++;
}

void timeline_name(struct timeline *timeline, const struct haul_peer_stats *peer) {
  for (size_t i = 0; i < timeline->track_count; i++)
    if (timeline->tracks[i].peer == peer->number)
      write_track(timeline, i, peer->name);
}

/* ---- Writing ---- */

static int64_t since_start(const struct timeline *timeline, uint64_t at) {
  return (int64_t)(at - timeline->start);
}

static void write_head(struct timeline *timeline, const char *phase, const char *name, uint64_t at,
                       size_t track) {
  struct json *json = &timeline->json;
  json_object(json, NULL);
  json_text(json, "ph", phase);
  json_text(json, "name", name);
  json_text(json, "cat", "haul");
  json_number(json, "pid", PROCESS);
  json_number(json, "tid", track + 1);
  json_micros(json, "ts", since_start(timeline, at));
}

static void write_arguments(struct json *json, const struct haul_trace_event *event,
                            bool unfinished) {
  json_object(json, "args");
  json_number(json, "transfer", event->transfer);
  json_number(json, "peer", event->peer);
  json_number(json, "bytes", event->bytes);
  if (event->path[0])
    json_text(json, "path", event->path);
  if (event->status)
    json_text(json, "error", haul_error_name(event->status));
  if (unfinished)
    json_bool(json, "unfinished", true);
  json_end_object(json);
  json_end_object(json);
}

/* A transfer, or what was served. */
static void write_span(struct timeline *timeline, const struct haul_trace_event *began,
                       const struct haul_trace_event *ended, bool unfinished) {
  size_t track = find_track(timeline, ended, began->at_ns);
  timeline->tracks[track].busy = ended->at_ns;
  write_head(timeline, "X", operation_name(ended->operation), began->at_ns, track);
  json_micros(&timeline->json, "dur", (int64_t)(ended->at_ns - began->at_ns));
  write_arguments(&timeline->json, ended, unfinished);
}

/* A slice, whose like overlap each other: an asynchronous event, begin and end. */
static void write_slice(struct timeline *timeline, const struct haul_trace_event *began,
                        const struct haul_trace_event *ended, bool unfinished) {
  struct json *json = &timeline->json;
  char id[64];
  snprintf(id, sizeof id, "%" PRIu64 ".%u", ended->transfer, ended->slice);
  size_t track = find_track(timeline, ended, UINT64_MAX);
  write_head(timeline, "b", "slice", began->at_ns, track);
  json_text(json, "id", id);
  write_arguments(json, ended, unfinished);
  write_head(timeline, "e", "slice", ended->at_ns, track);
  json_text(json, "id", id);
  json_end_object(json);
}

/* What has no begin here, and what had one before anybody looked, is a point. */
static void write_point(struct timeline *timeline, const struct haul_trace_event *event) {
  size_t track = find_track(timeline, event, UINT64_MAX);
  write_head(timeline, "i", operation_name(event->operation), event->at_ns, track);
  json_text(&timeline->json, "s", "t");
  write_arguments(&timeline->json, event, false);
}

static void finish(struct timeline *timeline, const struct haul_trace_event *began,
                   const struct haul_trace_event *ended, bool unfinished) {
  if (began->kind == HAUL_TRACE_POST)
    write_slice(timeline, began, ended, unfinished);
  else
    write_span(timeline, began, ended, unfinished);
}

void timeline_event(struct timeline *timeline, const struct haul_trace_event *event) {
  struct haul_trace_event began;
  switch (event->kind) {
  case HAUL_TRACE_SUBMIT:
  case HAUL_TRACE_POST:
  case HAUL_TRACE_SERVE:
    begin(timeline, event);
    return;
  case HAUL_TRACE_DONE:
    if (take(timeline, HAUL_TRACE_POST, event, &began))
      finish(timeline, &began, event, false);
    return;
  case HAUL_TRACE_COMPLETE:
  case HAUL_TRACE_SERVED:
    if (take(timeline, event->kind == HAUL_TRACE_COMPLETE ? HAUL_TRACE_SUBMIT : HAUL_TRACE_SERVE,
             event, &began))
      finish(timeline, &began, event, false);
    else
      write_point(timeline, event);
    return;
  }
}

void timeline_begin(struct timeline *timeline, FILE *out, const char *node, uint64_t start) {
  struct json *json = &timeline->json;
  char name[80];
  *timeline = (struct timeline){.start = start};
  json_begin(json, out);
  json->flat = 3; /* an event a line */
  json_object(json, NULL);
  json_text(json, "displayTimeUnit", "ns");
  json_array(json, "traceEvents");
  snprintf(name, sizeof name, "haul %.64s", node);
  text_clean(name);
  json_object(json, NULL);
  json_text(json, "ph", "M");
  json_text(json, "name", "process_name");
  json_number(json, "pid", PROCESS);
  json_number(json, "tid", 0);
  json_object(json, "args");
  json_text(json, "name", name);
  json_end_object(json);
  json_end_object(json);
}

void timeline_end(struct timeline *timeline, uint64_t end, uint64_t lost) {
  struct json *json = &timeline->json;
  for (size_t i = 0; i < timeline->open_count; i++) {
    struct haul_trace_event ended = timeline->open[i].began;
    if (ended.at_ns < end)
      ended.at_ns = end;
    finish(timeline, &timeline->open[i].began, &ended, true);
  }
  json_end_array(json);
  json_object(json, "otherData");
  json_number(json, "lost", lost);
  json_end_object(json);
  json_end_object(json);
  free(timeline->open);
  free(timeline->tracks);
}
