/* SPDX-License-Identifier: MIT
 * Messages with credit-based flow control: a peer may have as many unread bytes here as the window
 * announced in the handshake; what the application takes out returns to the peer as credit. */
#include "node/message.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/wire.h"
#include "node/offer.h"
#include "node/peer.h"

void message_queue(struct haul_peer *peer, struct incoming *message) {
  struct haul_node *node = peer->node;
  message->peer = haul_peer_retain(peer);
  pthread_mutex_lock(&node->inbox_lock);
  list_append(&node->inbox, &message->link);
  peer->queued++;
  pthread_mutex_unlock(&node->inbox_lock);
  loop_notify(node->loop);
}

static struct incoming *new_event(int kind) {
  struct incoming *event = alloc_zero(1, sizeof *event);
  if (event)
    event->kind = kind;
  return event;
}

int message_make_events(struct haul_peer *peer) {
  if (!peer->node->config.peer_events)
    return 0;
  peer->joined = new_event(HAUL_PEER_JOINED);
  peer->left = new_event(HAUL_PEER_LEFT);
  return peer->joined && peer->left ? 0 : error_memory("peer events");
}

void message_free_events(struct haul_peer *peer) {
  alloc_free(peer->joined);
  alloc_free(peer->left);
}

void message_queue_event(struct haul_peer *peer, struct incoming **event) {
  struct incoming *queued = *event;
  if (!queued || node_is_closed(peer->node))
    return;
  *event = NULL;
  message_queue(peer, queued);
}

void message_peer_ended(struct haul_peer *peer) {
  struct haul_node *node = peer->node;
  pthread_mutex_lock(&node->inbox_lock);
  peer->ended_queued = peer->queued > 0;
  node->ended_peers += peer->ended_queued;
  pthread_mutex_unlock(&node->inbox_lock);
}

unsigned message_ended_peers(struct haul_node *node) {
  pthread_mutex_lock(&node->inbox_lock);
  unsigned count = node->ended_peers;
  pthread_mutex_unlock(&node->inbox_lock);
  return count;
}

struct incoming *message_begin(struct haul_peer *peer, uint64_t tag, size_t length, int *code) {
  struct haul_node *node = peer->node;
  size_t cost = length + MESSAGE_OVERHEAD;
  pthread_mutex_lock(&node->inbox_lock);
  bool fits = cost <= node->config.message_window - peer->unread;
  if (fits)
    peer->unread += cost;
  pthread_mutex_unlock(&node->inbox_lock);
  if (!fits) {
    *code = HAUL_EPROTO;
    return NULL;
  }
  struct incoming *message = alloc_zero(1, sizeof *message + length);
  if (!message) {
    *code = error_memory("message");
    return NULL;
  }
  message->kind = HAUL_MESSAGE;
  message->tag = tag;
  message->length = length;
  message->cost = cost;
  return message;
}

static void discard(struct incoming *message) {
  if (message->kind == HAUL_MESSAGE_OFFER)
    offer_refuse(message);
  haul_peer_close(message->peer);
  alloc_free(message);
}

void message_clear(struct haul_node *node) {
  struct list all = LIST_INIT(all);
  pthread_mutex_lock(&node->inbox_lock);
  list_splice(&all, &node->inbox);
  pthread_mutex_unlock(&node->inbox_lock);
  for (struct list *item; (item = list_take(&all));)
    discard(list_entry(item, struct incoming, link));
}

/* Returns credit once it amounts to a quarter of the window, which saves frames. The other three
 * quarters hold more than the largest message (MESSAGE_WINDOW_MIN), so no sender is stuck. */
static void return_credit(struct haul_peer *peer, size_t cost) {
  struct haul_node *node = peer->node;
  uint8_t body[4] = {0};
  struct wire wire = wire_over(body, sizeof body);
  pthread_mutex_lock(&node->inbox_lock);
  peer->unread -= cost;
  peer->credit_due += cost;
  bool due = peer->credit_due >= node->config.message_window / 4;
  if (due) {
    wire_put32(&wire, (uint32_t)peer->credit_due);
    peer->credit_due = 0;
  }
  pthread_mutex_unlock(&node->inbox_lock);
  if (due && !atomic_load(&peer->base.ended))
    control_send(peer, CONTROL_CREDIT, 0, body, sizeof body);
}

static bool has_message(void *user) {
  struct haul_node *node = user;
  pthread_mutex_lock(&node->inbox_lock);
  bool any = !list_empty(&node->inbox);
  pthread_mutex_unlock(&node->inbox_lock);
  return any || node_is_closed(node);
}

static struct incoming *take_message(struct haul_node *node) {
  pthread_mutex_lock(&node->inbox_lock);
  struct list *item = list_take(&node->inbox);
  struct incoming *message = item ? list_entry(item, struct incoming, link) : NULL;
  if (message && --message->peer->queued == 0 && message->peer->ended_queued) {
    message->peer->ended_queued = false;
    node->ended_peers--;
  }
  pthread_mutex_unlock(&node->inbox_lock);
  return message;
}

HAUL_API int haul_message_receive(haul_node *node, struct haul_message *message,
                                  haul_deadline until) {
  int code = node_enter("haul_message_receive", node && message, "node or message is NULL");
  if (code)
    return code;
  struct incoming *incoming;
  node_retain(node);
  do
    incoming = take_message(node);
  while (!incoming && loop_wait(node->loop, has_message, NULL, node, until) &&
         !node_is_closed(node));
  bool closed = node_is_closed(node);
  node_put(node);
  if (!incoming)
    return closed ? error_code(HAUL_ECLOSED, NULL)
                  : error_set(HAUL_ETIMEDOUT, 0, NULL, NULL, "no message arrived in time");
  *message =
      (struct haul_message){.kind = incoming->kind,
                            .peer = incoming->peer,
                            .tag = incoming->tag,
                            .bytes = incoming->kind == HAUL_MESSAGE_OFFER ? NULL : incoming->bytes,
                            .length = incoming->length,
                            .internal = incoming};
  if (incoming->cost > 0)
    return_credit(incoming->peer, incoming->cost);
  return 0;
}

HAUL_API void haul_message_release(struct haul_message *message) {
  if (!message || !message->internal)
    return;
  discard(message->internal);
  memset(message, 0, sizeof *message);
}

struct sending {
  struct haul_peer *peer;
  uint64_t number; /* of the last write before the message */
  size_t cost;
  bool reserved;
};

static bool take_credit(struct haul_peer *peer, size_t cost) {
  pthread_mutex_lock(&peer->send_lock);
  bool fits = peer->credit >= cost;
  if (fits)
    peer->credit -= cost;
  pthread_mutex_unlock(&peer->send_lock);
  return fits;
}

/* True once the peer ended, or credit is reserved. That is done when earlier writes are complete,
 * and canceled ones cannot land at the peer any more. */
static bool may_send(void *user) {
  struct sending *sending = user;
  struct haul_peer *peer = sending->peer;
  if (atomic_load(&peer->base.ended))
    return true;
  if (transfers_writing(&peer->node->transfers, &peer->base, sending->number) ||
      link_has_abandoned(&peer->base))
    return false;
  sending->reserved = sending->reserved || take_credit(peer, sending->cost);
  return sending->reserved;
}

static bool help_copy(void *user) {
  struct sending *sending = user;
  return fabric_help(&sending->peer->node->fabric, 0);
}

int message_reserve(struct haul_peer *peer, size_t length, haul_deadline until) {
  struct sending sending = {.peer = peer,
                            .number = transfers_last_write(&peer->node->transfers, &peer->base),
                            .cost = length + MESSAGE_OVERHEAD};
  loop_wait(peer->node->loop, may_send, help_copy, &sending, until);
  int code = peer_check(peer);
  if (code || sending.reserved)
    return code;
  return error_set(HAUL_ETIMEDOUT, 0, peer->base.name,
                   "allow more time; the peer must call haul_message_receive",
                   "earlier writes are incomplete, or the peer does not receive its messages");
}

void message_unreserve(struct haul_peer *peer, size_t length) {
  pthread_mutex_lock(&peer->send_lock);
  peer->credit += length + MESSAGE_OVERHEAD;
  pthread_mutex_unlock(&peer->send_lock);
  loop_notify(peer->node->loop); /* others may wait for room */
  loop_wake(peer->node->loop);
}

/* With credit for it, which a failure gives back. */
static int send_reserved(struct haul_peer *peer, uint64_t tag, const void *bytes, size_t length) {
  pthread_mutex_lock(&peer->send_lock);
  int code = control_send_message(peer, tag, bytes, length);
  pthread_mutex_unlock(&peer->send_lock);
  if (code)
    message_unreserve(peer, length);
  return code;
}

int message_notify(struct link *link, const struct haul_notification *message,
                   bool (*commit)(void *user), void *user) {
  struct haul_peer *peer = (struct haul_peer *)link;
  int code = peer_check(peer);
  if (code || !take_credit(peer, message->length + MESSAGE_OVERHEAD))
    return code ? code : 1;
  if (commit(user))
    return send_reserved(peer, message->tag, message->bytes, message->length);
  message_unreserve(peer, message->length);
  return 0;
}

HAUL_API int haul_message_send(haul_peer *peer, uint64_t tag, const void *bytes, size_t length,
                               haul_deadline until) {
  int code = node_enter("haul_message_send", peer, "peer is NULL");
  if (code == 0)
    code = transfer_check_message(peer->base.name, bytes, length);
  if (code == 0)
    code = message_reserve(peer, length, until);
  return code ? code : send_reserved(peer, tag, bytes, length);
}
