/* SPDX-License-Identifier: MIT
 * Receiving. Payload is read straight to its destination; the read that completes a payload also
 * takes its trailer and the next head, so they cost no further system call. No field of a frame is
 * used before it was checked against the exported region, or against the request that it answers.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/shrinkable.h"
#include "core/sys.h"
#include "fabric/exports.h"
#include "fabric/tcp/rails.h"

#define SPANS_MAX  64
#define BUDGET     (512u << 10) /* bytes before other rails get their turn */
#define READ_AHEAD (FRAME_TRAILER + FRAME_HEADER + FRAME_SEGMENT)

__attribute__((cold)) void rail_fail(struct tcp_rail *rail, int code, const char *reason) {
  char text[160];
  struct link *link = rail->endpoint->base.link;
  snprintf(text, sizeof text, "%s on tcp rail %u", reason, rail->index);
  rail->broken = true;
  link->fail(link, code, text);
}

/* `count` checked segments of the region; NULL: discards the payload. */
static void rail_start_payload(struct tcp_rail *rail, struct haul_region *region, uint32_t count) {
  struct rail_rx *rx = &rail->rx;
  payload_start(&rx->payload, region, rx->segments, count, rx->frame.payload);
  rx->state = RX_PAYLOAD;
  rx->left = rx->frame.payload;
  /* The CPU caches still hold a payload that one call received. */
  rx->summed = rx->frame.flags & FRAME_CHECKSUM && rx->left > shrinkable(TCP_RECEIVES, 512) &&
               rx->payload.view && region && !region->memory.provider->checksum;
  if (rx->summed)
    running_checksum_reset(&rx->checksum);
}

__attribute__((cold)) void rail_discard_payload(struct tcp_rail *rail, int status) {
  struct rail_rx *rx = &rail->rx;
  payload_put_bounce(&rx->payload, &rail->endpoint->rx_staging);
  if (rx->frame.type == FRAME_WRITE)
    region_put(rx->payload.region);
  rx->payload.region = NULL;
  rx->work = NULL;
  rx->status = status;
}

bool rail_awaits_bounce(const struct tcp_rail *rail) {
  return rail->rx.state == RX_PAYLOAD && payload_awaits_bounce(&rail->rx.payload);
}

/* False: the payload must wait for a bounce buffer. */
static bool has_destination(struct tcp_rail *rail) {
  if (!rail_awaits_bounce(rail))
    return true;
  int code = payload_get_bounce(&rail->rx.payload, &rail->endpoint->rx_staging);
  if (code < 0) /* not a shortage that passes */
    rail_discard_payload(rail, code);
  return code <= 0;
}

/* The pump after the reading sends the response, so that many responses share a call, perhaps with
 * requests that the application sends next (rail_poll). */
static void respond(struct tcp_rail *rail, struct tx_frame *frame) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  tx_respond(rail, frame);
  atomic_store_explicit(&rail->tx.unsent, true, memory_order_relaxed);
  combiner_unlock(&endpoint->combiner);
}

/* Counts a request as outstanding, and fails a peer that exceeds its window. Each rail may take the
 * whole of it: the peer has it back with the end of a rail, of which this side may learn late. */
static bool accept_request(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool fits = rail->outstanding < endpoint->base.link->own_window;
  rail->outstanding += fits;
  combiner_unlock(&endpoint->combiner);
  if (!fits)
    rail_fail(rail, HAUL_EPROTO, "more requests than the window allows");
  return fits;
}

/* Gets the exported region of the frame's segments, with a reference, or the code of the
 * rejection. */
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
    atomic_store_explicit(&rail->tx.unsent, true, memory_order_relaxed); /* as respond does */
  }
  combiner_unlock(&endpoint->combiner);
  if (code)
    region_put(region);
  return code;
}

/* Takes over the region's reference. The first segment was checked; the second holds the
 * operands. */
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
    code = frame ? 0 : HAUL_ENOMEM; /* before the operation, which must be answered */
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

/* A READ or an atomic. */
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

/* Counts and ends the work, unless it is NULL. */
static void end_work(struct tcp_endpoint *endpoint, struct work *work, int code) {
  if (!work)
    return;
  endpoint_count(&endpoint->base, work->operation, work->bytes, code);
  work->done(work, code);
}

__attribute__((cold)) static int rejection(int code) {
  const char *hint = code == HAUL_ESTALE    ? NULL
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
             error_set(HAUL_EPROTO, 0, NULL, NULL, "the peer responded to a read without data"));
    rail_fail(rail, HAUL_EPROTO, "an ACK without an error to a request for data");
    return;
  }
  end_work(rail->endpoint, work, status ? rejection(status) : 0);
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

int payload_verify(const struct payload *payload, const struct frame *frame,
                   const struct frame_trailer *trailer, const struct running_checksum *checksum) {
  uint64_t sum = checksum ? checksum->sum : 0;
  if (trailer->status)
    return error_set(trailer->status, 0, NULL, NULL, "the peer aborted the payload");
  int code = memory_fence(&payload->region->memory, FENCE_AFTER_WRITE);
  if (code || !(frame->flags & FRAME_CHECKSUM))
    return code;
  if (!checksum)
    code = payload_checksum(payload, &sum);
  if (code || sum == trailer->checksum)
    return code;
  return error_set(HAUL_ECHECKSUM, 0, NULL, NULL,
                   "the bytes at the destination differ from the source");
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

/* The payload and its trailer are complete: stages the payload on, or completes it. */
static void handle_payload(struct tcp_rail *rail, const struct frame_trailer *trailer) {
  struct rail_rx *rx = &rail->rx;
  int code = rx->status;
  if (code && rx->frame.type == FRAME_DATA) /* discarded for lack of a bounce buffer */
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

static size_t buffered(const struct rail_rx *rx) {
  return rx->inbox_end - rx->inbox_start;
}

/* The destination of the next payload bytes. Discarded bytes overwrite each other. */
static int destination_spans(struct rail_rx *rx, struct iovec *spans, int room) {
  const size_t size = sizeof rx->segments;
  int count = 0;
  if (rx->payload.region)
    payload_spans(&rx->payload, rx->left, spans, &count, room);
  else
    for (uint64_t left = rx->left; left > 0 && count < room; left -= spans[count++].iov_len)
      spans[count] = (struct iovec){rx->segments, left < size ? left : size};
  return count;
}

static void took_payload(struct rail_rx *rx, uint64_t bytes) {
  rx->left -= bytes;
  if (rx->payload.region)
    payload_advance(&rx->payload, bytes, rx->summed ? &rx->checksum : NULL);
  if (rx->left == 0)
    rx->state = RX_TRAILER;
}

/* Moves payload that came with a head to its destination. */
static void payload_from_inbox(struct rail_rx *rx) {
  struct iovec span;
  while (rx->left > 0 && buffered(rx) > 0) {
    destination_spans(rx, &span, 1);
    size_t bytes = buffered(rx) < span.iov_len ? buffered(rx) : span.iov_len;
    memcpy(span.iov_base, rx->inbox + rx->inbox_start, bytes);
    rx->inbox_start += bytes;
    took_payload(rx, bytes);
  }
}

/* Handles the head at the start of the inbox, if it is complete. */
static bool take_head(struct tcp_rail *rail) {
  struct rail_rx *rx = &rail->rx;
  const char *reason = NULL;
  const uint8_t *at = rx->inbox + rx->inbox_start;
  if (buffered(rx) < FRAME_HEADER)
    return false;
  int code = frame_parse(at, &rx->frame, &reason);
  if (rail->parking == RAIL_PARKED) {
    code = HAUL_EPROTO;
    reason = "a frame on a parked rail";
  }
  size_t head = FRAME_HEADER + (size_t)rx->frame.count * FRAME_SEGMENT;
  if (code == 0 && buffered(rx) < head)
    return false;
  if (code == 0 && rx->frame.count > 0)
    code = frame_parse_segments(at + FRAME_HEADER, &rx->frame, rx->segments, &reason);
  if (code) {
    rail_fail(rail, HAUL_EPROTO, reason);
    return false;
  }
  rx->inbox_start += head;
  rx->status = 0;
  if (rx->frame.type == FRAME_WRITE)
    on_write(rail);
  else if (rx->frame.type == FRAME_ACK)
    on_ack(rail);
  else if (rx->frame.type == FRAME_DATA)
    on_data(rail);
  else if (frame_is_parking(&rx->frame))
    rail_on_parking(rail);
  else
    on_request(rail);
  return true;
}

static bool take_trailer(struct tcp_rail *rail) {
  struct rail_rx *rx = &rail->rx;
  struct frame_trailer trailer;
  const char *reason = NULL;
  if (buffered(rx) < FRAME_TRAILER)
    return false;
  if (frame_parse_trailer(rx->inbox + rx->inbox_start, &trailer, &reason) != 0) {
    rail_fail(rail, HAUL_EPROTO, reason);
    return false;
  }
  rx->inbox_start += FRAME_TRAILER;
  rx->state = RX_HEAD;
  handle_payload(rail, &trailer);
  return true;
}

/* Handles buffered bytes; false when it needs more of them, or cannot continue. */
static bool consume(struct tcp_rail *rail) {
  if (!rail_is_open(rail))
    return false;
  if (rail->rx.state == RX_HEAD)
    return take_head(rail);
  if (rail->rx.state == RX_TRAILER)
    return take_trailer(rail);
  if (!has_destination(rail))
    return false;
  payload_from_inbox(&rail->rx);
  return rail->rx.state != RX_PAYLOAD;
}

/* Larger while no urgent frame has come for TCP_CALM_NS, as far as this rail knows. */
static size_t rx_share(const struct tcp_rail *rail) {
  const struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  bool calm = !express || (express != rail && rail->rx.moved - express->rx.moved > TCP_CALM_NS);
  size_t share = shrinkable(TCP_RECEIVES, 512);
  return calm ? TCP_CALM_RECEIVES * share : share;
}

/* One read: payload to its destination, trailer and next head to the inbox. */
static ssize_t read_more(struct tcp_rail *rail, size_t share) {
  struct rail_rx *rx = &rail->rx;
  struct iovec spans[SPANS_MAX + 1];
  int count = 0;
  uint64_t payload = 0;
  if (rx->inbox_start > 0) {
    memmove(rx->inbox, rx->inbox + rx->inbox_start, buffered(rx));
    rx->inbox_end -= rx->inbox_start;
    rx->inbox_start = 0;
  }
  bool small = rx->frame.payload <= TCP_SMALL; /* as the next frames probably are */
  size_t room = (small ? TCP_INBOX : TCP_AHEAD) - rx->inbox_end;
  if (rx->state == RX_PAYLOAD) {
    count = destination_spans(rx, spans, SPANS_MAX);
    payload = spans_cut(spans, &count, share);
    if (!small || payload < rx->left)
      room = payload == rx->left ? READ_AHEAD : 0;
  }
  if (room > 0)
    spans[count++] = (struct iovec){rx->inbox + rx->inbox_end, room};
  struct msghdr message = {.msg_iov = spans, .msg_iovlen = (size_t)count};
  ssize_t got = stream_receive(&rail->stream, &message);
  if (got <= 0)
    return got;
  uint64_t to_payload = (uint64_t)got < payload ? (uint64_t)got : payload;
  if (to_payload > 0)
    took_payload(rx, to_payload);
  rx->inbox_end += (size_t)got - to_payload;
  return got;
}

/* A rail without a bounce buffer cannot read, so the loop must not report its bytes again and
 * again. */
static void set_blocked(struct tcp_rail *rail, bool blocked) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  if (rail->rx.blocked == blocked || rail->stream.fd < 0)
    return;
  combiner_lock(&endpoint->combiner);
  rail->rx.blocked = blocked;
  rail_watch(rail);
  combiner_unlock(&endpoint->combiner);
}

bool rail_receive(struct tcp_rail *rail) {
  struct link *link = rail->endpoint->base.link;
  size_t budget = shrinkable(BUDGET, 1), unserved = 0;
  bool came = false;
  for (;;) {
    while (consume(rail))
      came = true;
    tcp_use_slots(rail->endpoint);
    if (!rail_is_open(rail) || rail_awaits_bounce(rail) || budget == 0)
      break;
    size_t share = rx_share(rail);
    ssize_t got = read_more(rail, share);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      rail->broken = true;
      break;
    }
    if (got < 0)
      break;
    came = true;
    rail->rx.moved = clock_now();
    atomic_store_explicit(&link->heard, rail->rx.moved, memory_order_relaxed);
    budget -= (size_t)got < budget ? (size_t)got : budget;
    unserved += (size_t)got;
    if (unserved >= share) {
      rail_serve_express(rail);
      unserved = 0;
    }
  }
  set_blocked(rail, rail_awaits_bounce(rail));
  return came;
}

__attribute__((cold)) void receive_detach(struct tcp_endpoint *endpoint, const struct work *work) {
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

__attribute__((cold)) void receive_revoke(struct tcp_endpoint *endpoint, uint64_t handle) {
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
