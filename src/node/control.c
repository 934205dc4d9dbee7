/* SPDX-License-Identifier: MIT */
#include "node/control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "node/message.h"
#include "node/offer.h"
#include "node/peer.h"
#include "node/share.h"

#define MAGIC              0x4c544348u /* "HCTL" */
#define READS              4       /* at most, in a turn, beyond what TLS has decrypted already */
#define TURN_NS            1000000 /* after which no further frame of the peer is begun */
#define CHANNEL_REASON_MAX 160     /* bytes, with the final zero */

/* A frame on its way out. */
struct outgoing {
  struct list link; /* peer->outgoing */
  size_t length, sent;
  bool is_response; /* counts in peer->response_bytes */
  uint8_t bytes[];
};

int control_parse(const uint8_t head[CONTROL_HEAD], struct control_frame *frame) {
  struct wire wire = wire_over(head, CONTROL_HEAD);
  uint32_t magic = wire_get32(&wire);
  frame->type = wire_get16(&wire);
  uint16_t zero = wire_get16(&wire);
  frame->length = wire_get32(&wire);
  frame->request = wire_get32(&wire);
  if (magic != MAGIC || zero != 0 || frame->type < CONTROL_READY || frame->type > CONTROL_LAST)
    return HAUL_EPROTO;
  if (frame->type == CONTROL_MESSAGE)
    return frame->length < 8 || frame->length > HAUL_MESSAGE_MAX + 8 ? HAUL_EPROTO : 0;
  return frame->length > CONTROL_BODY_MAX ? HAUL_EPROTO : 0;
}

static void watch_writable(struct haul_peer *peer, bool wanted) {
  loop_change(peer->node->loop, &peer->watch, EPOLLIN | (wanted ? EPOLLOUT : 0u));
}

void control_clear(struct haul_peer *peer) {
  for (struct list *item; (item = list_take(&peer->outgoing));)
    alloc_free(list_entry(item, struct outgoing, link));
  peer->response_bytes = 0;
}

void control_flush(struct haul_peer *peer) {
  if (!peer->closed && stream_owes(&peer->stream) && stream_flush(&peer->stream) == 0)
    peer->moved_at = clock_now();
  while (!peer->closed && !list_empty(&peer->outgoing)) {
    struct outgoing *frame = list_entry(peer->outgoing.next, struct outgoing, link);
    struct iovec span = {frame->bytes + frame->sent, frame->length - frame->sent};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t put = stream_send(&peer->stream, &message, 0);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) {
      watch_writable(peer, true); /* without memory, the liveness timeout limits the attempts */
      return;
    }
    if (put < 0) { /* control_receive finds the end of the connection and drops the peer */
      control_clear(peer);
      break;
    }
    frame->sent += (size_t)put;
    peer->moved_at = clock_now();
    if (frame->sent < frame->length)
      continue;
    if (frame->is_response)
      peer->response_bytes -= frame->length;
    list_remove(&frame->link);
    alloc_free(frame);
  }
  if (!peer->closed)
    watch_writable(peer, stream_owes(&peer->stream));
}

/* With send_lock. */
static bool has_output(const struct haul_peer *peer) {
  return !peer->closed && (!list_empty(&peer->outgoing) || stream_owes(&peer->stream));
}

/* With send_lock: whether the peer took some of the output within the liveness timeout. */
static bool is_reading(const struct haul_peer *peer) {
  return clock_now() - peer->moved_at < peer->node->config.liveness_ns;
}

bool control_is_stalled(struct haul_peer *peer) {
  pthread_mutex_lock(&peer->send_lock);
  control_flush(peer);
  bool stalled = has_output(peer) && !is_reading(peer);
  pthread_mutex_unlock(&peer->send_lock);
  return stalled;
}

static bool is_draining(struct haul_peer *peer) {
  pthread_mutex_lock(&peer->send_lock);
  bool draining = has_output(peer) && is_reading(peer);
  pthread_mutex_unlock(&peer->send_lock);
  return draining;
}

/* Closing a TCP socket with unread bytes resets the connection, which discards what the peer has
 * not fetched yet. So this side only ends its sending, and the peer closes first. */
bool control_close(struct haul_peer *peer) {
  if (is_draining(peer))
    return false;
  if (!peer->close_sent_at) {
    control_send(peer, CONTROL_GOODBYE, 0, NULL, 0);
    peer->close_sent_at = clock_now();
  }
  if (peer->base.local)
    return true;
  if (!peer->write_shut && !is_draining(peer)) {
    pthread_mutex_lock(&peer->send_lock);
    if (!peer->closed)
      shutdown(peer->stream.fd, SHUT_WR);
    pthread_mutex_unlock(&peer->send_lock);
    peer->write_shut = true;
  }
  return false;
}

static struct outgoing *new_frame(enum control_type type, uint32_t request, size_t length) {
  struct outgoing *frame = alloc_zero(1, sizeof *frame + CONTROL_HEAD + length);
  if (!frame) {
    error_memory("control frame");
    return NULL;
  }
  frame->length = CONTROL_HEAD + length;
  struct wire wire = wire_over(frame->bytes, CONTROL_HEAD);
  wire_put32(&wire, MAGIC);
  wire_put16(&wire, (uint16_t)type);
  wire_put16(&wire, 0);
  wire_put32(&wire, (uint32_t)length);
  wire_put32(&wire, request);
  return frame;
}

/* With send_lock. Takes over the frame. */
static int queue_frame(struct haul_peer *peer, struct outgoing *frame) {
  if (peer->closed) {
    alloc_free(frame);
    return error_set(HAUL_EPEER, 0, peer->base.name, NULL, "%s", peer->base.ended_reason);
  }
  peer->sent_at = clock_now();
  if (list_empty(&peer->outgoing))
    peer->moved_at = peer->sent_at;
  list_append(&peer->outgoing, &frame->link);
  control_flush(peer);
  return 0;
}

static bool is_response(enum control_type type) {
  return type == CONTROL_FOUND || type == CONTROL_NAMES || type == CONTROL_STATE ||
         type == CONTROL_TRACED || type == CONTROL_REFUSED || type == CONTROL_HELD ||
         type == CONTROL_RELEASE || type == CONTROL_TAKEN;
}

int control_send(struct haul_peer *peer, enum control_type type, uint32_t request, const void *body,
                 size_t length) {
  struct outgoing *frame = new_frame(type, request, length);
  if (!frame) {
    if (is_response(type) || type == CONTROL_CREDIT ||
        type == CONTROL_READY) /* the peer would wait for it in vain */
      peer_fail(peer, HAUL_EPEER, "no memory for a frame that the peer waits for");
    return HAUL_ENOMEM;
  }
  if (length > 0)
    memcpy(frame->bytes + CONTROL_HEAD, body, length);
  pthread_mutex_lock(&peer->send_lock);
  frame->is_response = is_response(type) || type == CONTROL_PING;
  if (frame->is_response)
    peer->response_bytes += frame->length;
  bool flooded = peer->response_bytes > CONTROL_RESPONSES_MAX;
  int code = queue_frame(peer, frame);
  pthread_mutex_unlock(&peer->send_lock);
  if (flooded)
    peer_fail(peer, HAUL_EPROTO, "the peer sends requests and does not read the responses");
  return code;
}

int control_send_ready(struct haul_peer *peer) {
  uint8_t body[TRANSPORTS_MAX * 32];
  struct wire wire = wire_over(body, sizeof body);
  for (size_t i = 0; transport_at(i); i++) {
    unsigned channels = peer->base.endpoints[i]->channels;
    if (channels == 0)
      continue;
    wire_put_string(&wire, transport_at(i)->name);
    wire_put8(&wire, (uint8_t)channels);
  }
  return control_send(peer, CONTROL_READY, 0, body, sizeof body - wire_left(&wire));
}

int control_request_channels(struct link *link, const struct transport *transport) {
  uint8_t body[32];
  struct wire wire = wire_over(body, sizeof body);
  wire_put_string(&wire, transport->name);
  return control_send((struct haul_peer *)link, CONTROL_DIAL, 0, body,
                      sizeof body - wire_left(&wire));
}

void control_refuse_channels(struct link *link, const struct transport *transport, int code,
                             const char *reason) {
  uint8_t body[32 + CHANNEL_REASON_MAX];
  char text[CHANNEL_REASON_MAX];
  struct wire wire = wire_over(body, sizeof body);
  snprintf(text, sizeof text, "%s", reason);
  wire_put_string(&wire, transport->name);
  wire_put32(&wire, (uint32_t)code);
  wire_put_string(&wire, text);
  control_send((struct haul_peer *)link, CONTROL_REFUSED, 0, body, sizeof body - wire_left(&wire));
}

int control_send_message(struct haul_peer *peer, uint64_t tag, const void *bytes, size_t length) {
  struct outgoing *frame = new_frame(CONTROL_MESSAGE, 0, 8 + length);
  if (!frame)
    return HAUL_ENOMEM;
  struct wire wire = wire_over(frame->bytes + CONTROL_HEAD, 8 + length);
  wire_put64(&wire, tag);
  wire_put_bytes(&wire, bytes, length);
  return queue_frame(peer, frame);
}

static bool wire_is_read(const struct wire *wire) {
  return !wire->failed && wire_left(wire) == 0;
}

static bool is_request_done(void *user) {
  struct request *request = user;
  struct loop *loop = request->peer->node->loop;
  loop_lock(loop);
  bool done = request->done;
  loop_unlock(loop);
  return done;
}

int control_request(struct request *request, enum control_type type, const void *body,
                    size_t length, haul_deadline until) {
  struct haul_peer *peer = request->peer;
  struct loop *loop = peer->node->loop;
  loop_lock(loop);
  int code = peer_check(peer);
  if (code == 0) {
    request->id = ++peer->last_request;
    list_append(&peer->requests, &request->link);
    code = control_send(peer, type, request->id, body, length);
    if (code) {
      list_remove(&request->link);
      request->id = 0;
    }
  }
  loop_unlock(loop);
  if (code)
    return code;

  loop_wait(loop, is_request_done, NULL, request, until);
  loop_lock(loop);
  list_remove(&request->link);
  loop_unlock(loop);
  if (request->done)
    return request->code ? error_restore(&request->error) : 0;
  if (node_is_closed(peer->node))
    return error_code(HAUL_ECLOSED, peer->base.name);
  return error_set(HAUL_ETIMEDOUT, 0, peer->base.name, NULL, "no response from the peer in time");
}

static int on_response(struct haul_peer *peer, uint32_t id, struct wire *in) {
  list_each_safe(item, &peer->requests) {
    struct request *request = list_entry(item, struct request, link);
    if (request->id != id)
      continue;
    int code = request->parse(request, in);
    if (code == HAUL_EPROTO || !wire_is_read(in))
      return HAUL_EPROTO;
    list_remove(item);
    request->code = code;
    if (code)
      error_save(&request->error);
    request->done = true;
    loop_notify(peer->node->loop);
    return 0;
  }
  return 0; /* of a request that timed out */
}

static int serve(struct haul_peer *peer, const struct control_frame *frame, struct wire *in,
                 enum control_type type,
                 void (*handler)(struct haul_peer *peer, struct wire *in, struct wire *out)) {
  uint8_t response[CONTROL_BODY_MAX];
  struct wire out = wire_over(response, sizeof response);
  handler(peer, in, &out);
  if (!wire_is_read(in))
    return HAUL_EPROTO;
  control_send(peer, type, frame->request, response, sizeof response - wire_left(&out));
  return 0;
}

static int on_credit(struct haul_peer *peer, struct wire *in) {
  uint32_t bytes = wire_get32(in);
  if (!wire_is_read(in))
    return HAUL_EPROTO;
  pthread_mutex_lock(&peer->send_lock);
  peer->credit += bytes;
  bool sane = peer->credit <= ((size_t)1 << 31);
  pthread_mutex_unlock(&peer->send_lock);
  loop_notify(peer->node->loop);
  return sane ? 0 : HAUL_EPROTO;
}

/* Entries until the end: transport, channels. */
static int on_ready(struct haul_peer *peer, struct wire *in) {
  char name[16];
  if (peer->base.initiator || peer->ready)
    return HAUL_EPROTO;
  while (wire_left(in) > 0) {
    wire_get_string(in, name, sizeof name);
    unsigned channels = wire_get8(in);
    const struct transport *transport = in->failed ? NULL : transport_named(name);
    if (!transport || !transport->expect ||
        transport->expect(peer->base.endpoints[transport->index], channels) != 0)
      return HAUL_EPROTO;
  }
  peer->ready = true;
  message_queue_event(peer, &peer->joined);
  return 0;
}

static int on_dial(struct haul_peer *peer, struct wire *in) {
  char name[16];
  wire_get_string(in, name, sizeof name);
  const struct transport *transport = wire_is_read(in) ? transport_named(name) : NULL;
  if (!peer->base.initiator || !transport || !transport->requested)
    return HAUL_EPROTO;
  transport->requested(peer->base.endpoints[transport->index]);
  return 0;
}

static int on_refused(struct haul_peer *peer, struct wire *in) {
  char name[16], reason[CHANNEL_REASON_MAX];
  wire_get_string(in, name, sizeof name);
  int code = (int32_t)wire_get32(in);
  wire_get_string(in, reason, sizeof reason);
  const struct transport *transport = wire_is_read(in) ? transport_named(name) : NULL;
  if (peer->base.initiator || !transport || !transport->refused)
    return HAUL_EPROTO;
  return transport->refused(peer->base.endpoints[transport->index], code, reason);
}

static int on_frame(struct haul_peer *peer, const struct control_frame *frame,
                    const uint8_t *body) {
  struct wire in = wire_from(body, frame->length);
  switch (frame->type) {
  case CONTROL_READY:
    return on_ready(peer, &in);
  case CONTROL_DIAL:
    return on_dial(peer, &in);
  case CONTROL_REFUSED:
    return on_refused(peer, &in);
  case CONTROL_HOLD:
    return peer->offered ? serve(peer, frame, &in, CONTROL_HELD, share_serve_hold) : HAUL_EPROTO;
  case CONTROL_HELD:
    return share_on_held(peer, in, frame->request) ? HAUL_EPROTO
                                                   : on_response(peer, frame->request, &in);
  case CONTROL_RELEASE:
    if (!atomic_load(&peer->held) || frame->length > 0)
      return HAUL_EPROTO;
    share_end(peer);
    return 0;
  case CONTROL_GOODBYE:
    peer_fail(peer, HAUL_EPEER,
              frame->request == GOODBYE_SILENT ? "the peer dropped this process as silent"
                                               : "the peer closed the connection");
    return 0;
  case CONTROL_LOOKUP:
    return serve(peer, frame, &in, CONTROL_FOUND, regions_serve_lookup);
  case CONTROL_LIST:
    return serve(peer, frame, &in, CONTROL_NAMES, regions_serve_list);
  case CONTROL_STATS:
    return serve(peer, frame, &in, CONTROL_STATE, stats_serve);
  case CONTROL_TRACE:
    return serve(peer, frame, &in, CONTROL_TRACED, trace_serve);
  case CONTROL_FOUND:
  case CONTROL_NAMES:
  case CONTROL_STATE:
  case CONTROL_TRACED:
  case CONTROL_TAKEN:
    return on_response(peer, frame->request, &in);
  case CONTROL_CREDIT:
    return on_credit(peer, &in);
  case CONTROL_OFFER:
    return offer_receive(peer, frame->request, &in);
  default: /* CONTROL_PING */
    if (frame->request == PING_REQUEST)
      control_send(peer, CONTROL_PING, PING_RESPONSE, NULL, 0);
    return 0;
  }
}

/* Moves the first bytes of a message out of the inbox. The rest is read straight into the buffer
 * that the application gets. */
static int start_message(struct haul_peer *peer, const struct control_frame *frame) {
  struct wire wire = wire_over(peer->inbox + CONTROL_HEAD, 8);
  int code = 0;
  size_t have = peer->inbox_length - CONTROL_HEAD - 8;
  size_t length = frame->length - 8;
  peer->message = message_begin(peer, wire_get64(&wire), length, &code);
  if (!peer->message)
    return code;
  peer->message_got = have < length ? have : length;
  uint8_t *rest = peer->inbox + CONTROL_HEAD + 8;
  memcpy(peer->message->bytes, rest, peer->message_got);
  peer->inbox_length = have - peer->message_got;
  memmove(peer->inbox, rest + peer->message_got, peer->inbox_length);
  return 0;
}

static void end_message(struct haul_peer *peer) {
  if (!peer->message || peer->message_got < peer->message->length)
    return;
  message_queue(peer, peer->message);
  peer->message = NULL;
}

/* Handles whole frames until the peer's turn is over at `until`. A code drops the peer. */
static int handle_frames(struct haul_peer *peer, int64_t until) {
  struct control_frame frame;
  peer->frames_deferred = false;
  while (!peer->message && !peer->frames_deferred && peer->inbox_length >= CONTROL_HEAD) {
    int code = control_parse(peer->inbox, &frame);
    if (code)
      return code;
    bool message = frame.type == CONTROL_MESSAGE;
    size_t whole = CONTROL_HEAD + (message ? 8 : frame.length);
    if (peer->inbox_length < whole)
      return 0;
    if (message) {
      code = start_message(peer, &frame);
      end_message(peer);
    } else {
      code = on_frame(peer, &frame, peer->inbox + CONTROL_HEAD);
      peer->inbox_length -= whole;
      memmove(peer->inbox, peer->inbox + whole, peer->inbox_length);
    }
    if (code)
      return code;
    peer->frames_deferred = clock_now() >= until;
  }
  return 0;
}

/* After GOODBYE this side only waits for the end of the connection. */
static void discard_input(struct haul_peer *peer) {
  char discarded[4096];
  struct iovec span = {discarded, sizeof discarded};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t got = 1;
  peer->frames_deferred = false;
  for (int i = 0; i < READS && got > 0; i++)
    got = stream_take(&peer->stream, &message);
  if (got <= 0 && got != -EAGAIN && got != -EINTR)
    peer_drop(peer, HAUL_ECLOSED, CLOSED_HERE);
}

/* Reads up to `most` bytes. False when there are none now, or the peer was dropped. *more: there
 * may be further ones; else the loop reports those that come. */
static bool read_some(struct haul_peer *peer, size_t most, bool *more) {
  struct incoming *message = peer->message;
  struct iovec span = {peer->inbox + peer->inbox_length, sizeof peer->inbox - peer->inbox_length};
  if (message)
    span = (struct iovec){message->bytes + peer->message_got, message->length - peer->message_got};
  if (span.iov_len > most)
    span.iov_len = most;
  struct msghdr header = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t got = stream_take(&peer->stream, &header);
  *more = peer->stream.tls || (got > 0 && (size_t)got == span.iov_len);
  if (got == -EAGAIN || got == -EINTR)
    return false;
  if (got == -EPROTO)
    peer_drop(peer, HAUL_EPROTO, "the peer sent file descriptors on the control connection");
  else if (got == 0 || got == -ECONNRESET) /* unread bytes at its end reset the connection */
    peer_drop(peer, HAUL_EPEER,
              peer->ready || peer->base.initiator
                  ? "the peer's process ended, or its connection was cut"
                  : "the peer ended the connection before it was ready");
  else if (got < 0)
    peer_drop(peer, HAUL_EPEER, strerror((int)-got));
  if (got <= 0)
    return false;
  atomic_store_explicit(&peer->base.heard, clock_now(), memory_order_relaxed);
  if (message)
    peer->message_got += (size_t)got;
  else
    peer->inbox_length += (size_t)got;
  end_message(peer);
  return true;
}

void control_receive(struct haul_peer *peer) {
  if (peer->close_sent_at) {
    discard_input(peer);
    return;
  }
  int64_t until = clock_now() + TURN_NS;
  int code = handle_frames(peer, until); /* those that its last turn left */
  bool more = true;
  for (int i = 0; code == 0 && more && !peer->frames_deferred && !atomic_load(&peer->failure);
       i++) {
    size_t most = i < READS ? SIZE_MAX : stream_pending(&peer->stream);
    if (most == 0 || !read_some(peer, most, &more))
      return;
    code = handle_frames(peer, until);
  }
  if (peer->frames_deferred) {
    peer->node->has_deferred_frames = true;
    loop_wake(peer->node->loop);
  }
  if (code == HAUL_EPROTO)
    peer_drop(peer, code, "the peer sent a malformed control frame");
  else if (code)
    peer_drop(peer, HAUL_EPEER, "no memory for a message of the peer");
}
