/* SPDX-License-Identifier: MIT
 * Parking: rails that are idle for the time in the setting idle_rails are closed, by agreement, and
 * opened again on use (dial.c).
 *
 * The initiator sends PARK on each rail and starts no work there until the answer. The acceptor
 * answers on the same rail: PARKED if it has nothing there, and sends nothing after it; or
 * UNPARKED. As frames of a rail stay in order, a request of the acceptor that crosses PARK is
 * followed by UNPARKED. With PARKED neither side has anything on the rail, and the initiator closes
 * it. Once all are closed, their memory is freed. */
#include "core/alloc.h"
#include "fabric/tcp/rails.h"

static bool has_staged(const struct tcp_rail *rail) {
  const struct tcp_endpoint *endpoint = rail->endpoint;
  list_each(item, &endpoint->staged_sends) {
    if (list_entry(item, struct tx_frame, link)->rail == rail)
      return true;
  }
  list_each(item, &endpoint->staged_receives) {
    if (list_entry(item, struct staged_receive, link)->rail == rail)
      return true;
  }
  return false;
}

/* Nothing is on its way over the rail in either direction, as far as this side knows. With both
 * locks, at a head. */
static bool is_clear(const struct tcp_rail *rail) {
  const struct tcp_endpoint *endpoint = rail->endpoint;
  for (unsigned i = 0; i < TCP_WINDOW; i++)
    if (endpoint->slots[i].busy && endpoint->slots[i].rail == rail)
      return false;
  return list_empty(&rail->tx.queue) && !stream_owes(&rail->stream) && !has_staged(rail);
}

static bool rail_is_idle_since(const struct tcp_rail *rail, int64_t before) {
  const struct rail_rx *rx = &rail->rx;
  return rail_takes_works(rail) && rail->outstanding == 0 && list_empty(&rail->tx.queue) &&
         !stream_owes(&rail->stream) && !stream_holds(&rail->stream) && rx->state == RX_HEAD &&
         rx->inbox_start == rx->inbox_end && rx->moved <= before && rail->tx.moved <= before;
}

/* With both locks. */
static bool is_idle_since(const struct tcp_endpoint *endpoint, int64_t before) {
  bool any = false;
  if (endpoint->busy_slots > 0 || endpoint->abandoned > 0 || backlog_first(&endpoint->pending) ||
      !list_empty(&endpoint->staged_sends) || !list_empty(&endpoint->staged_receives) ||
      work_batch_pending(&endpoint->work_batch))
    return false;
  each_rail(rail, endpoint) {
    if (rail->stream.fd < 0)
      continue;
    if (!rail_is_idle_since(rail, before))
      return false;
    any = true;
  }
  return any;
}

/* With both locks. If the frame cannot be allocated, the rail stays as it is. */
static void ask(struct tcp_rail *rail) {
  struct tx_frame *frame = rail->stream.fd < 0 ? NULL : tx_parking(FRAME_PARK);
  if (!frame)
    return;
  rail->parking = RAIL_ASKED;
  rail->endpoint->asking++;
  tx_respond(rail, frame);
}

void tcp_park_if_idle(struct tcp_endpoint *endpoint, int64_t now) {
  const struct link *link = endpoint->base.link;
  int64_t idle = link->fabric->config->idle_rails_ns;
  if (!link->initiator || idle == HAUL_FOREVER || endpoint->dial.active || endpoint->asking > 0)
    return;
  combiner_lock(&endpoint->combiner);
  if (is_idle_since(endpoint, now - idle))
    each_rail(rail, endpoint) ask(rail);
  tcp_advance(endpoint, NULL);
  combiner_unlock(&endpoint->combiner);
}

/* With both locks: an answer came, or a rail was lost before its answer. After the last one, works
 * that wait, and rails that the peer asked for, go on. */
static void answered(struct tcp_endpoint *endpoint) {
  if (--endpoint->asking > 0)
    return;
  if (endpoint->dial.asked)
    tcp_want_rails(endpoint);
  tcp_advance(endpoint, NULL);
}

/* Frames; with the loop's lock */

static void on_park(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool parks = is_clear(rail) && !backlog_first(&endpoint->pending);
  struct tx_frame *frame = tx_parking(parks ? FRAME_PARKED : FRAME_UNPARKED);
  if (parks && frame) {
    rail->parking = RAIL_PARKED;
    if (rail->index != TCP_EXPRESS)
      atomic_fetch_sub(&endpoint->open_rails, 1);
  }
  tx_respond(rail, frame);
  tcp_advance(endpoint, NULL);
  combiner_unlock(&endpoint->combiner);
}

static bool on_parked(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool clear = is_clear(rail) && rail->rx.inbox_start == rail->rx.inbox_end;
  if (clear) {
    rail->parking = RAIL_PARKED;
    rail->broken = true; /* the caller of rail_receive closes it */
    if (rail->index != TCP_EXPRESS)
      atomic_fetch_sub(&endpoint->open_rails, 1);
    answered(endpoint);
  }
  combiner_unlock(&endpoint->combiner);
  return clear;
}

static void on_unparked(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  rail->parking = RAIL_IN_USE;
  answered(endpoint);
  combiner_unlock(&endpoint->combiner);
}

void rail_on_parking(struct tcp_rail *rail) {
  bool asks = rail->rx.frame.type == FRAME_PARK;
  bool fits = asks != rail->endpoint->base.link->initiator &&
              rail->parking == (asks ? RAIL_IN_USE : RAIL_ASKED);
  if (fits && asks)
    on_park(rail);
  else if (fits && rail->rx.frame.type == FRAME_PARKED)
    fits = on_parked(rail);
  else if (fits)
    on_unparked(rail);
  if (!fits)
    rail_fail(rail, HAUL_EPROTO, "a frame about parking out of turn");
}

void rail_parking_lost(struct tcp_rail *rail) {
  bool asked = rail->parking == RAIL_ASKED;
  rail->parking = RAIL_IN_USE;
  if (asked)
    answered(rail->endpoint);
}

void tcp_free_rails(struct tcp_endpoint *endpoint) {
  if (endpoint->retired == 0 || endpoint->dial.active)
    return;
  each_rail(rail, endpoint) if (rail->stream.fd >= 0) return;
  combiner_lock(&endpoint->combiner);
  if (endpoint->busy_slots == 0 && endpoint->abandoned == 0) {
    for (unsigned i = 0; i < TCP_RAILS; i++) {
      rail_free(endpoint->rails[i]);
      endpoint->rails[i] = NULL;
    }
    endpoint->rail_count = endpoint->retired = 0;
    alloc_free(endpoint->slots);
    endpoint->slots = NULL;
  }
  combiner_unlock(&endpoint->combiner);
}
