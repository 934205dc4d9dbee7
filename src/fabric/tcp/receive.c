/* SPDX-License-Identifier: MIT
 * Receiving. Payload is read straight to its destination; the read that completes a payload also
 * takes its trailer and the next head, so that they cost no system call of their own. */
#include "fabric/tcp/receive.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/sys.h"
#include "fabric/tcp/rails.h"
#include "fabric/tcp/staging.h"

#define SPANS_MAX  64
#define BUDGET     (512u << 10) /* bytes before other rails get their turn */
#define READ_AHEAD (FRAME_TRAILER + FRAME_HEADER + FRAME_SEGMENT)

void rail_fail(struct tcp_rail *rail, int code, const char *what) {
  char reason[160];
  struct link *link = rail->endpoint->base.link;
  snprintf(reason, sizeof reason, "%s on tcp rail %u", what, rail->index);
  rail->broken = true;
  link->fail(link, code, reason);
}

/* ---- A payload's destination ---- */

void rail_start_payload(struct tcp_rail *rail, struct haul_region *region, uint32_t count) {
  struct rail_rx *rx = &rail->rx;
  payload_start(&rx->payload, region, rx->segments, count, rx->frame.payload);
  rx->state = RX_PAYLOAD;
  rx->left = rx->frame.payload;
  /* A payload that one call receives is in the cache still when it is complete. */
  rx->summed = rx->frame.flags & FRAME_CHECKSUM && rx->left > TCP_RECEIVES && rx->payload.view &&
               !region->memory.provider->checksum;
  if (rx->summed)
    running_checksum_reset(&rx->checksum);
}

void rail_discard_payload(struct tcp_rail *rail, int status) {
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

/* False when the payload needs a bounce buffer and none is free now. */
static bool has_destination(struct tcp_rail *rail) {
  if (!rail_awaits_bounce(rail))
    return true;
  int code = payload_get_bounce(&rail->rx.payload, &rail->endpoint->rx_staging);
  if (code < 0) /* waiting would bring none */
    rail_discard_payload(rail, code);
  return code <= 0;
}

/* ---- Bytes ---- */

static size_t buffered(const struct rail_rx *rx) {
  return rx->inbox_end - rx->inbox_start;
}

/* Where the next payload bytes go. Discarded bytes overwrite each other. */
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

/* Moves payload that came along with a head to its destination. */
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

/* The head at the start of the inbox, if it is complete. */
static bool take_head(struct tcp_rail *rail) {
  struct rail_rx *rx = &rail->rx;
  const char *what = NULL;
  const uint8_t *at = rx->inbox + rx->inbox_start;
  if (buffered(rx) < FRAME_HEADER)
    return false;
  int code = frame_parse(at, &rx->frame, &what);
  size_t head = FRAME_HEADER + (size_t)rx->frame.count * FRAME_SEGMENT;
  if (code == 0 && buffered(rx) < head)
    return false;
  if (code == 0 && rx->frame.count > 0)
    code = frame_parse_segments(at + FRAME_HEADER, &rx->frame, rx->segments, &what);
  if (code) {
    rail_fail(rail, HAUL_EPROTO, what);
    return false;
  }
  rx->inbox_start += head;
  rx->status = 0;
  rail_handle_head(rail);
  return true;
}

static bool take_trailer(struct tcp_rail *rail) {
  struct rail_rx *rx = &rail->rx;
  struct frame_trailer trailer;
  const char *what = NULL;
  if (buffered(rx) < FRAME_TRAILER)
    return false;
  if (frame_parse_trailer(rx->inbox + rx->inbox_start, &trailer, &what) != 0) {
    rail_fail(rail, HAUL_EPROTO, what);
    return false;
  }
  rx->inbox_start += FRAME_TRAILER;
  rx->state = RX_HEAD;
  rail_handle_payload(rail, &trailer);
  return true;
}

/* Does what the buffered bytes allow; false when more are needed, or nothing can go on. */
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

/* More while nothing urgent came for long, as far as this rail knows. */
static size_t rx_share(const struct tcp_rail *rail) {
  const struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  bool calm = !express || (express != rail && rail->rx.moved - express->rx.moved > TCP_CALM_NS);
  return calm ? TCP_CALM * TCP_RECEIVES : TCP_RECEIVES;
}

/* One read: payload to its destination, then trailer and head to the inbox. */
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
  size_t room = TCP_INBOX - rx->inbox_end;
  if (rx->state == RX_PAYLOAD) {
    count = destination_spans(rx, spans, SPANS_MAX);
    payload = spans_cut(spans, &count, share);
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

/* Without a bounce buffer nothing can be read, and the loop must not report the bytes that came
 * again and again. */
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
  size_t budget = BUDGET, unserved = 0;
  bool came = false;
  for (;;) {
    while (consume(rail))
      came = true;
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
