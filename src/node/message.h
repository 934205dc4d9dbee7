/* SPDX-License-Identifier: MIT
 * Messages and peer events on their way to the application. */
#ifndef HAUL_NODE_MESSAGE_H
#define HAUL_NODE_MESSAGE_H

#include "core/list.h"
#include "core/shrinkable.h"
#include "haul/haul.h"

#define MESSAGE_OVERHEAD   64u        /* bytes that a message counts besides its payload */
#define MESSAGE_WINDOW_MAX (1u << 30) /* bytes; the same limit applies to what a peer announces */
/* The largest message fits although up to a quarter of the window is not returned as credit yet. */
#define MESSAGE_WINDOW_MIN ((size_t)(shrunk(HAUL_MESSAGE_MAX, 4096) + MESSAGE_OVERHEAD) * 4 / 3 + 1)

struct haul_node;
struct haul_peer;
struct link;

struct incoming {
  struct list link;       /* node->inbox */
  int kind;               /* enum haul_message_kind */
  struct haul_peer *peer; /* a use, from the moment it is queued */
  uint64_t tag;
  size_t length;
  size_t cost; /* of the window; 0: an event */
  uint8_t bytes[];
};

/* A peer's events are allocated with the peer, so that none is lost for lack of memory. */
int message_make_events(struct haul_peer *peer);
void message_free_events(struct haul_peer *peer);
/* Queues one of the two, if the application wants events. */
void message_queue_event(struct haul_peer *peer, struct incoming **event);

/* Begins a message of `length` bytes. NULL with *code: HAUL_ENOMEM, or HAUL_EPROTO if the peer
 * exceeds its window. */
struct incoming *message_begin(struct haul_peer *peer, uint64_t tag, size_t length, int *code);
void message_queue(struct haul_peer *peer, struct incoming *message);
/* Waits until a message of `length` bytes may be sent: earlier writes have ended, and the peer has
 * room, which is reserved. HAUL_ETIMEDOUT, or why the peer ended. */
int message_reserve(struct haul_peer *peer, size_t length, haul_deadline until);
/* It was not sent. */
void message_unreserve(struct haul_peer *peer, size_t length);
/* struct link's `notify`. */
int message_notify(struct link *link, const struct haul_notification *message,
                   bool (*commit)(void *user), void *user);
void message_clear(struct haul_node *node);

/* The peer's connection ended. While its messages are queued it counts against max_peers, which
 * bounds the memory that short-lived peers can take. */
void message_peer_ended(struct haul_peer *peer);
unsigned message_ended_peers(struct haul_node *node);

#endif
