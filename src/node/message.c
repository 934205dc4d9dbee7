/* SPDX-License-Identifier: MIT
 * Messages. A peer may have no more bytes unread here than the window that it was told in the
 * handshake; what the application takes out is told back as credit. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "core/wire.h"
#include "node/node.h"

/* ---- The inbox ---- */

static void enqueue(struct haul_node *node, struct incoming *message) {
  pthread_mutex_lock(&node->inbox_lock);
  list_append(&node->inbox, &message->link);
  message->peer->queued++;
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

void message_event(struct haul_peer *peer, struct incoming **event) {
  struct incoming *message = *event;
  if (!message || node_is_closed(peer->node))
    return;
  *event = NULL;
  message->peer = haul_peer_retain(peer);
  enqueue(peer->node, message);
}

void message_departed(struct haul_peer *peer) {
  struct haul_node *node = peer->node;
  pthread_mutex_lock(&node->inbox_lock);
  peer->departed = peer->queued > 0;
  node->departed += peer->departed;
  pthread_mutex_unlock(&node->inbox_lock);
}

unsigned message_departed_count(struct haul_node *node) {
  pthread_mutex_lock(&node->inbox_lock);
  unsigned count = node->departed;
  pthread_mutex_unlock(&node->inbox_lock);
  return count;
}

struct incoming *message_begin(struct haul_peer *peer, uint64_t tag, size_t length, int *code) {
  struct haul_node *node = peer->node;
  size_t cost = length + MESSAGE_COST;
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
  return message;
}

void message_queue(struct haul_peer *peer, struct incoming *message) {
  message->peer = haul_peer_retain(peer);
  enqueue(peer->node, message);
}

static void discard(struct incoming *message) {
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

/* Tells the peer of room once it is worth a frame, a quarter of the window: three quarters are more
 * than the largest message (node.c). */
static void give_credit(struct haul_peer *peer, size_t cost) {
  struct haul_node *node = peer->node;
  uint8_t body[4] = {0};
  struct wire wire = wire_over(body, sizeof body);
  pthread_mutex_lock(&node->inbox_lock);
  peer->unread -= cost;
  peer->credit_due += cost;
  bool worth = peer->credit_due >= node->config.message_window / 4;
  if (worth) {
    wire_put32(&wire, (uint32_t)peer->credit_due);
    peer->credit_due = 0;
  }
  pthread_mutex_unlock(&node->inbox_lock);
  if (worth && !atomic_load(&peer->base.ended))
    control_send(peer, CONTROL_CREDIT, 0, body, sizeof body);
}

/* ---- Receiving ---- */

static bool has_message(void *user) {
  struct haul_node *node = user;
  pthread_mutex_lock(&node->inbox_lock);
  bool any = !list_empty(&node->inbox);
  pthread_mutex_unlock(&node->inbox_lock);
  return any || node_is_closed(node);
}

static struct incoming *take(struct haul_node *node) {
  pthread_mutex_lock(&node->inbox_lock);
  struct list *item = list_take(&node->inbox);
  struct incoming *message = item ? list_entry(item, struct incoming, link) : NULL;
  if (message && --message->peer->queued == 0 && message->peer->departed) {
    message->peer->departed = false;
    node->departed--;
  }
  pthread_mutex_unlock(&node->inbox_lock);
  return message;
}

HAUL_API int haul_message_receive(haul_node *node, struct haul_message *message,
                                  haul_deadline until) {
  int code = node_enter("haul_message_receive", node);
  if (code)
    return code;
  if (!message)
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no place for the message");
  struct incoming *incoming;
  node_retain(node);
  do
    incoming = take(node);
  while (!incoming && loop_wait(node->loop, has_message, NULL, node, until) &&
         !node_is_closed(node));
  bool closed = node_is_closed(node);
  node_put(node);
  if (!incoming)
    return closed ? error_code(HAUL_ECLOSED, NULL)
                  : error_set(HAUL_ETIMEDOUT, 0, NULL, NULL, "no message came in time");
  *message = (struct haul_message){.kind = incoming->kind,
                                   .peer = incoming->peer,
                                   .tag = incoming->tag,
                                   .bytes = incoming->bytes,
                                   .length = incoming->length,
                                   .internal = incoming};
  if (incoming->kind == HAUL_MESSAGE)
    give_credit(incoming->peer, incoming->length + MESSAGE_COST);
  return 0;
}

HAUL_API void haul_message_release(struct haul_message *message) {
  if (!message || !message->internal)
    return;
  discard(message->internal);
  memset(message, 0, sizeof *message);
}

/* ---- Sending ---- */

struct sending {
  struct haul_peer *peer;
  uint64_t number; /* of the last write before the message */
  size_t cost;
  bool reserved;
};

/* Reserves the room as soon as the writes before are complete, nothing is left of those that were
 * given up, and there is room. */
static bool may_send(void *user) {
  struct sending *sending = user;
  struct haul_peer *peer = sending->peer;
  if (atomic_load(&peer->base.ended))
    return true;
  if (transfers_writing(&peer->node->transfers, &peer->base, sending->number) ||
      link_is_blocked(&peer->base))
    return false;
  pthread_mutex_lock(&peer->send_lock);
  if (!sending->reserved && peer->credit >= sending->cost) {
    peer->credit -= sending->cost;
    sending->reserved = true;
  }
  pthread_mutex_unlock(&peer->send_lock);
  return sending->reserved;
}

static bool help(void *user) {
  struct sending *sending = user;
  return fabric_help(&sending->peer->node->fabric);
}

HAUL_API int haul_message_send(haul_peer *peer, uint64_t tag, const void *bytes, size_t length,
                               haul_deadline until) {
  int code = error_enter("haul_message_send");
  if (code)
    return code;
  if (!peer || (length > 0 && !bytes))
    return error_set(HAUL_EINVAL, 0, NULL, NULL, "no peer or no bytes");
  if (length > HAUL_MESSAGE_MAX)
    return error_set(HAUL_ELIMIT, 0, peer->base.name,
                     "write them into a region, and send a message that says so",
                     "%zu bytes are more than a message's %d", length, HAUL_MESSAGE_MAX);
  struct sending sending = {.peer = peer,
                            .number = transfers_last_write(&peer->node->transfers, &peer->base),
                            .cost = length + MESSAGE_COST};
  loop_wait(peer->node->loop, may_send, help, &sending, until);
  code = peer_check(peer);
  if (code)
    return code;
  if (!sending.reserved)
    return error_set(HAUL_ETIMEDOUT, 0, peer->base.name,
                     "wait longer; the peer must call haul_message_receive",
                     "earlier writes are under way, or the peer does not receive its messages");
  pthread_mutex_lock(&peer->send_lock);
  code = control_send_message(peer, tag, bytes, length);
  if (code)
    peer->credit += sending.cost;
  pthread_mutex_unlock(&peer->send_lock);
  return code;
}
