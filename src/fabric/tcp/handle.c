/* SPDX-License-Identifier: MIT
 * What received frames do. Nothing that a frame says is used before it was checked against the
 * exported region, or against the request that it answers. */
#include <string.h>

#include "core/error.h"
#include "fabric/exports.h"
#include "fabric/tcp/rails.h"
#include "fabric/tcp/receive.h"
#include "fabric/tcp/send.h"
#include "fabric/tcp/staging.h"

/* ---- Requests of the peer ---- */

/* The pump that follows the reading sends the response, so that many share a call, and one may
 * share it with what the application sends next (rail_poll). */
static void respond(struct tcp_rail *rail, struct tx_frame *frame) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  tx_respond(rail, frame);
  atomic_store_explicit(&rail->tx.unsent, true, memory_order_relaxed);
  combiner_unlock(&endpoint->combiner);
}

/* Counts a request as unanswered. A peer that exceeds its window is broken. */
static bool accept_request(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool fits = endpoint->unanswered < endpoint->base.link->own_window;
  endpoint->unanswered += fits;
  combiner_unlock(&endpoint->combiner);
  if (!fits)
    rail_fail(rail, HAUL_EPROTO, "more requests than the window allows");
  return fits;
}

/* The exported region behind the frame's segments, with a reference, or the code to reject it
 * with. */
static int find_region(struct tcp_rail *rail, enum haul_operation operation,
                       struct haul_region **region) {
  struct export_view view;
  const struct rail_rx *rx = &rail->rx;
  const struct link *link = rail->endpoint->base.link;
  uint16_t count = frame_is_atomic(&rx->frame) ? 1 : rx->frame.count;
  int code = exports_find(link->fabric->exports, rx->frame.handle, link->identity, &view);
  if (code)
    return code;
  for (uint16_t i = 0; i < count && code == 0; i++)
    code = export_check(&view, operation, rx->segments[i].offset, rx->segments[i].length);
  if (code)
    region_put(view.region);
  else
    *region = view.region;
  return code;
}

static void trace_request(const struct tcp_rail *rail, enum haul_trace_kind kind,
                          enum haul_operation operation, const struct frame *frame, int code) {
  if (endpoint_is_traced(&rail->endpoint->base))
    endpoint_trace_served(&rail->endpoint->base, kind, operation, frame->request, frame->payload,
                          code);
}

/* Takes over the region's reference. */
static int send_data(struct tcp_rail *rail, struct haul_region *region) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  struct tx_frame *frame = tx_data(&rail->rx.frame, rail->rx.segments, region);
  int code = frame ? 0 : haul_error_last()->code;
  if (frame) {
    frame->rail = rail;
    tx_submit(frame);
    tcp_advance(endpoint, NULL);
  }
  combiner_unlock(&endpoint->combiner);
  if (code)
    region_put(region);
  return code;
}

/* By this processor, on the first segment, which was checked; the second one is the operands. Takes
 * over the region's reference. */
static int run_atomic(struct tcp_rail *rail, enum haul_operation operation,
                      struct haul_region *region) {
  const struct frame_segment *segments = rail->rx.segments;
  const struct operands operands = {segments[1].offset, segments[1].length};
  char *word = region->memory.view ? (char *)region->memory.view + segments[0].offset : NULL;
  struct tx_frame *frame = NULL;
  int code = !word                      ? HAUL_ENOTSUP
             : !region->memory.writable ? HAUL_EACCESS
             : (uintptr_t)word % 8      ? HAUL_EINVAL
                                        : 0;
  if (code == 0) {
    frame = tx_atomic_data(rail->rx.frame.request);
    code = frame ? 0 : HAUL_ENOMEM; /* now: an operation that took place must be answered */
  }
  if (code == 0) {
    uint64_t old = operate(word, operation, &operands);
    memcpy(frame->head + TX_OLD_VALUE, &old, sizeof old);
    respond(rail, frame);
  }
  region_put(region);
  return code;
}

static void on_write(struct tcp_rail *rail) {
  struct rail_rx *rx = &rail->rx;
  struct haul_region *region = NULL;
  if (!accept_request(rail))
    return;
  trace_request(rail, HAUL_TRACE_SERVE, HAUL_OP_WRITE, &rx->frame, 0);
  rx->status = find_region(rail, HAUL_OP_WRITE, &region);
  rail_start_payload(rail, region, rx->frame.count);
}

/* A READ or an atomic: done at once, as far as this side sees it. */
static void on_request(struct tcp_rail *rail) {
  const struct frame *frame = &rail->rx.frame;
  enum haul_operation operation = frame->type == FRAME_READ        ? HAUL_OP_READ
                                  : frame->type == FRAME_FETCH_ADD ? HAUL_OP_FETCH_ADD
                                                                   : HAUL_OP_COMPARE_SWAP;
  struct haul_region *region = NULL;
  if (!accept_request(rail))
    return;
  int code = find_region(rail, operation, &region);
  if (code == 0)
    code =
        operation == HAUL_OP_READ ? send_data(rail, region) : run_atomic(rail, operation, region);
  trace_request(rail, HAUL_TRACE_SERVED, operation, frame, code);
  if (code)
    respond(rail, tx_ack(frame->request, code));
  else
    endpoint_served(&rail->endpoint->base, operation == HAUL_OP_READ ? 0 : 8, frame->payload);
}

/* ---- Responses of the peer ---- */

/* Counts the work, if there is one, and ends it. */
static void end_work(struct tcp_endpoint *endpoint, struct work *work, int code) {
  struct endpoint_counters *counters = &endpoint->base.counters;
  if (!work)
    return;
  if (code)
    atomic_fetch_add_explicit(&counters->errors, 1, memory_order_relaxed);
  else
    endpoint_count(&endpoint->base, work->operation, work->bytes);
  work->done(work, code);
}

static int rejected(int code) {
  const char *hint = code == HAUL_ESTALE    ? "look it up again: it was released or unpublished"
                     : code == HAUL_EACCESS ? "have its owner publish it with this right"
                     : code == HAUL_EINVAL  ? "have its owner align the region to 8 bytes"
                                            : "read the peer's log";
  return error_set(code, 0, NULL, hint, "the peer rejected the request: %s", haul_error_text(code));
}

static void on_ack(struct tcp_rail *rail) {
  struct work *work;
  int status = rail->rx.frame.status;
  if (!slot_complete(rail, rail->rx.frame.request, false, &work)) {
    rail_fail(rail, HAUL_EPROTO, "a response to no request");
    return;
  }
  if (work && status == 0 && work->operation != HAUL_OP_WRITE) {
    end_work(rail->endpoint, work,
             error_set(HAUL_EPROTO, 0, NULL, NULL, "the peer answered a read without data"));
    rail_fail(rail, HAUL_EPROTO, "an ACK without an error to a request for data");
    return;
  }
  end_work(rail->endpoint, work, status ? rejected(status) : 0);
}

static void on_data(struct tcp_rail *rail) {
  struct rail_rx *rx = &rail->rx;
  struct work *work;
  if (!slot_start_data(rail, rx->frame.request, &work) ||
      (work && (work->operation == HAUL_OP_WRITE || work->bytes != rx->frame.payload))) {
    rail_fail(rail, HAUL_EPROTO, "data that was not requested");
    return;
  }
  rx->work = work;
  uint32_t count = work ? work->count : 0;
  for (uint32_t i = 0; i < count; i++)
    rx->segments[i] = (struct frame_segment){work->pieces[i].local, work->pieces[i].length};
  rail_start_payload(rail, work ? work->region : NULL, count);
}

void rail_handle_head(struct tcp_rail *rail) {
  switch (rail->rx.frame.type) {
  case FRAME_WRITE:
    on_write(rail);
    break;
  case FRAME_ACK:
    on_ack(rail);
    break;
  case FRAME_DATA:
    on_data(rail);
    break;
  default:
    on_request(rail);
    break;
  }
}

/* ---- The end of a payload ---- */

int payload_verify(const struct payload *payload, const struct frame *frame,
                   const struct frame_trailer *trailer, const struct running_checksum *checksum) {
  uint64_t sum = checksum ? checksum->sum : 0;
  if (trailer->status)
    return error_set(trailer->status, 0, NULL, NULL, "the peer aborted it before its end");
  int code = memory_fence(&payload->region->memory, FENCE_AFTER_WRITE);
  if (code || !(frame->flags & FRAME_CHECKSUM))
    return code;
  if (!checksum)
    code = payload_checksum(payload, &sum);
  if (code || sum == trailer->checksum)
    return code;
  return error_set(HAUL_ECHECKSUM, 0, NULL, NULL,
                   "the bytes at the destination are not those that were sent");
}

void payload_complete(struct tcp_rail *rail, const struct frame *frame, int code) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  struct work *work;
  if (frame->type == FRAME_WRITE) {
    trace_request(rail, HAUL_TRACE_SERVED, HAUL_OP_WRITE, frame, code);
    if (code == 0)
      endpoint_served(&endpoint->base, frame->payload, 0);
    respond(rail, tx_ack(frame->request, code));
  } else if (slot_complete(rail, frame->request, true, &work)) {
    end_work(endpoint, work, code);
  }
}

void rail_handle_payload(struct tcp_rail *rail, const struct frame_trailer *trailer) {
  struct rail_rx *rx = &rail->rx;
  int code = rx->status;
  if (code && rx->frame.type == FRAME_DATA) /* it was discarded for want of a bounce buffer */
    code = code == HAUL_ELIMIT ? staging_full() : error_memory("bounce buffer");
  if (rx->payload.bounce && trailer->status == 0) {
    code = staged_receive_start(rail, trailer);
    if (code == 0)
      return;
  } else if (rx->payload.region) {
    code = payload_verify(&rx->payload, &rx->frame, trailer, rx->summed ? &rx->checksum : NULL);
  }
  rail_discard_payload(rail, 0);
  payload_complete(rail, &rx->frame, code);
}

/* ---- Early ends ---- */

void receive_detach(struct tcp_endpoint *endpoint, const struct work *work) {
  each_rail(rail, endpoint) {
    if (rail->rx.state != RX_HEAD && rail->rx.work == work)
      rail_discard_payload(rail, 0);
  }
  list_each_safe(item, &endpoint->staged_receives) {
    struct staged_receive *staged = list_entry(item, struct staged_receive, link);
    if (staged->work == work)
      staged_receive_finish(staged, HAUL_ECANCELED);
  }
}

void receive_revoke(struct tcp_endpoint *endpoint, uint64_t handle) {
  each_rail(rail, endpoint) {
    const struct frame *frame = &rail->rx.frame;
    if (rail->rx.state != RX_HEAD && rail->rx.payload.region && frame->type == FRAME_WRITE &&
        frame->handle == handle)
      rail_discard_payload(rail, HAUL_ESTALE);
  }
  list_each_safe(item, &endpoint->staged_receives) {
    struct staged_receive *staged = list_entry(item, struct staged_receive, link);
    if (staged->frame.type == FRAME_WRITE && staged->frame.handle == handle)
      staged_receive_finish(staged, HAUL_ESTALE);
  }
}
