/* SPDX-License-Identifier: MIT
 * Sending. One sendmsg takes the heads, small payloads and trailers of as many frames as fit. A
 * large payload of a WRITE is spliced (splice.c). */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "core/sys.h"
#include "fabric/tcp/rails.h"

#define SPANS_MAX 256

/* The rest of a payload whose source is gone. */
static uint8_t zeros[FRAME_PAYLOAD_MAX];
static const struct frame_segment zero_segment = {0, sizeof zeros};

/* `rest`: bytes of the head after the header; `count`: segments of the source. NULL with the
 * detail. */
static struct tx_frame *tx_new(const struct frame *header, size_t rest, uint32_t count) {
  size_t segments = count * sizeof(struct frame_segment), head = FRAME_HEADER + rest;
  struct tx_frame *frame = alloc_zero(1, sizeof *frame + segments + head);
  if (!frame) {
    error_memory("frame");
    return NULL;
  }
  list_init(&frame->link);
  frame->type = header->type;
  frame->request = header->request;
  frame->head = (uint8_t *)(frame->segments + count);
  frame->head_length = (uint32_t)head;
  frame_pack(header, frame->head);
  return frame;
}

/* The payload is the frame's first `count` segments of the region. NULL with the detail, and the
 * frame is freed. */
static struct tx_frame *set_payload(struct tx_frame *frame, struct haul_region *region,
                                    uint32_t count, uint64_t length, bool checksum) {
  struct frame_trailer trailer = {0, 0};
  payload_start(&frame->payload, region, frame->segments, count, length);
  frame->summed = checksum && frame->splice && !region->memory.provider->checksum;
  if (checksum && !frame->summed && payload_checksum(&frame->payload, &trailer.checksum) != 0) {
    alloc_free(frame);
    return NULL;
  }
  frame_pack_trailer(&trailer, frame->trailer);
  return frame;
}

struct tx_frame *tx_request(const struct work *work, uint64_t request) {
  static const uint8_t types[] = {[HAUL_OP_WRITE] = FRAME_WRITE,
                                  [HAUL_OP_READ] = FRAME_READ,
                                  [HAUL_OP_FETCH_ADD] = FRAME_FETCH_ADD,
                                  [HAUL_OP_COMPARE_SWAP] = FRAME_COMPARE_SWAP};
  const struct tcp_endpoint *endpoint = (const struct tcp_endpoint *)work->endpoint;
  bool write = work->operation == HAUL_OP_WRITE, atomic = operation_is_atomic(work->operation);
  uint32_t count = work->count + atomic; /* the operands follow like a segment */
  const struct frame header = {.type = types[work->operation],
                               .flags = work->checksum ? FRAME_CHECKSUM : 0,
                               .count = (uint16_t)count,
                               .request = request,
                               .handle = work->key->handle,
                               .payload = work->bytes};
  struct tx_frame *frame = tx_new(&header, count * FRAME_SEGMENT, write ? work->count : 0);
  if (!frame)
    return NULL;
  uint8_t *at = frame->head + FRAME_HEADER;
  for (uint32_t i = 0; i < work->count; i++, at += FRAME_SEGMENT) {
    const struct haul_piece *piece = &work->pieces[i];
    frame_pack_segment(&(struct frame_segment){piece->remote, piece->length}, at);
    if (write)
      frame->segments[i] = (struct frame_segment){piece->local, piece->length};
  }
  if (atomic)
    frame_pack_segment(&(struct frame_segment){work->operands.value, work->operands.desired}, at);
  if (!write)
    return frame;
  frame->splice = tcp_may_splice(&work->region->memory) && work->bytes >= endpoint->splice_min &&
                  work->bytes >= (uint64_t)work->count * SPLICE_SEGMENT;
  return set_payload(frame, work->region, work->count, work->bytes, work->checksum);
}

struct tx_frame *tx_data(const struct frame *request, const struct frame_segment *segments,
                         struct haul_region *region) {
  const struct frame header = {.type = FRAME_DATA,
                               .flags = request->flags,
                               .request = request->request,
                               .payload = request->payload};
  struct tx_frame *frame = tx_new(&header, 0, request->count);
  if (!frame)
    return NULL;
  memcpy(frame->segments, segments, request->count * sizeof *segments);
  frame->handle = request->handle;
  return set_payload(frame, region, request->count, request->payload,
                     request->flags & FRAME_CHECKSUM);
}

struct tx_frame *tx_ack(uint64_t request, int32_t status) {
  return tx_new(&(struct frame){.type = FRAME_ACK, .request = request, .status = status}, 0, 0);
}

struct tx_frame *tx_parking(enum frame_type type) {
  return tx_new(&(struct frame){.type = (uint8_t)type}, 0, 0);
}

struct tx_frame *tx_atomic_data(uint64_t request) {
  const struct frame header = {.type = FRAME_DATA, .request = request, .payload = 8};
  struct tx_frame *frame = tx_new(&header, 8 + FRAME_TRAILER, 0);
  if (frame)
    frame_pack_trailer(&(struct frame_trailer){0, 0}, frame->head + TX_OLD_VALUE + 8);
  return frame;
}

void tx_enqueue(struct tx_frame *frame) {
  struct rail_tx *tx = &frame->rail->tx;
  if (list_empty(&tx->queue))
    tx->moved = clock_now();
  list_append(&tx->queue, &frame->link);
  frame->queued = tx->used = true;
  tx->queued += frame->payload.length;
  tx->fresh = true;
}

void tx_submit(struct tx_frame *frame) {
  struct tcp_endpoint *endpoint = frame->rail->endpoint;
  if (!payload_awaits_bounce(&frame->payload)) {
    tx_enqueue(frame);
    return;
  }
  bool urgent;
  frame->payload.since = clock_now();
  list_append(&endpoint->staged_sends, &frame->link);
  staged_sends_poll(endpoint, &urgent);
  loop_poll(endpoint->base.link->fabric->loop, &endpoint->poller);
}

void tx_respond(struct tcp_rail *rail, struct tx_frame *frame) {
  if (!frame) {
    rail_fail(rail, HAUL_EPEER, "no memory for a response");
    return;
  }
  frame->rail = rail;
  tx_enqueue(frame);
}

void tx_unqueue(struct tx_frame *frame) {
  list_remove(&frame->link);
  if (frame->queued)
    frame->rail->tx.queued -= frame->payload.length;
  frame->queued = false;
}

static uint64_t max64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static void release_source(struct tx_frame *frame) {
  payload_put_bounce(&frame->payload, &frame->rail->endpoint->tx_staging);
  if (frame->type == FRAME_DATA)
    region_put(frame->payload.region);
  frame->payload.region = NULL;
}

void tx_drop(struct tx_frame *frame) {
  devcopy_cancel(&frame->copy);
  tx_unqueue(frame);
  release_source(frame);
  alloc_free(frame);
}

__attribute__((cold)) bool tx_abort(struct tx_frame *frame, int32_t status) {
  if (frame->slot)
    frame->slot->frame = NULL;
  frame->slot = NULL;
  if (frame->sent == 0) {
    tx_drop(frame);
    return true;
  }
  frame->splice = frame->summed = false;
  release_source(frame);
  if (frame->sent < tx_payload_end(frame)) {
    uint64_t handed = max64(frame->sent, frame->head_length) + frame->rail->tx.in_pipe;
    frame->payload.view = zeros;
    frame->payload.segment = &zero_segment;
    frame->payload.at = sizeof zeros - (tx_payload_end(frame) - handed);
    frame_pack_trailer(&(struct frame_trailer){0, status}, frame->trailer);
  }
  return false;
}

void tx_reject(struct tx_frame *frame, int32_t status) {
  struct tcp_rail *rail = frame->rail;
  uint64_t request = frame->request;
  if (tx_abort(frame, status))
    tx_respond(rail, tx_ack(request, status));
}

void tx_fail(struct tx_frame *frame, int code) {
  if (frame->type == FRAME_DATA) {
    tx_reject(frame, code);
    return;
  }
  struct work *work = frame->slot ? slot_abandon(frame->rail->endpoint, frame->slot, code) : NULL;
  if (work)
    work->done(work, code);
}

/* Appends the unsent rest of the frame. False: it does not fit, its payload is spliced, or its
 * checksum is known only after the payload is sent. */
static bool frame_spans(struct tx_frame *frame, struct iovec *spans, int *count) {
  uint64_t end = tx_payload_end(frame);
  if (*count >= SPANS_MAX - 2)
    return false;
  if (frame->sent < frame->head_length)
    spans[(*count)++] = (struct iovec){frame->head + frame->sent, frame->head_length - frame->sent};
  if (frame->payload.length == 0)
    return true;
  if (frame->sent < end) {
    if (tx_is_spliced(frame))
      return false;
    uint64_t left = end - max64(frame->sent, frame->head_length);
    if (!payload_spans(&frame->payload, left, spans, count, SPANS_MAX - 1) || frame->summed)
      return false;
  }
  uint64_t done = max64(frame->sent, end) - end;
  spans[(*count)++] = (struct iovec){frame->trailer + done, FRAME_TRAILER - done};
  return true;
}

void tx_move_cursor(struct tx_frame *frame, uint64_t bytes) {
  struct payload *payload = &frame->payload;
  struct running_checksum *checksum = frame->summed ? &frame->rail->tx.checksum : NULL;
  if (checksum && payload->segment == payload->segments && payload->at == 0)
    running_checksum_reset(checksum);
  payload_advance(payload, bytes, checksum);
  if (checksum && payload->segment == payload->segments + payload->count)
    frame_pack_trailer(&(struct frame_trailer){.checksum = checksum->sum}, frame->trailer);
}

/* The socket took these bytes from the queue. */
static void retire_sent(struct tcp_rail *rail, uint64_t bytes) {
  while (!list_empty(&rail->tx.queue)) {
    struct tx_frame *frame = list_entry(rail->tx.queue.next, struct tx_frame, link);
    uint64_t length = tx_payload_end(frame) + (frame->payload.length ? FRAME_TRAILER : 0);
    uint64_t took = bytes < length - frame->sent ? bytes : length - frame->sent;
    uint64_t from = max64(frame->sent, frame->head_length);
    if (frame->sent == 0 && frame->payload.bounce)
      frame->payload.since = clock_now();
    frame->sent += took;
    bytes -= took;
    uint64_t to = frame->sent < tx_payload_end(frame) ? frame->sent : tx_payload_end(frame);
    if (to > from)
      tx_move_cursor(frame, to - from);
    if (frame->sent < length)
      return;
    rail->outstanding -= tx_is_response(frame);
    if (frame->slot)
      frame->slot->frame = NULL;
    tx_drop(frame);
  }
}

/* `alone`: only the first frame, to identify a source that cannot be read. */
static ssize_t send_spans(struct tcp_rail *rail, bool alone) {
  struct iovec spans[SPANS_MAX];
  int count = 0;
  bool all = true;
  list_each(item, &rail->tx.queue) {
    all = frame_spans(list_entry(item, struct tx_frame, link), spans, &count);
    if (!all || alone)
      break;
  }
  all &= spans_cut(spans, &count, rail->tx.share) < rail->tx.share;
  struct msghdr message = {.msg_iov = spans, .msg_iovlen = (size_t)count};
  /* A partial TLS record would stay in the kernel: only more data flushes it. */
  bool more = !all && rail->stream.protection < STREAM_PROCESS;
  ssize_t put = stream_send(&rail->stream, &message, more ? MSG_MORE : 0);
  if (put > 0) {
    rail->tx.corked = more;
    retire_sent(rail, (uint64_t)put);
  }
  return put;
}

/* Bytes that the socket holds back may keep it from being writable. TCP_NODELAY flushes each time
 * it is set (tcp(7)). Unix sockets return ENOTSUP, and hold nothing back. */
void rail_uncork(struct tcp_rail *rail) {
  int one = 1;
  if (rail->tx.corked && rail->stream.fd >= 0)
    setsockopt(rail->stream.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  rail->tx.corked = false;
}

/* No urgent frame was sent for TCP_CALM_NS, as far as this rail knows. */
static bool is_calm(const struct tcp_rail *rail) {
  const struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  return !express || !express->tx.used ||
         (express != rail && list_empty(&express->tx.queue) &&
          rail->tx.moved - express->tx.moved > TCP_CALM_NS);
}

/* On loopback the sending CPU also runs the receiver's half of TCP for all bytes that the socket
 * holds, while other sockets wait: beside urgent frames the socket holds few unsent bytes
 * (bench/run fairness). Zero is the system's limit. */
static void set_share(struct tcp_rail *rail) {
  bool calm = is_calm(rail);
  size_t share = shrinkable(TCP_SENDS, 512);
  int unsent = calm ? 0 : TCP_UNSENT;
  rail->tx.share = calm ? TCP_CALM_SENDS * share : share;
  const struct link *link = rail->endpoint->base.link;
  if (calm != rail->tx.calm && link->loopback && !link->local)
    setsockopt(rail->stream.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  rail->tx.calm = calm;
}

/* The loop then sees the end of the connection and closes the rail. */
static void break_off(struct tcp_rail *rail) {
  rail->broken = true;
  shutdown(rail->stream.fd, SHUT_RDWR);
}

/* Within one host, where no setting says which payloads are spliced. */
static bool tries_splicing(const struct tcp_rail *rail) {
  const struct link *link = rail->endpoint->base.link;
  return (link->loopback || link->local) && link->fabric->config->tcp_zero_copy == 0;
}

static void count_trial(struct tcp_rail *rail, uint64_t bytes) {
  struct splice_trial *trial = &rail->endpoint->trial;
  bool before = trial->copy_wins;
  splice_trial_count(trial, bytes, rail->tx.moved);
  if (trial->copy_wins != before) /* reports show it */
    atomic_store(&rail->endpoint->base.copy_wins, trial->copy_wins);
}

/* One call of send, starting with the first queued frame; true to continue with the queue. */
static bool pump_once(struct tcp_rail *rail, bool *alone) {
  struct tx_frame *frame = list_entry(rail->tx.queue.next, struct tx_frame, link);
  bool pages = tx_is_spliced(frame) && frame->sent >= frame->head_length &&
               frame->sent < tx_payload_end(frame);
  bool tries = frame->splice && rail->tx.may_splice && tries_splicing(rail);
  ssize_t put =
      pages || rail->tx.in_pipe > 0 ? tx_send_pages(rail, frame) : send_spans(rail, *alone);
  int system = put < 0 ? errno : 0;
  if (system == EINTR)
    return true;
  bool unreadable = system == EFAULT && frame->payload.region;
  *alone = system == EFAULT && !*alone;
  if (*alone)
    return true;
  if (unreadable)
    tx_fail(frame,
            error_set(HAUL_EINVAL, EFAULT, NULL,
                      "release the region before its memory is unmapped or its file is truncated",
                      "the source cannot be read"));
  else if (system != 0 && system != EAGAIN)
    break_off(rail);
  if (put > 0) {
    rail->tx.moved = clock_now();
    rail->tx.turn += (size_t)put;
    if (tries)
      count_trial(rail, (uint64_t)put);
  }
  return put > 0 || unreadable;
}

void rail_pump(struct tcp_rail *rail) {
  struct rail_tx *tx = &rail->tx;
  bool alone = false;
  tx->fresh = false;
  set_share(rail);
  if (stream_owes(&rail->stream)) { /* TLS records that the socket did not take */
    if (stream_flush(&rail->stream) == 0)
      tx->moved = clock_now();
    else if (errno != EAGAIN)
      break_off(rail);
  }
  while (rail_is_open(rail) && !list_empty(&tx->queue) && tx->turn < tx->share &&
         pump_once(rail, &alone))
    ;
  if (tx->masked)
    pthread_sigmask(SIG_SETMASK, &tx->mask, NULL);
  tx->masked = false;
  bool left = (!list_empty(&tx->queue) || stream_owes(&rail->stream)) && !rail->broken;
  atomic_store_explicit(&tx->unsent, left, memory_order_relaxed);
  if (rail->stream.fd >= 0)
    rail_watch(rail);
}
