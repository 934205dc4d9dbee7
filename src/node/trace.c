/* SPDX-License-Identifier: MIT
 * Events of transfers: recorded while readers ask for them (core/trace.h), served to peers page by
 * page, requested from peers. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "node/requests.h"

#define PAGE    128          /* events of 43 bytes, which fit CONTROL_BODY_MAX */
#define IDLE_NS 3000000000LL /* without a reader, before the recording stops */

/* The fields of an event with their widths, in their order on the wire. */
#define EVENT_FIELDS(X)                                                                            \
  X(64, at)                                                                                        \
  X(8, kind)                                                                                       \
  X(8, operation) X(8, path) X(32, slice) X(32, status) X(64, transfer) X(64, peer) X(64, bytes)

/* ---- Recording ---- */

void trace_expire(struct timer *timer) {
  struct haul_node *node = list_entry(timer, struct haul_node, trace_expiry);
  if (!trace_stop(&node->fabric.trace)) /* another thread is recording an event */
    loop_timer_start(node->loop, timer, clock_now() + IDLE_NS);
}

/* With the loop's lock: starts the recording, or keeps it going. */
static int keep_recording(struct haul_node *node) {
  if (node_is_closed(node))
    return HAUL_ECLOSED;
  if (!trace_start(&node->fabric.trace))
    return HAUL_ENOMEM;
  loop_timer_start(node->loop, &node->trace_expiry, clock_now() + IDLE_NS);
  return 0;
}

static void describe_event(const struct trace_event *event, struct haul_trace_event *out) {
  *out = (struct haul_trace_event){.at_ns = event->at,
                                   .peer = event->peer,
                                   .transfer = event->transfer,
                                   .bytes = event->bytes,
                                   .slice = event->slice,
                                   .status = event->status,
                                   .kind = event->kind,
                                   .operation = event->operation};
  if (event->path != TRACE_NO_PATH)
    snprintf(out->path, sizeof out->path, "%s", transport_at(event->path)->name);
}

/* A page at a time, which bounds how long the loop's lock is held. */
static size_t read_page(struct haul_node *node, struct haul_trace *trace,
                        struct haul_trace_event *events, size_t room, int *code) {
  struct trace_event page[PAGE];
  uint64_t lost = 0;
  loop_lock(node->loop);
  *code = keep_recording(node);
  size_t count =
      *code ? 0
            : trace_read(&node->fabric.trace, &trace->next, page, room < PAGE ? room : PAGE, &lost);
  trace->lost += lost;
  trace->clock_ns = (uint64_t)clock_now();
  loop_unlock(node->loop);
  for (size_t i = 0; events && i < count; i++)
    describe_event(&page[i], &events[i]);
  return count;
}

HAUL_API int haul_node_trace(haul_node *node, struct haul_trace *trace,
                             struct haul_trace_event *events, size_t *count) {
  int code = node_enter("haul_node_trace", node && trace && count && (*count == 0 || events),
                        "node, trace, events or count is NULL");
  if (code)
    return code;
  size_t room = *count, page;
  *count = 0;
  do {
    page = read_page(node, trace, events ? events + *count : NULL, room - *count, &code);
    *count += page;
  } while (page == PAGE && *count < room);
  return code == HAUL_ENOMEM ? error_memory("events") : code ? error_code(code, NULL) : 0;
}

/* ---- Serving ---- */

static void put_event(struct wire *wire, const struct trace_event *event) {
#define PUT(bits, name) wire_put##bits(wire, (uint##bits##_t)event->name);
  EVENT_FIELDS(PUT)
#undef PUT
}

static bool get_event(struct wire *wire, struct trace_event *event) {
#define GET(bits, name) event->name = (__typeof__(event->name))wire_get##bits(wire);
  EVENT_FIELDS(GET)
#undef GET
  return !wire->failed && event->kind >= HAUL_TRACE_SUBMIT && event->kind <= HAUL_TRACE_SERVED &&
         event->operation >= HAUL_OP_WRITE && event->operation <= HAUL_OP_COMPARE_SWAP &&
         event->status <= 0 && (event->path == TRACE_NO_PATH || transport_at(event->path));
}

void trace_serve(struct haul_peer *peer, struct wire *in, struct wire *out) {
  struct trace_event page[PAGE];
  uint64_t first = wire_get64(in), lost;
  size_t most = wire_get16(in);
  int code = stats_may_observe(peer) ? keep_recording(peer->node) : HAUL_EACCESS;
  wire_put32(out, (uint32_t)code);
  if (code == 0) {
    size_t count =
        trace_read(&peer->node->fabric.trace, &first, page, most < PAGE ? most : PAGE, &lost);
    wire_put64(out, (uint64_t)clock_now());
    wire_put64(out, first);
    wire_put64(out, lost);
    wire_put16(out, (uint16_t)count);
    for (size_t i = 0; i < count; i++)
      put_event(out, &page[i]);
  }
}

/* ---- Requesting ---- */

struct trace_request {
  struct request base; /* first */
  struct haul_trace trace;
  struct haul_trace_event *events;
  size_t room, count, page;
};

static int parse_traced(struct request *request, struct wire *in) {
  struct trace_request *traced = (struct trace_request *)request;
  int32_t status = (int32_t)wire_get32(in);
  if (status == HAUL_EACCESS)
    return stats_refused(request->peer);
  if (status == HAUL_ENOMEM || status == HAUL_ECLOSED)
    return error_set(status, 0, request->peer->base.name, NULL, "the peer cannot record events: %s",
                     haul_error_text(status));
  traced->trace.clock_ns = wire_get64(in);
  traced->trace.next = wire_get64(in);
  traced->trace.lost += wire_get64(in);
  traced->page = wire_get16(in);
  if (in->failed || status != 0 || traced->trace.next == 0 ||
      traced->page > traced->room - traced->count)
    return HAUL_EPROTO;
  for (size_t i = 0; i < traced->page; i++) {
    struct trace_event event;
    if (!get_event(in, &event))
      return HAUL_EPROTO;
    describe_event(&event, &traced->events[traced->count++]);
  }
  return 0;
}

HAUL_API int haul_peer_trace_of(haul_peer *peer, haul_deadline until, struct haul_trace *trace,
                                struct haul_trace_event *events, size_t *count) {
  int code = node_enter("haul_peer_trace_of", peer && trace && count && (*count == 0 || events),
                        "peer, trace, events or count is NULL");
  if (code)
    return code;
  struct trace_request traced = {.trace = *trace, .events = events, .room = *count};
  *count = 0;
  do {
    uint8_t body[10];
    struct wire wire = wire_over(body, sizeof body);
    size_t left = traced.room - traced.count;
    wire_put64(&wire, traced.trace.next);
    wire_put16(&wire, (uint16_t)(left < PAGE ? left : PAGE));
    traced.base = (struct request){.peer = peer, .parse = parse_traced};
    code = control_request(&traced.base, CONTROL_TRACE, body, sizeof body, until);
    if (code)
      return code;
  } while (traced.page == PAGE && traced.count < traced.room);
  *trace = traced.trace;
  *count = traced.count;
  return 0;
}
