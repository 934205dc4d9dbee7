/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/payload.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/rails.h"
#include "memory/copy.h"

_Static_assert(WORK_BYTES_MAX <= BOUNCE_BYTES, "a work fits a bounce buffer");

bool payload_spans(const struct payload *payload, uint64_t left, struct iovec *spans, int *count,
                   int room) {
  uint64_t at = payload->at;
  for (const struct frame_segment *segment = payload->segment; left > 0 && *count < room;
       segment++) {
    spans[(*count)++] = (struct iovec){payload->view + segment->offset + at, segment->length - at};
    left -= segment->length - at;
    at = 0;
  }
  return left == 0;
}

void payload_advance(struct payload *payload, uint64_t bytes, struct running_checksum *checksum) {
  while (bytes > 0) {
    const struct frame_segment *segment = payload->segment;
    uint64_t left = segment->length - payload->at;
    uint64_t here = bytes < left ? bytes : left;
    if (checksum)
      XXH3_64bits_update(checksum->state, payload->view + segment->offset + payload->at, here);
    bytes -= here;
    payload->at += here;
    if (here < left)
      return;
    payload->segment++;
    payload->at = 0;
    if (checksum) {
      checksum->sum = frame_checksum(checksum->sum, XXH3_64bits_digest(checksum->state));
      XXH3_64bits_reset(checksum->state);
    }
  }
}

int payload_checksum(const struct payload *payload, uint64_t *sum) {
  *sum = 0;
  for (uint32_t i = 0; i < payload->count; i++) {
    const struct frame_segment *segment = &payload->segments[i];
    uint64_t one;
    int code = memory_checksum(&payload->region->memory, segment->offset, segment->length, &one);
    if (code)
      return code;
    *sum = frame_checksum(*sum, one);
  }
  return 0;
}

uint64_t spans_cut(struct iovec *spans, int *count, uint64_t most) {
  uint64_t bytes = 0;
  for (int i = 0; i < *count; i++) {
    if (spans[i].iov_len > most - bytes)
      spans[i].iov_len = most - bytes;
    bytes += spans[i].iov_len;
    if (bytes == most)
      *count = i + 1;
  }
  return bytes;
}

int payload_get_bounce(struct payload *payload, struct staging_user *user) {
  int numa = staging_numa(user->staging, payload->region->memory.place);
  int status = staging_get(user, 1, numa, &payload->bounce);
  if (status)
    return status;
  payload->since = clock_now();
  payload->staged = (struct frame_segment){0, payload->length};
  payload->view = bounce_memory(payload->bounce)->view;
  payload->segment = &payload->staged;
  payload->at = 0;
  return 0;
}

void payload_put_bounce(struct payload *payload, struct staging_user *user) {
  if (payload->bounce)
    staging_put(user, payload->bounce);
  payload->bounce = NULL;
}

void tcp_staging_leave_queue(struct tcp_endpoint *endpoint) {
  if (atomic_load_explicit(&endpoint->tx_staging.waits_since, memory_order_relaxed)) {
    combiner_lock(&endpoint->combiner);
    if (list_empty(&endpoint->staged_sends))
      staging_cancel_wait(&endpoint->tx_staging);
    combiner_unlock(&endpoint->combiner);
  }
  if (!atomic_load_explicit(&endpoint->rx_staging.waits_since, memory_order_relaxed))
    return;
  bool waits = false;
  each_rail(rail, endpoint) waits |= rail_awaits_bounce(rail);
  if (!waits)
    staging_cancel_wait(&endpoint->rx_staging);
}

static struct copy_segment segment_out(const struct devcopy *copy, uint32_t index,
                                       uint64_t before) {
  const struct frame_segment *segment = &((const struct payload *)copy->owner)->segments[index];
  return (struct copy_segment){before, segment->offset, segment->length};
}

static struct copy_segment segment_in(const struct devcopy *copy, uint32_t index, uint64_t before) {
  const struct frame_segment *segment = &((const struct payload *)copy->owner)->segments[index];
  return (struct copy_segment){segment->offset, before, segment->length};
}

/* Prepares a copy between the payload's region and its bounce buffer. */
static void prepare_copy(struct devcopy *copy, struct payload *payload, bool out,
                         const struct tcp_endpoint *endpoint) {
  struct memory *device = &payload->region->memory, *bounce = bounce_memory(payload->bounce);
  *copy = (struct devcopy){.engine = device->provider,
                           .to = out ? bounce : device,
                           .from = out ? device : bounce,
                           .loop = endpoint->base.link->fabric->loop,
                           .count = payload->count,
                           .segment = out ? segment_out : segment_in,
                           .owner = payload};
}

bool staged_sends_poll(struct tcp_endpoint *endpoint, bool *urgent) {
  bool moved = false;
  *urgent = false;
  list_each_safe(item, &endpoint->staged_sends) {
    struct tx_frame *frame = list_entry(item, struct tx_frame, link);
    int status = 0;
    if (!frame->payload.bounce) {
      status = payload_get_bounce(&frame->payload, &endpoint->tx_staging);
      if (status > 0)
        break; /* the frames behind it wait too */
      if (status == 0)
        prepare_copy(&frame->copy, &frame->payload, true, endpoint);
    }
    if (status == 0)
      status = devcopy_poll(&frame->copy);
    *urgent |= status > 0 && devcopy_is_polled(&frame->copy);
    if (status > 0)
      continue;
    moved = true;
    if (status < 0) {
      tx_fail(frame, status);
      continue;
    }
    list_remove(&frame->link);
    tx_enqueue(frame);
  }
  return moved;
}

int staged_receive_start(struct tcp_rail *rail, const struct frame_trailer *trailer) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  struct rail_rx *rx = &rail->rx;
  size_t segments = rx->payload.count * sizeof rx->segments[0];
  struct staged_receive *staged = alloc_zero(1, sizeof *staged + segments);
  if (!staged)
    return error_memory("device copy");
  staged->rail = rail;
  staged->frame = rx->frame;
  staged->trailer = *trailer;
  staged->work = rx->work;
  memcpy(staged->segments, rx->segments, segments);
  staged->payload = rx->payload;
  staged->payload.segments = staged->segments;
  prepare_copy(&staged->copy, &staged->payload, false, endpoint);
  rx->payload.bounce = NULL;
  rx->payload.region = NULL;
  rx->work = NULL;
  list_append(&endpoint->staged_receives, &staged->link);
  bool urgent;
  staged_receives_poll(endpoint, &urgent);
  loop_poller_resume(endpoint->base.link->fabric->loop, &endpoint->poller);
  if (urgent) /* its engine does not wake the loop */
    loop_wake(endpoint->base.link->fabric->loop);
  return 0;
}

void staged_receive_finish(struct staged_receive *staged, int code) {
  struct tcp_rail *rail = staged->rail;
  list_remove(&staged->link);
  devcopy_cancel(&staged->copy);
  payload_put_bounce(&staged->payload, &rail->endpoint->rx_staging);
  if (code == 0)
    code = payload_verify(&staged->payload, &staged->frame, &staged->trailer, NULL);
  if (staged->frame.type == FRAME_WRITE)
    region_put(staged->payload.region);
  if (rail->stream.fd >= 0)
    payload_complete(rail, &staged->frame, code);
  alloc_free(staged);
  tcp_use_slots(rail->endpoint);
}

bool staged_receives_poll(struct tcp_endpoint *endpoint, bool *urgent) {
  bool moved = false;
  *urgent = false;
  list_each_safe(item, &endpoint->staged_receives) {
    struct staged_receive *staged = list_entry(item, struct staged_receive, link);
    int status = devcopy_poll(&staged->copy);
    if (status > 0) {
      *urgent |= devcopy_is_polled(&staged->copy);
      continue;
    }
    staged_receive_finish(staged, status);
    moved = true;
  }
  return moved;
}

/* With the endpoint's lock: the first frame that has held its bounce buffer since before `bound`;
 * or without `has_bounce` the first response that has waited since then. */
static struct tx_frame *find_overdue(struct list *frames, bool has_bounce, int64_t bound) {
  list_each(item, frames) {
    struct tx_frame *frame = list_entry(item, struct tx_frame, link);
    if ((frame->payload.bounce != NULL) == has_bounce && frame->payload.since < bound &&
        (has_bounce || frame->type == FRAME_DATA))
      return frame;
  }
  return NULL;
}

/* With the endpoint's lock. An overdue frame that was not begun returns its buffer and waits again;
 * one being sent fails. */
static void expire_queue(struct tcp_rail *rail, int64_t bound, int64_t now) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  for (struct tx_frame *frame; (frame = find_overdue(&rail->tx.queue, true, bound));) {
    if (frame->sent > 0) {
      tx_fail(frame, staging_full());
      continue;
    }
    devcopy_cancel(&frame->copy);
    tx_unqueue(frame);
    payload_put_bounce(&frame->payload, &endpoint->tx_staging);
    frame->payload.since = now;
    list_append(&endpoint->staged_sends, &frame->link);
  }
}

/* A response waits at most for the time of a transfer, when the requester times out. */
static void expire_sends(struct tcp_endpoint *endpoint, int64_t now) {
  const struct haul_node_config *config = endpoint->base.link->fabric->config;
  bool is_short =
      staging_is_short(endpoint->tx_staging.staging, STAGING_SEND, now - config->liveness_ns);
  combiner_lock(&endpoint->combiner);
  if (is_short)
    each_rail(rail, endpoint) expire_queue(rail, now - config->liveness_ns, now);
  for (struct tx_frame *frame;
       (frame = find_overdue(&endpoint->staged_sends, false, now - config->transfer_ns));)
    tx_fail(frame, staging_full());
  tcp_advance(endpoint, NULL);
  combiner_unlock(&endpoint->combiner);
}

/* A sender fails a peer that does not read for the liveness timeout, so a payload that waits for a
 * buffer is discarded long before. */
static void expire_receives(struct tcp_endpoint *endpoint, int64_t now) {
  int64_t bound = endpoint->base.link->fabric->config->liveness_ns;
  int64_t waits_since = atomic_load(&endpoint->rx_staging.waits_since);
  bool is_short = staging_is_short(endpoint->rx_staging.staging, STAGING_RECEIVE, now - bound);
  each_rail(rail, endpoint) {
    bool waited = waits_since != 0 && now - waits_since > bound / 4 && rail_awaits_bounce(rail);
    bool had = is_short && rail->rx.payload.bounce && now - rail->rx.payload.since > bound;
    if (waited || had)
      rail_discard_payload(rail, HAUL_ELIMIT);
  }
}

__attribute__((cold)) void tcp_staging_expire(struct tcp_endpoint *endpoint, int64_t now) {
  expire_receives(endpoint, now);
  expire_sends(endpoint, now);
  tcp_staging_leave_queue(endpoint);
}
