/* SPDX-License-Identifier: MIT */
#include "trace_events.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/session.h"
#include "common/text.h"

#define LANES 256u /* of a peer and path; a screen shows no more */
#define NONE  UINT32_MAX

/* An event without its end. */
struct open_span {
  struct haul_trace_event began; /* kind 0: free */
  uint64_t request;              /* of a slice over tcp; 0: none is known */
  uint32_t sent;                 /* of a transfer: its slices in the list of links, or NONE */
  uint32_t next;                 /* in the hash chain or the free list */
};

/* Spans of one track must not overlap: overlapping spans take further lanes. */
struct track {
  uint64_t peer;
  char path[8];
  bool served;
  unsigned lane; /* counts from 0 */
  uint64_t busy; /* end of the last span */
  uint32_t next; /* in the hash chain */
};

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) + UINT64_C(0x9e3779b97f4a7c15);
  hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
  return hash ^ hash >> 31;
}

/* `room` heads of empty chains; room is a power of two. */
static uint32_t *new_heads(uint32_t *old, uint32_t room) {
  uint32_t *heads = must_realloc(old, room * sizeof *heads);
  memset(heads, 0xff, room * sizeof *heads); /* NONE */
  return heads;
}

static bool belongs(const struct haul_trace_event *began, enum haul_trace_kind kind,
                    const struct haul_trace_event *ends) {
  return began->kind == kind && began->transfer == ends->transfer && began->peer == ends->peer &&
         (kind != HAUL_TRACE_POST || began->slice == ends->slice);
}

/* The head of the chain of an event. */
static uint32_t *open_chain(const struct timeline *timeline, enum haul_trace_kind kind,
                            const struct haul_trace_event *event) {
  uint64_t slice = kind == HAUL_TRACE_POST ? event->slice : 0;
  uint64_t hash = mix(mix(mix(timeline->seed, event->peer), event->transfer), slice << 8 | kind);
  return &timeline->open_heads[hash & (timeline->open_room - 1)];
}

static void link_open(struct timeline *timeline, uint32_t index) {
  struct open_span *span = &timeline->open[index];
  uint32_t *head = open_chain(timeline, span->began.kind, &span->began);
  span->next = *head;
  *head = index;
}

static void grow_open(struct timeline *timeline) {
  uint32_t had = timeline->open_room, room = had ? 2 * had : 64;
  timeline->open = must_realloc(timeline->open, room * sizeof timeline->open[0]);
  timeline->open_heads = new_heads(timeline->open_heads, room);
  timeline->open_room = room;
  for (uint32_t i = 0; i < had; i++)
    link_open(timeline, i);
  for (uint32_t i = had; i < room; i++)
    timeline->open[i] = (struct open_span){.next = i + 1 < room ? i + 1 : NONE};
  timeline->open_free = had;
}

static void begin(struct timeline *timeline, const struct haul_trace_event *event) {
  if (timeline->open_free == NONE)
    grow_open(timeline);
  uint32_t index = timeline->open_free;
  timeline->open_free = timeline->open[index].next;
  timeline->open[index].began = *event;
  timeline->open[index].request = 0;
  timeline->open[index].sent = NONE;
  link_open(timeline, index);
}

/* Returns the place in the chain that has the begin of an event; NULL: it was not recorded. */
static uint32_t *find_open(struct timeline *timeline, enum haul_trace_kind kind,
                           const struct haul_trace_event *event) {
  if (timeline->open_room == 0)
    return NULL;
  for (uint32_t *at = open_chain(timeline, kind, event); *at != NONE;) {
    struct open_span *span = &timeline->open[*at];
    if (belongs(&span->began, kind, event))
      return at;
    at = &span->next;
  }
  return NULL;
}

/* Removes the begin of an event; false: it was not recorded. */
static bool remove_open(struct timeline *timeline, enum haul_trace_kind kind,
                        const struct haul_trace_event *ends, struct open_span *removed) {
  uint32_t *at = find_open(timeline, kind, ends);
  if (!at)
    return false;
  uint32_t index = *at;
  *removed = timeline->open[index];
  *at = removed->next;
  timeline->open[index] = (struct open_span){.next = timeline->open_free};
  timeline->open_free = index;
  return true;
}

/* The number of a track in the file, where those of all nodes differ. */
static uint64_t thread_of(const struct timeline *timeline, uint32_t track) {
  return (uint64_t)track * timeline->processes + timeline->process;
}

/* Names the process (thread 0) or a track of it. */
static void write_name(const struct timeline *timeline, const char *what, uint64_t thread,
                       const char *name) {
  struct json *json = timeline->json;
  json_object(json, NULL);
  json_text(json, "ph", "M");
  json_text(json, "name", what);
  json_number(json, "pid", timeline->process);
  json_number(json, "tid", thread);
  json_object(json, "args");
  json_text(json, "name", name);
  json_end_object(json);
  json_end_object(json);
}

static void write_track(struct timeline *timeline, uint32_t index, const char *name) {
  const struct track *track = &timeline->tracks[index];
  char text[128], lane[32] = "";
  if (track->lane > 0)
    snprintf(lane, sizeof lane, " (%u)", track->lane + 1);
  snprintf(text, sizeof text, "%s%s %s%s", track->served ? "for " : "", name,
           track->path[0] ? track->path : "-", lane);
  write_name(timeline, "thread_name", thread_of(timeline, index), text);
}

static uint32_t *track_chain(const struct timeline *timeline, uint64_t peer, bool served,
                             const char path[8]) {
  uint64_t letters;
  memcpy(&letters, path, sizeof letters);
  uint64_t hash = mix(mix(mix(timeline->seed, peer), served), letters);
  return &timeline->track_heads[hash & (timeline->track_room - 1)];
}

static void link_track(struct timeline *timeline, uint32_t index) {
  struct track *track = &timeline->tracks[index];
  uint32_t *head = track_chain(timeline, track->peer, track->served, track->path);
  track->next = *head;
  *head = index;
}

static uint32_t add_track(struct timeline *timeline, const struct track *track) {
  if (timeline->track_count == timeline->track_room) {
    uint32_t room = timeline->track_room ? 2 * timeline->track_room : 16;
    timeline->tracks = must_realloc(timeline->tracks, room * sizeof timeline->tracks[0]);
    timeline->track_heads = new_heads(timeline->track_heads, room);
    timeline->track_room = room;
    for (uint32_t i = 0; i < timeline->track_count; i++)
      link_track(timeline, i);
  }
  uint32_t index = timeline->track_count++;
  timeline->tracks[index] = *track;
  link_track(timeline, index);
  char name[32];
  snprintf(name, sizeof name, "peer %" PRIu64, track->peer);
  write_track(timeline, index, name);
  return index;
}

/* Returns the first lane that is free from `from` on, or else the lane that is free first. Spans
 * come in the order of their ends, so `busy` is final. */
static uint32_t find_track(struct timeline *timeline, const struct haul_trace_event *event,
                           uint64_t from) {
  bool served = event->kind == HAUL_TRACE_SERVE || event->kind == HAUL_TRACE_SERVED;
  struct track wanted = {.peer = event->peer, .served = served};
  snprintf(wanted.path, sizeof wanted.path, "%s", event->path);
  uint32_t free = NONE, soonest = NONE, index = NONE;
  if (timeline->track_room > 0)
    index = *track_chain(timeline, wanted.peer, wanted.served, wanted.path);
  for (; index != NONE; index = timeline->tracks[index].next) {
    const struct track *track = &timeline->tracks[index];
    if (track->peer != wanted.peer || track->served != wanted.served ||
        strcmp(track->path, wanted.path) != 0)
      continue;
    wanted.lane++;
    if (track->busy <= from && (free == NONE || track->lane < timeline->tracks[free].lane))
      free = index;
    if (soonest == NONE || track->busy < timeline->tracks[soonest].busy)
      soonest = index;
  }
  if (free != NONE)
    return free;
  return wanted.lane < LANES ? add_track(timeline, &wanted) : soonest;
}

void timeline_name(struct timeline *timeline, const struct haul_peer_stats *peer) {
  for (uint32_t i = 0; i < timeline->track_count; i++)
    if (timeline->tracks[i].peer == peer->number)
      write_track(timeline, i, peer->name);
}

static void write_head(const struct timeline *timeline, const char *phase, const char *name,
                       uint64_t at, uint32_t track) {
  struct json *json = timeline->json;
  json_object(json, NULL);
  json_text(json, "ph", phase);
  json_text(json, "name", name);
  json_text(json, "cat", "haul");
  json_number(json, "pid", timeline->process);
  json_number(json, "tid", thread_of(timeline, track));
  json_micros(json, "ts", (int64_t)(at - timeline->start));
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

/* Writes a transfer of the node or a served one; returns its track. */
static uint32_t write_span(struct timeline *timeline, const struct haul_trace_event *began,
                           const struct haul_trace_event *ended, bool unfinished) {
  uint32_t track = find_track(timeline, ended, began->at_ns);
  struct track *there = &timeline->tracks[track];
  there->busy = ended->at_ns > there->busy ? ended->at_ns : there->busy;
  timeline->written++;
  write_head(timeline, "X", operation_text((int)ended->operation), began->at_ns, track);
  json_micros(timeline->json, "dur", (int64_t)(ended->at_ns - began->at_ns));
  write_arguments(timeline->json, ended, unfinished);
  return track;
}

/* An id of the process, not of the file. */
static void write_local_id(struct json *json, const char *id) {
  json_object(json, "id2");
  json_text(json, "local", id);
  json_end_object(json);
}

/* Writes a slice as an asynchronous event, as slices overlap. */
static void write_slice(struct timeline *timeline, const struct haul_trace_event *began,
                        const struct haul_trace_event *ended, bool unfinished) {
  struct json *json = timeline->json;
  char id[64];
  snprintf(id, sizeof id, "%" PRIu64 ".%u", ended->transfer, ended->slice);
  uint32_t track = find_track(timeline, ended, UINT64_MAX);
  timeline->written++;
  write_head(timeline, "b", "slice", began->at_ns, track);
  write_local_id(json, id);
  write_arguments(json, ended, unfinished);
  write_head(timeline, "e", "slice", ended->at_ns, track);
  write_local_id(json, id);
  json_end_object(json);
}

/* Writes an event without recorded begin as a point. */
static void write_point(struct timeline *timeline, const struct haul_trace_event *event) {
  uint32_t track = find_track(timeline, event, UINT64_MAX);
  timeline->written++;
  write_head(timeline, "i", operation_text((int)event->operation), event->at_ns, track);
  json_text(timeline->json, "s", "t");
  write_arguments(timeline->json, event, false);
}

/* Keeps a slice for its arrow, which begins or ends at its transfer. */
static void keep_sent(struct timeline *timeline, const struct open_span *slice,
                      const struct haul_trace_event *ended) {
  uint32_t *transfer = find_open(timeline, HAUL_TRACE_SUBMIT, ended);
  if (!timeline->links || !slice->request || ended->status || !transfer)
    return;
  struct open_span *span = &timeline->open[*transfer];
  const struct link_side side = {.request = slice->request,
                                 .bytes = slice->began.bytes,
                                 .operation = ended->operation,
                                 .peer = ended->peer,
                                 .from = slice->began.at_ns,
                                 .to = ended->at_ns,
                                 .track = NONE,
                                 .next = span->sent};
  span->sent = links_add(&timeline->links->sent, &side);
}

static void keep_served(struct timeline *timeline, const struct haul_trace_event *began,
                        const struct haul_trace_event *ended, uint32_t track) {
  const struct link_side side = {.request = ended->transfer,
                                 .bytes = ended->bytes,
                                 .operation = ended->operation,
                                 .peer = ended->peer,
                                 .from = began->at_ns,
                                 .to = ended->at_ns,
                                 .track = track};
  if (timeline->links && !ended->status)
    links_add(&timeline->links->served, &side);
}

static void finish(struct timeline *timeline, const struct open_span *span,
                   const struct haul_trace_event *ended, bool unfinished) {
  const struct haul_trace_event *began = &span->began;
  struct haul_trace_event end = *ended;
  if ((int64_t)(end.at_ns - began->at_ns) < 0) /* a wrong clock of the node */
    end.at_ns = began->at_ns;
  if (began->kind == HAUL_TRACE_POST) {
    write_slice(timeline, began, &end, unfinished);
    if (!unfinished)
      keep_sent(timeline, span, &end);
    return;
  }
  uint32_t track = write_span(timeline, began, &end, unfinished);
  if (began->kind == HAUL_TRACE_SERVE)
    keep_served(timeline, began, &end, track);
  for (uint32_t i = span->sent; i != NONE; i = timeline->links->sent.list[i].next)
    timeline->links->sent.list[i].track = track;
}

/* Ends an event. The begin of a served read is not recorded: beside another node it lasts one
 * nanosecond, as arrows begin at events with a duration. */
static void finish_transfer(struct timeline *timeline, const struct haul_trace_event *event) {
  bool served = event->kind == HAUL_TRACE_SERVED;
  struct open_span span;
  if (remove_open(timeline, served ? HAUL_TRACE_SERVE : HAUL_TRACE_SUBMIT, event, &span)) {
    finish(timeline, &span, event, false);
    return;
  }
  if (!timeline->links || !served) {
    write_point(timeline, event);
    return;
  }
  span = (struct open_span){.began = *event, .sent = NONE};
  span.began.kind = HAUL_TRACE_SERVE;
  struct haul_trace_event end = *event;
  end.at_ns++;
  finish(timeline, &span, &end, false);
}

void timeline_event(struct timeline *timeline, const struct haul_trace_event *event) {
  struct open_span span;
  uint32_t *post;
  switch (event->kind) {
  case HAUL_TRACE_SUBMIT:
  case HAUL_TRACE_POST:
  case HAUL_TRACE_SERVE:
    begin(timeline, event);
    return;
  case HAUL_TRACE_REQUEST:
    post = find_open(timeline, HAUL_TRACE_POST, event);
    if (post)
      timeline->open[*post].request = event->bytes;
    return;
  case HAUL_TRACE_DONE:
    if (remove_open(timeline, HAUL_TRACE_POST, event, &span))
      finish(timeline, &span, event, false);
    return;
  case HAUL_TRACE_COMPLETE:
  case HAUL_TRACE_SERVED:
    finish_transfer(timeline, event);
    return;
  }
}

void timeline_file_begin(struct json *json, FILE *out) {
  *json = (struct json){.out = out, .flat = 3}; /* an event a line */
  json_object(json, NULL);
  json_text(json, "displayTimeUnit", "ns");
  json_array(json, "traceEvents");
}

void timeline_file_end(struct json *json) {
  json_end_array(json);
  json_object(json, "otherData");
}

void timeline_begin(struct timeline *timeline, const char *name, uint64_t start) {
  *timeline = (struct timeline){.json = timeline->json,
                                .process = timeline->process,
                                .processes = timeline->processes,
                                .links = timeline->links,
                                .start = start,
                                .open_free = NONE};
  if (getrandom(&timeline->seed, sizeof timeline->seed, GRND_NONBLOCK) < 0)
    timeline->seed = start; /* early after boot there is no entropy */
  write_name(timeline, "process_name", 0, name);
}

void timeline_end(struct timeline *timeline, uint64_t end) {
  for (uint32_t i = 0; i < timeline->open_room; i++) {
    struct haul_trace_event ended = timeline->open[i].began;
    if (!ended.kind)
      continue;
    ended.at_ns = end;
    finish(timeline, &timeline->open[i], &ended, true);
  }
  free(timeline->open);
  free(timeline->open_heads);
  free(timeline->tracks);
  free(timeline->track_heads);
}

static void write_arrow_end(const char *phase, const char *name, uint64_t id,
                            const struct arrow_end *end) {
  write_head(end->timeline, phase, name, end->at, end->track);
  json_number(end->timeline->json, "id", id);
  if (*phase == 'f')
    json_text(end->timeline->json, "bp", "e"); /* the event around this point, not the next one */
  json_end_object(end->timeline->json);
}

void timeline_mark(const struct timeline *timeline, const char *name, uint32_t track, uint64_t at) {
  write_head(timeline, "X", name, at, track);
  json_micros(timeline->json, "dur", 1);
  json_object(timeline->json, "args");
  json_end_object(timeline->json);
  json_end_object(timeline->json);
}

void timeline_arrow(const char *name, uint64_t id, struct arrow_end from, struct arrow_end to) {
  write_arrow_end("s", name, id, &from);
  write_arrow_end("f", name, id, &to);
}
