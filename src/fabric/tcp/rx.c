/* SPDX-License-Identifier: MIT
 * Receiving. Payload is read straight to where it belongs; the read that ends a payload also takes
 * its trailer and the next head, so that they cost no system call of their own. Nothing that a
 * frame says is used before it was checked against the exported region or the request that it
 * answers. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/tcp.h"

#define SPANS_MAX  64
#define SCRATCH    65536u
#define BUDGET     (512u << 10) /* bytes before others get their turn */
#define READ_AHEAD (FRAME_TRAILER + FRAME_HEADER + FRAME_PIECE)

static void break_rail(struct tcp_rail *rail, int code, const char *what) {
  char reason[160];
  struct link *link = rail->endpoint->base.link;
  snprintf(reason, sizeof reason, "%s on tcp rail %u", what, rail->index);
  rail->broken = true;
  link->fail(link, code, reason);
}

static void nonsense(struct tcp_rail *rail, const char *what) {
  break_rail(rail, HAUL_EPROTO, what);
}

/* The rail cannot go on: the peer would wait for ever. */
static void no_memory(struct tcp_rail *rail, const char *what) {
  break_rail(rail, HAUL_ENOMEM, what);
}

/* ---- Answers ---- */

/* ACKs are queued and sent by the pump that follows the reading, so that many share a call, and one
 * may share it with what the application sends next (tcp.c, poll_rail). */
void rail_answer(struct tcp_rail *rail, uint64_t request, int32_t status) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  struct tcp_job *job = job_ack(request, status);
  if (job) {
    job->rail = rail;
    job_enqueue(job);
    atomic_store_explicit(&rail->unsent, true, memory_order_relaxed);
  } else {
    no_memory(rail, "no memory for an answer");
  }
  combiner_unlock(&endpoint->combiner);
}

/* The peer's window bounds what it may leave unanswered; more is a broken peer. */
static bool owe(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  bool fits = endpoint->owed < endpoint->base.link->own_window;
  endpoint->owed += fits;
  combiner_unlock(&endpoint->combiner);
  if (!fits)
    nonsense(rail, "more requests than the window allows");
  return fits;
}

/* ---- Heads ---- */

/* The exported region behind the frame's first `count` pieces, with a reference, or the code to
 * refuse it with. */
static int find_region(struct tcp_rail *rail, enum haul_operation operation, uint16_t count,
                       struct haul_region **region) {
  struct export_view view;
  const struct frame *frame = &rail->frame;
  const struct link *link = rail->endpoint->base.link;
  int code = exports_find(link->fabric->exports, frame->handle, link->identity, &view);
  if (code)
    return code;
  for (uint16_t i = 0; i < count && code == 0; i++)
    code = export_check(&view, operation, rail->pieces[i].offset, rail->pieces[i].length);
  if (code) {
    region_put(view.region);
    return code;
  }
  *region = view.region;
  return 0;
}

/* One that came in a single call is in the cache still when it is whole. */
static bool is_tallied(const struct tcp_rail *rail) {
  return rail->frame.flags & FRAME_CHECKSUM && rail->frame.payload > TCP_RECEIVES && rail->region &&
         rail->region->memory.view && !rail->region->memory.provider->checksum;
}

static void start_payload(struct tcp_rail *rail) {
  rail->state = RX_PAYLOAD;
  rail->tallies = is_tallied(rail);
  if (rail->tallies)
    tally_begin(&rail->arriving);
  rail->left = rail->frame.payload;
  rail->piece = 0;
  rail->piece_at = 0;
}

void rail_throw_away(struct tcp_rail *rail, int verdict) {
  stage_give(&rail->endpoint->rx, &rail->stage);
  if (rail->frame.type == FRAME_WRITE)
    region_put(rail->region);
  rail->region = NULL;
  rail->work = NULL;
  rail->verdict = verdict;
}

bool rail_waits_for_stage(const struct tcp_rail *rail) {
  return rail->state == RX_PAYLOAD && rail->region && !rail->region->memory.view && !rail->stage;
}

/* A stage for memory without a view; true when one is needed and none is free now. */
static bool needs_stage(struct tcp_rail *rail) {
  if (!rail_waits_for_stage(rail))
    return false;
  int code = stage_take(&rail->endpoint->rx, &rail->region->memory, &rail->stage);
  rail->staged_at = clock_now();
  if (code < 0) /* waiting would bring none */
    rail_throw_away(rail, code);
  return code > 0;
}

static void on_write(struct tcp_rail *rail) {
  if (!owe(rail))
    return;
  rail->region = NULL;
  if (endpoint_is_traced(&rail->endpoint->base))
    endpoint_trace_served(&rail->endpoint->base, HAUL_TRACE_SERVE, HAUL_OP_WRITE,
                          rail->frame.request, rail->frame.payload, 0);
  rail->verdict = find_region(rail, HAUL_OP_WRITE, rail->frame.count, &rail->region);
  start_payload(rail);
}

/* Takes over the region, unless it fails. */
static int send_data(struct tcp_rail *rail, struct haul_region *region) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  struct tcp_job *job = job_data(&rail->frame, rail->pieces, region);
  if (job) {
    job->rail = rail;
    job_submit(job);
    tcp_advance(endpoint, NULL);
  }
  combiner_unlock(&endpoint->combiner);
  return job ? 0 : haul_error_last()->code;
}

/* Bytes that the frame's pieces name. */
static uint64_t asked_for(const struct tcp_rail *rail) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < rail->frame.count; i++)
    sum += rail->pieces[i].length;
  return sum;
}

/* A read or an atomic, at once as far as this side sees it. */
static void answered(const struct tcp_rail *rail, enum haul_operation operation, uint64_t bytes,
                     int code) {
  if (endpoint_is_traced(&rail->endpoint->base))
    endpoint_trace_served(&rail->endpoint->base, HAUL_TRACE_SERVED, operation, rail->frame.request,
                          bytes, code);
}

static void on_read(struct tcp_rail *rail) {
  struct haul_region *region = NULL;
  if (!owe(rail))
    return;
  int code = find_region(rail, HAUL_OP_READ, rail->frame.count, &region);
  if (code == 0) {
    code = send_data(rail, region);
    if (code)
      region_put(region);
  }
  answered(rail, HAUL_OP_READ, asked_for(rail), code);
  if (code)
    rail_answer(rail, rail->frame.request, code);
  else
    endpoint_served(&rail->endpoint->base, 0, asked_for(rail));
}

static void on_atomic(struct tcp_rail *rail) {
  struct haul_region *region = NULL;
  bool adds = rail->frame.type == FRAME_FETCH_ADD;
  enum haul_operation operation = adds ? HAUL_OP_FETCH_ADD : HAUL_OP_COMPARE_SWAP;
  if (!owe(rail))
    return;
  int code = find_region(rail, operation, 1, &region);
  if (code == 0) {
    code = rail_operate(rail, region);
    region_put(region);
  }
  answered(rail, operation, 8, code);
  if (code)
    rail_answer(rail, rail->frame.request, code);
  else
    endpoint_served(&rail->endpoint->base, 8, 8);
}

static int refused(int code) {
  return error_set(code, 0, NULL,
                   code == HAUL_ESTALE
                       ? "the region was released or unpublished there; look it up again"
                   : code == HAUL_EACCESS ? "it is published without this right there"
                   : code == HAUL_EINVAL  ? "does the region begin at a multiple of 8 bytes there?"
                                          : "see the peer's log",
                   "the peer refused it: %s", haul_error_text(code));
}

static void on_ack(struct tcp_rail *rail) {
  struct work *work;
  int status = rail->frame.status;
  if (!slot_take(rail, rail->frame.request, false, &work)) {
    nonsense(rail, "an answer to no request");
    return;
  }
  if (work && status == 0 && work->operation != HAUL_OP_WRITE) {
    work_end(rail->endpoint, work,
             error_set(HAUL_EPROTO, 0, NULL, NULL, "a read was answered without data"));
    nonsense(rail, "an ACK that answers with success what asks for data");
    return;
  }
  work_end(rail->endpoint, work, status ? refused(status) : 0);
}

static void on_data(struct tcp_rail *rail) {
  struct work *work;
  if (!slot_answer(rail, rail->frame.request, &work) ||
      (work && (work->operation == HAUL_OP_WRITE || work->bytes != rail->frame.payload))) {
    nonsense(rail, "data that nobody asked for");
    return;
  }
  rail->work = work;
  rail->region = work ? work->region : NULL;
  rail->frame.count = 0;
  for (uint32_t i = 0; work && i < work->count; i++)
    rail->pieces[rail->frame.count++] =
        (struct frame_piece){work->pieces[i].local, work->pieces[i].length};
  start_payload(rail);
}

static void on_head(struct tcp_rail *rail) {
  switch (rail->frame.type) {
  case FRAME_WRITE:
    on_write(rail);
    break;
  case FRAME_READ:
    on_read(rail);
    break;
  case FRAME_ACK:
    on_ack(rail);
    break;
  case FRAME_DATA:
    on_data(rail);
    break;
  default:
    on_atomic(rail);
    break;
  }
}

/* ---- Bytes ---- */

static size_t buffered(const struct tcp_rail *rail) {
  return rail->inbox_end - rail->inbox_start;
}

static uint8_t *scratch(struct tcp_rail *rail) {
  if (!rail->scratch)
    rail->scratch = alloc_zero(1, SCRATCH);
  return rail->scratch;
}

/* Where the next payload bytes go; 0 spans for want of memory. */
static int payload_spans(struct tcp_rail *rail, struct iovec *spans, int room) {
  int count = 0;
  uint64_t left = rail->left;
  if (!rail->region) {
    spans[0] = (struct iovec){scratch(rail), left < SCRATCH ? left : SCRATCH};
    return rail->scratch != NULL;
  }
  if (rail->stage) {
    uint64_t at = rail->frame.payload - left;
    spans[0] = (struct iovec){(uint8_t *)rail->stage->region->memory.view + at, left};
    return 1;
  }
  uint8_t *view = rail->region->memory.view;
  uint64_t at = rail->piece_at;
  for (uint32_t i = rail->piece; i < rail->frame.count && count < room; i++) {
    spans[count++] =
        (struct iovec){view + rail->pieces[i].offset + at, rail->pieces[i].length - at};
    at = 0;
  }
  return count;
}

static void took_payload(struct tcp_rail *rail, uint64_t bytes) {
  rail->left -= bytes;
  while (bytes > 0 && rail->region && !rail->stage) {
    const struct frame_piece *piece = &rail->pieces[rail->piece];
    uint64_t left = piece->length - rail->piece_at;
    uint64_t here = bytes < left ? bytes : left;
    if (rail->tallies)
      tally_add(&rail->arriving,
                (uint8_t *)rail->region->memory.view + piece->offset + rail->piece_at, here);
    rail->piece_at += here;
    bytes -= here;
    if (here == left) {
      if (rail->tallies)
        tally_piece(&rail->arriving);
      rail->piece++;
      rail->piece_at = 0;
    }
  }
  if (rail->left == 0)
    rail->state = RX_TRAILER;
}

/* Moves payload that came along with a head to where it belongs. */
static bool payload_from_inbox(struct tcp_rail *rail) {
  struct iovec span;
  while (rail->left > 0 && buffered(rail) > 0) {
    if (payload_spans(rail, &span, 1) == 0)
      return false;
    size_t bytes = buffered(rail) < span.iov_len ? buffered(rail) : span.iov_len;
    memcpy(span.iov_base, rail->inbox + rail->inbox_start, bytes);
    rail->inbox_start += bytes;
    took_payload(rail, bytes);
  }
  return true;
}

/* The head at the start of the inbox, if it is whole. */
static bool take_head(struct tcp_rail *rail) {
  const char *what = NULL;
  const uint8_t *at = rail->inbox + rail->inbox_start;
  if (buffered(rail) < FRAME_HEADER)
    return false;
  int code = frame_parse(at, &rail->frame, &what);
  size_t head = FRAME_HEADER + (size_t)rail->frame.count * FRAME_PIECE;
  if (code == 0 && buffered(rail) < head)
    return false;
  if (code == 0 && rail->frame.count > 0)
    code = frame_parse_pieces(at + FRAME_HEADER, &rail->frame, rail->pieces, &what);
  if (code) {
    nonsense(rail, what);
    return false;
  }
  rail->inbox_start += head;
  rail->verdict = 0;
  on_head(rail);
  return true;
}

static bool take_trailer(struct tcp_rail *rail) {
  struct frame_trailer trailer;
  const char *what = NULL;
  if (buffered(rail) < FRAME_TRAILER)
    return false;
  if (frame_parse_trailer(rail->inbox + rail->inbox_start, &trailer, &what) != 0) {
    nonsense(rail, what);
    return false;
  }
  rail->inbox_start += FRAME_TRAILER;
  payload_end(rail, &trailer);
  return true;
}

/* Does what the buffered bytes allow; false when more are needed, or nothing can go on. */
static bool consume(struct tcp_rail *rail) {
  if (rail->broken || rail->stream.fd < 0)
    return false;
  if (rail->state == RX_HEAD)
    return take_head(rail);
  if (rail->state == RX_TRAILER)
    return take_trailer(rail);
  if (needs_stage(rail))
    return false;
  if (!payload_from_inbox(rail)) {
    no_memory(rail, "no memory for a payload that is refused");
    return false;
  }
  return rail->state != RX_PAYLOAD;
}

/* Whether nothing urgent came for long, as far as this rail knows. */
static size_t share_of(const struct tcp_rail *rail) {
  const struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  bool calm = !express || (express != rail && rail->rx_moved - express->rx_moved > TCP_CALM_NS);
  return calm ? TCP_CALM * TCP_RECEIVES : TCP_RECEIVES;
}

/* One read: payload to its place, then trailer and head to the inbox. */
static ssize_t read_more(struct tcp_rail *rail, size_t share) {
  struct iovec spans[SPANS_MAX + 1];
  int count = 0;
  uint64_t payload = 0;
  if (rail->inbox_start > 0) {
    memmove(rail->inbox, rail->inbox + rail->inbox_start, buffered(rail));
    rail->inbox_end -= rail->inbox_start;
    rail->inbox_start = 0;
  }
  size_t room = TCP_INBOX - rail->inbox_end;
  if (rail->state == RX_PAYLOAD) {
    count = payload_spans(rail, spans, SPANS_MAX);
    payload = spans_cut(spans, &count, share);
    room = payload == rail->left ? READ_AHEAD : 0;
  }
  if (room > 0)
    spans[count++] = (struct iovec){rail->inbox + rail->inbox_end, room};
  struct msghdr message = {.msg_iov = spans, .msg_iovlen = (size_t)count};
  ssize_t got = stream_receive(&rail->stream, &message);
  if (got <= 0)
    return got;
  uint64_t to_payload = (uint64_t)got < payload ? (uint64_t)got : payload;
  if (to_payload > 0)
    took_payload(rail, to_payload);
  rail->inbox_end += (size_t)got - to_payload;
  return got;
}

/* Without a stage nothing can be read, and the loop must not be told again and again that there is
 * something. */
static void set_blocked(struct tcp_rail *rail, bool blocked) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  if (rail->blocked == blocked || rail->stream.fd < 0)
    return;
  combiner_lock(&endpoint->combiner);
  rail->blocked = blocked;
  rail_watch(rail);
  combiner_unlock(&endpoint->combiner);
}

bool rail_receive(struct tcp_rail *rail) {
  struct link *link = rail->endpoint->base.link;
  size_t budget = BUDGET, unlooked = 0;
  bool came = false;
  for (;;) {
    while (consume(rail))
      came = true;
    if (rail->broken || rail->stream.fd < 0 || rail_waits_for_stage(rail) || budget == 0)
      break;
    size_t share = share_of(rail);
    ssize_t got = read_more(rail, share);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      rail->broken = true;
      break;
    }
    if (got < 0)
      break;
    came = true;
    rail->rx_moved = clock_now();
    atomic_store_explicit(&link->heard, rail->rx_moved, memory_order_relaxed);
    budget -= (size_t)got < budget ? (size_t)got : budget;
    unlooked += (size_t)got;
    if (unlooked >= share) {
      rail_look_aside(rail);
      unlooked = 0;
    }
  }
  set_blocked(rail, rail_waits_for_stage(rail));
  return came;
}
