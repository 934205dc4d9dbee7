/* SPDX-License-Identifier: MIT
 * Frames on the control connection, little-endian: magic u32, type u16, zero u16, length u32,
 * request u32, body. Bodies are small, but for messages, whose bytes are read straight into the
 * buffer that the application will get. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "node/node.h"

#define MAGIC   0x4c544348u /* "HCTL" */
#define READS   4           /* at a time */
#define TURN_NS 1000000     /* of the loop for a peer's frames, and the last one's */

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

/* ---- Sending ---- */

static void want_room(struct haul_peer *peer, bool want) {
  loop_change(peer->node->loop, &peer->watch, EPOLLIN | (want ? EPOLLOUT : 0u));
}

void control_clear(struct haul_peer *peer) {
  for (struct list *item; (item = list_take(&peer->outgoing));)
    alloc_free(list_entry(item, struct outgoing, link));
  peer->answers = 0;
}

void control_pump(struct haul_peer *peer) {
  if (!peer->closed && stream_owes(&peer->stream) && stream_flush(&peer->stream) == 0)
    peer->moved_at = clock_now();
  while (!peer->closed && !list_empty(&peer->outgoing)) {
    struct outgoing *frame = list_entry(peer->outgoing.next, struct outgoing, link);
    struct iovec span = {frame->bytes + frame->sent, frame->length - frame->sent};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t put = stream_send(&peer->stream, &message, 0);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0 && errno == EAGAIN) {
      want_room(peer, true);
      return;
    }
    if (put < 0) { /* reading sees the end, and drops the peer */
      control_clear(peer);
      break;
    }
    frame->sent += (size_t)put;
    peer->moved_at = clock_now();
    if (frame->sent < frame->length)
      continue;
    if (frame->answer)
      peer->answers -= frame->length;
    list_remove(&frame->link);
    alloc_free(frame);
  }
  if (!peer->closed)
    want_room(peer, stream_owes(&peer->stream));
}

/* Frames wait, and the peer took some within the bound, or took none. */
static bool waits(struct haul_peer *peer, bool moving) {
  pthread_mutex_lock(&peer->send_lock);
  bool moved = clock_now() - peer->moved_at < peer->node->config.liveness_ns;
  bool is = !peer->closed && moved == moving &&
            (!list_empty(&peer->outgoing) || stream_owes(&peer->stream));
  pthread_mutex_unlock(&peer->send_lock);
  return is;
}

bool control_lingers(struct haul_peer *peer) {
  return waits(peer, true);
}

/* Over TCP a close with something unread takes back what the peer has not fetched yet, so the peer
 * closes first. */
static void end_sending(struct haul_peer *peer) {
  pthread_mutex_lock(&peer->send_lock);
  if (!peer->closed && !peer->said_all)
    shutdown(peer->stream.fd, SHUT_WR);
  peer->said_all = true;
  pthread_mutex_unlock(&peer->send_lock);
}

bool control_takes_leave(struct haul_peer *peer) {
  if (control_lingers(peer))
    return false;
  if (!peer->goodbye_at) {
    control_send(peer, CONTROL_GOODBYE, 0, NULL, 0);
    peer->goodbye_at = clock_now();
  }
  if (peer->base.local)
    return true;
  if (!control_lingers(peer))
    end_sending(peer);
  return false;
}

bool control_stalls(struct haul_peer *peer) {
  pthread_mutex_lock(&peer->send_lock);
  control_pump(peer);
  pthread_mutex_unlock(&peer->send_lock);
  return waits(peer, false);
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

/* With send_lock. */
static int submit(struct haul_peer *peer, struct outgoing *frame) {
  if (peer->closed) {
    alloc_free(frame);
    return error_set(HAUL_EPEER, 0, peer->base.name, "connect again", "%s",
                     peer->base.ended_reason);
  }
  peer->sent_at = clock_now();
  if (list_empty(&peer->outgoing))
    peer->moved_at = peer->sent_at;
  list_append(&peer->outgoing, &frame->link);
  control_pump(peer);
  return 0;
}

static bool is_answer(enum control_type type) {
  return type == CONTROL_FOUND || type == CONTROL_NAMES || type == CONTROL_STATE ||
         type == CONTROL_TRACED || type == CONTROL_PING;
}

/* Without them the peer waits to the end of its patience, or for ever. */
static bool is_awaited(enum control_type type) {
  return type == CONTROL_FOUND || type == CONTROL_NAMES || type == CONTROL_STATE ||
         type == CONTROL_TRACED || type == CONTROL_CREDIT;
}

int control_send(struct haul_peer *peer, enum control_type type, uint32_t request, const void *body,
                 size_t length) {
  struct outgoing *frame = new_frame(type, request, length);
  if (!frame) {
    if (is_awaited(type))
      peer_fail(peer, HAUL_ENOMEM, "no memory for what it waits for");
    return HAUL_ENOMEM;
  }
  if (length > 0)
    memcpy(frame->bytes + CONTROL_HEAD, body, length);
  pthread_mutex_lock(&peer->send_lock);
  frame->answer = is_answer(type);
  if (frame->answer)
    peer->answers += frame->length;
  bool flooded = peer->answers > CONTROL_QUEUE;
  int code = submit(peer, frame);
  pthread_mutex_unlock(&peer->send_lock);
  if (flooded)
    peer_fail(peer, HAUL_EPROTO, "it asks and does not read the answers");
  return code;
}

int control_send_message(struct haul_peer *peer, uint64_t tag, const void *bytes, size_t length) {
  struct outgoing *frame = new_frame(CONTROL_MESSAGE, 0, 8 + length);
  if (!frame)
    return HAUL_ENOMEM;
  struct wire wire = wire_over(frame->bytes + CONTROL_HEAD, 8 + length);
  wire_put64(&wire, tag);
  wire_put_bytes(&wire, bytes, length);
  return submit(peer, frame);
}

/* ---- Asking ---- */

static bool is_answered(void *user) {
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
  int ended = atomic_load(&peer->base.ended);
  int code =
      ended ? error_set(ended, 0, peer->base.name, "connect again", "%s", peer->base.ended_reason)
            : 0;
  if (code == 0) {
    request->id = ++peer->next_request;
    list_append(&peer->requests, &request->link);
    code = control_send(peer, type, request->id, body, length);
    if (code)
      list_remove(&request->link);
  }
  loop_unlock(loop);
  if (code)
    return code;

  loop_wait(loop, is_answered, NULL, request, until);
  loop_lock(loop);
  list_remove(&request->link);
  loop_unlock(loop);
  if (!request->done)
    return node_is_closed(peer->node)
               ? error_code(HAUL_ECLOSED, peer->base.name)
               : error_set(HAUL_ETIMEDOUT, 0, peer->base.name, "is it progressing? wait longer",
                           "the peer did not answer in time");
  return request->code ? error_restore(&request->error) : 0;
}

static int on_answer(struct haul_peer *peer, uint32_t id, const uint8_t *body, size_t length) {
  list_each_safe(item, &peer->requests) {
    struct request *request = list_entry(item, struct request, link);
    if (request->id != id)
      continue;
    int code = request->take(request, body, length);
    if (code == HAUL_EPROTO)
      return code;
    list_remove(item);
    request->code = code;
    if (code)
      error_save(&request->error);
    request->done = true;
    loop_notify(peer->node->loop);
    return 0;
  }
  return 0; /* given up at its deadline */
}

/* ---- Receiving ---- */

static int on_credit(struct haul_peer *peer, const uint8_t *body, size_t length) {
  struct wire wire = wire_over(body, length);
  uint32_t bytes = wire_get32(&wire);
  if (wire.failed || wire_left(&wire) > 0)
    return HAUL_EPROTO;
  pthread_mutex_lock(&peer->send_lock);
  peer->credit += bytes;
  bool sane = peer->credit <= ((size_t)1 << 31);
  pthread_mutex_unlock(&peer->send_lock);
  loop_notify(peer->node->loop);
  return sane ? 0 : HAUL_EPROTO;
}

static int on_frame(struct haul_peer *peer, const struct control_frame *frame,
                    const uint8_t *body) {
  switch (frame->type) {
  case CONTROL_READY:
    if (peer->base.initiator || peer->ready)
      return HAUL_EPROTO;
    peer->ready = true;
    message_event(peer, &peer->joined);
    return 0;
  case CONTROL_GOODBYE:
    peer_fail(peer, HAUL_EPEER, "the peer closed the connection");
    return 0;
  case CONTROL_LOOKUP:
    return names_on_lookup(peer, frame->request, body, frame->length);
  case CONTROL_LIST:
    return names_on_list(peer, frame->request, body, frame->length);
  case CONTROL_STATS:
    return stats_on_request(peer, frame->request, body, frame->length);
  case CONTROL_TRACE:
    return trace_on_request(peer, frame->request, body, frame->length);
  case CONTROL_FOUND:
  case CONTROL_NAMES:
  case CONTROL_STATE:
  case CONTROL_TRACED:
    return on_answer(peer, frame->request, body, frame->length);
  case CONTROL_CREDIT:
    return on_credit(peer, body, frame->length);
  default: /* PING: that it came is all it says */
    if (frame->request == PING_ASKS)
      control_send(peer, CONTROL_PING, 0, NULL, 0);
    return 0;
  }
}

/* The first bytes of a message are in the inbox; the rest is read to its place. */
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

/* Handles the frames that are whole, until the peer's turn is over; HAUL_EPROTO or another reason
 * to drop the peer. */
static int consume(struct haul_peer *peer, int64_t until) {
  struct control_frame frame;
  peer->unheard = false;
  while (!peer->message && !peer->unheard && peer->inbox_length >= CONTROL_HEAD) {
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
    peer->unheard = clock_now() >= until;
  }
  return 0;
}

/* A read brought nothing: the end, or an errno. */
static void drop_unread(struct haul_peer *peer, int system) {
  if (system == EPROTO)
    peer_drop(peer, HAUL_EPROTO, "it sent descriptors on the control connection");
  else
    peer_drop(peer, HAUL_EPEER, system ? strerror(system) : "the peer's process ended or left");
}

/* After the goodbye nothing is of interest but the end. */
static void receive_end(struct haul_peer *peer) {
  char ignored[4096];
  struct iovec span = {ignored, sizeof ignored};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t got = 1;
  peer->unheard = false;
  for (int i = 0; i < READS && got > 0; i++)
    got = stream_take(&peer->stream, &message);
  if (got <= 0 && got != -EAGAIN && got != -EINTR)
    peer_drop(peer, HAUL_ECLOSED, "the connection was closed here");
}

void control_receive(struct haul_peer *peer) {
  if (peer->goodbye_at) {
    receive_end(peer);
    return;
  }
  int64_t until = clock_now() + TURN_NS;
  int code = consume(peer, until); /* what its last turn left */
  for (int i = 0; code == 0 && !peer->unheard && !atomic_load(&peer->doomed); i++) {
    size_t here = i < READS ? SIZE_MAX : stream_pending(&peer->stream);
    if (here == 0)
      return;
    struct iovec span = {peer->inbox + peer->inbox_length, sizeof peer->inbox - peer->inbox_length};
    if (peer->message)
      span = (struct iovec){peer->message->bytes + peer->message_got,
                            peer->message->length - peer->message_got};
    if (span.iov_len > here)
      span.iov_len = here;
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    ssize_t got = stream_take(&peer->stream, &message);
    if (got == -EAGAIN || got == -EINTR)
      return;
    if (got <= 0) {
      drop_unread(peer, (int)-got);
      return;
    }
    atomic_store_explicit(&peer->base.heard, clock_now(), memory_order_relaxed);
    if (peer->message)
      peer->message_got += (size_t)got;
    else
      peer->inbox_length += (size_t)got;
    end_message(peer);
    code = consume(peer, until);
  }
  if (peer->unheard) {
    peer->node->unheard = true;
    loop_wake(peer->node->loop);
  }
  if (code)
    peer_drop(peer, code,
              code == HAUL_EPROTO ? "it sent nonsense on the control connection"
                                  : "no memory for its message");
}
