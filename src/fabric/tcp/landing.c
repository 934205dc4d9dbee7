/* SPDX-License-Identifier: MIT
 * The end of a payload: landings into memory without a view, the checks on what arrived, and who is
 * told. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/tcp/tcp.h"
#include "memory/copy.h"

void work_end(struct tcp_endpoint *endpoint, struct work *work, int code) {
  struct endpoint_counters *counters = &endpoint->base.counters;
  if (!work)
    return;
  if (code)
    atomic_fetch_add_explicit(&counters->errors, 1, memory_order_relaxed);
  else
    endpoint_count(&endpoint->base, work->operation, work->bytes);
  work->done(work, code);
}

static void forget_payload(struct tcp_rail *rail) {
  stage_give(&rail->endpoint->rx, &rail->stage);
  if (rail->frame.type == FRAME_WRITE && rail->region)
    region_put(rail->region);
  rail->region = NULL;
  rail->work = NULL;
}

void rail_drop_landing(struct tcp_rail *rail) {
  if (rail->state != RX_HEAD)
    forget_payload(rail);
  rail->state = RX_HEAD;
}

static int sum_landed(struct haul_region *region, const struct frame_piece *pieces, uint32_t count,
                      uint64_t *sum) {
  *sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t piece;
    int code = memory_checksum(&region->memory, pieces[i].offset, pieces[i].length, &piece);
    if (code)
      return code;
    *sum = frame_checksum(*sum, piece);
  }
  return 0;
}

static int compare(uint64_t sum, uint64_t expected) {
  return sum == expected
             ? 0
             : error_set(
                   HAUL_ECHECKSUM, 0, NULL,
                   "was the source changed during the transfer? else suspect memory or the network",
                   "the bytes at the destination are not those that were sent");
}

/* `tally`: NULL, or what was summed up already. */
static int settle(struct haul_region *region, const struct frame *frame,
                  const struct frame_trailer *trailer, const struct frame_piece *pieces,
                  uint32_t count, const struct tally *tally) {
  uint64_t sum = tally ? tally->sum : 0;
  if (trailer->status)
    return error_set(trailer->status, 0, NULL, NULL, "the peer gave up in the middle");
  int code = memory_fence(&region->memory, FENCE_AFTER_WRITE);
  if (code || !(frame->flags & FRAME_CHECKSUM))
    return code;
  if (!tally)
    code = sum_landed(region, pieces, count, &sum);
  return code ? code : compare(sum, trailer->checksum);
}

/* Answers a WRITE, or ends the work of a DATA. */
static void conclude(struct tcp_rail *rail, const struct frame *frame, int code) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  if (frame->type == FRAME_WRITE) {
    if (endpoint_is_traced(&endpoint->base))
      endpoint_trace_served(&endpoint->base, HAUL_TRACE_SERVED, HAUL_OP_WRITE, frame->request,
                            frame->payload, code);
    if (code == 0)
      endpoint_served(&endpoint->base, frame->payload, 0);
    rail_answer(rail, frame->request, code);
    return;
  }
  struct work *work;
  if (slot_take(rail, frame->request, true, &work))
    work_end(endpoint, work, code);
}

void landing_finish(struct landing *landing, int code) {
  struct tcp_rail *rail = landing->rail;
  list_remove(&landing->link);
  devcopy_cancel(&landing->copy);
  stage_give(&rail->endpoint->rx, &landing->stage);
  if (code == 0)
    code = settle(landing->region, &landing->frame, &landing->trailer, landing->pieces,
                  landing->count, NULL);
  if (landing->frame.type == FRAME_WRITE)
    region_put(landing->region);
  if (rail->stream.fd >= 0)
    conclude(rail, &landing->frame, code);
  alloc_free(landing);
}

/* The whole payload lies in a stage: copy it on while the rail reads the next frame. */
static void land(struct tcp_rail *rail, const struct frame_trailer *trailer) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  uint32_t count = rail->frame.count;
  struct landing *landing = alloc_zero(1, sizeof *landing + count * sizeof landing->pieces[0]);
  if (!landing) {
    int code = error_memory("device copy");
    struct frame frame = rail->frame;
    forget_payload(rail);
    conclude(rail, &frame, code);
    return;
  }
  landing->rail = rail;
  landing->frame = rail->frame;
  landing->trailer = *trailer;
  landing->region = rail->region;
  landing->work = rail->work;
  landing->stage = rail->stage;
  landing->count = count;
  memcpy(landing->pieces, rail->pieces, count * sizeof landing->pieces[0]);
  rail->stage = NULL;
  rail->region = NULL;
  rail->work = NULL;
  landing_prepare(landing);
  list_append(&endpoint->landings, &landing->link);
  bool urgent;
  stage_landings(endpoint, &urgent);
  if (urgent) /* nobody else says that it is to be looked at */
    loop_wake(endpoint->base.link->fabric->loop);
}

void payload_end(struct tcp_rail *rail, const struct frame_trailer *trailer) {
  rail->state = RX_HEAD;
  if (rail->stage && trailer->status == 0) {
    land(rail, trailer);
    return;
  }
  int code = rail->verdict;
  if (code && rail->frame.type == FRAME_DATA)
    code = code == HAUL_ELIMIT ? staging_full() : error_memory("buffer for a device");
  if (rail->region)
    code = settle(rail->region, &rail->frame, trailer, rail->pieces, rail->frame.count,
                  rail->tallies ? &rail->arriving : NULL);
  forget_payload(rail);
  conclude(rail, &rail->frame, code);
}
