/* SPDX-License-Identifier: MIT
 * What happens when: recorded while somebody asks (core/trace.h), told to peers page by page, and
 * asked of them. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "node/node.h"

#define PAGE    128 /* events, of 43 bytes: they fit CONTROL_BODY_MAX */
#define IDLE_NS 3000000000LL

/* ---- Recording ---- */

void trace_expire(struct timer *timer) {
  struct haul_node *node = list_entry(timer, struct haul_node, watched);
  if (!trace_stop(&node->fabric.trace)) /* a thread is in it for a moment yet */
    loop_timer_start(node->loop, timer, clock_now() + IDLE_NS);
}

/* With the loop's lock. */
static int record(struct haul_node *node) {
  if (node_is_closed(node))
    return HAUL_ECLOSED;
  if (!trace_start(&node->fabric.trace))
    return HAUL_ENOMEM;
  loop_timer_start(node->loop, &node->watched, clock_now() + IDLE_NS);
  return 0;
}

static void name_path(uint8_t index, char path[8]) {
  if (index != TRACE_NO_PATH)
    snprintf(path, 8, "%s", transport_at(index)->name);
}

static void describe(const struct trace_event *event, struct haul_trace_event *out) {
  *out = (struct haul_trace_event){.at_ns = event->at,
                                   .peer = event->peer,
                                   .transfer = event->transfer,
                                   .bytes = event->bytes,
                                   .slice = event->slice,
                                   .status = event->status,
                                   .kind = event->kind,
                                   .operation = event->operation};
  name_path(event->path, out->path);
}

/* In pages, so that the loop's lock is not held for long. */
static size_t read_page(struct haul_node *node, struct haul_trace *trace,
                        struct haul_trace_event *events, size_t room, int *code) {
  struct trace_event page[PAGE];
  uint64_t lost = 0;
  loop_lock(node->loop);
  *code = record(node);
  size_t count =
      *code ? 0
            : trace_read(&node->fabric.trace, &trace->next, page, room < PAGE ? room : PAGE, &lost);
  trace->lost += lost;
  trace->clock_ns = (uint64_t)clock_now();
  loop_unlock(node->loop);
  for (size_t i = 0; events && i < count; i++)
    describe(&page[i], &events[i]);
  return count;
}

HAUL_API int haul_node_trace(haul_node *node, struct haul_trace *trace,
                             struct haul_trace_event *events, size_t *count) {
  int code = node_enter("haul_node_trace", node);
  if (code)
    return code;
  if (!trace || !count || (*count > 0 && !events))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no place for what is told");
  size_t room = *count, page;
  *count = 0;
  do {
    page = read_page(node, trace, events ? events + *count : NULL, room - *count, &code);
    *count += page;
  } while (page == PAGE && *count < room);
  return code == HAUL_ENOMEM ? error_memory("events") : code ? error_code(code, NULL) : 0;
}

/* ---- Telling ---- */

static void put_event(struct wire *wire, const struct trace_event *event) {
  wire_put64(wire, event->at);
  wire_put8(wire, event->kind);
  wire_put8(wire, event->operation);
  wire_put8(wire, event->path);
  wire_put32(wire, event->slice);
  wire_put32(wire, (uint32_t)event->status);
  wire_put64(wire, event->transfer);
  wire_put64(wire, event->peer);
  wire_put64(wire, event->bytes);
}

static bool get_event(struct wire *wire, struct trace_event *event) {
  event->at = wire_get64(wire);
  event->kind = wire_get8(wire);
  event->operation = wire_get8(wire);
  event->path = wire_get8(wire);
  event->slice = wire_get32(wire);
  event->status = (int32_t)wire_get32(wire);
  event->transfer = wire_get64(wire);
  event->peer = wire_get64(wire);
  event->bytes = wire_get64(wire);
  return !wire->failed && event->kind >= HAUL_TRACE_SUBMIT && event->kind <= HAUL_TRACE_SERVED &&
         event->operation >= HAUL_OP_WRITE && event->operation <= HAUL_OP_COMPARE_SWAP &&
         event->status <= 0 && (event->path == TRACE_NO_PATH || transport_at(event->path));
}

int trace_on_request(struct haul_peer *asking, uint32_t request, const uint8_t *body,
                     size_t length) {
  struct trace *trace = &asking->node->fabric.trace;
  struct trace_event page[PAGE];
  uint8_t answer[CONTROL_BODY_MAX];
  struct wire in = wire_over(body, length), out = wire_over(answer, sizeof answer);
  uint64_t first = wire_get64(&in), lost;
  size_t most = wire_get16(&in);
  if (in.failed || wire_left(&in) > 0)
    return HAUL_EPROTO;
  int code = stats_may_observe(asking) ? record(asking->node) : HAUL_EACCESS;
  wire_put32(&out, (uint32_t)code);
  if (code == 0) {
    size_t count = trace_read(trace, &first, page, most < PAGE ? most : PAGE, &lost);
    wire_put64(&out, (uint64_t)clock_now());
    wire_put64(&out, first);
    wire_put64(&out, lost);
    wire_put16(&out, (uint16_t)count);
    for (size_t i = 0; i < count; i++)
      put_event(&out, &page[i]);
  }
  control_send(asking, CONTROL_TRACED, request, answer, sizeof answer - wire_left(&out));
  return 0;
}

/* ---- Asking ---- */

struct question {
  struct request request; /* first */
  struct haul_trace trace;
  struct haul_trace_event *events;
  size_t room, count, page;
};

static int take_traced(struct request *request, const uint8_t *body, size_t length) {
  struct question *question = (struct question *)request;
  struct wire wire = wire_over(body, length);
  int32_t status = (int32_t)wire_get32(&wire);
  bool refuses = !wire.failed && wire_left(&wire) == 0;
  if (refuses && status == HAUL_EACCESS)
    return stats_refused(request->peer);
  if (refuses && (status == HAUL_ENOMEM || status == HAUL_ECLOSED))
    return error_set(status, 0, request->peer->base.name, NULL, "the peer cannot record now");
  question->trace.clock_ns = wire_get64(&wire);
  question->trace.next = wire_get64(&wire);
  question->trace.lost += wire_get64(&wire);
  question->page = wire_get16(&wire);
  if (wire.failed || status != 0 || question->trace.next == 0 ||
      question->page > question->room - question->count)
    return HAUL_EPROTO;
  for (size_t i = 0; i < question->page; i++) {
    struct trace_event event;
    if (!get_event(&wire, &event))
      return HAUL_EPROTO;
    describe(&event, &question->events[question->count++]);
  }
  return wire_left(&wire) > 0 ? HAUL_EPROTO : 0;
}

HAUL_API int haul_peer_trace_of(haul_peer *peer, haul_deadline until, struct haul_trace *trace,
                                struct haul_trace_event *events, size_t *count) {
  int code = error_enter("haul_peer_trace_of");
  if (code)
    return code;
  if (!peer || !trace || !count || (*count > 0 && !events))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no peer, or no place for what it tells");
  struct question question = {.trace = *trace, .events = events, .room = *count};
  *count = 0;
  do {
    uint8_t body[10];
    struct wire wire = wire_over(body, sizeof body);
    size_t left = question.room - question.count;
    wire_put64(&wire, question.trace.next);
    wire_put16(&wire, (uint16_t)(left < PAGE ? left : PAGE));
    question.request = (struct request){.peer = peer, .take = take_traced};
    code = control_request(&question.request, CONTROL_TRACE, body, sizeof body, until);
    if (code)
      return code;
  } while (question.page == PAGE && question.count < question.room);
  *trace = question.trace;
  *count = question.count;
  return 0;
}
