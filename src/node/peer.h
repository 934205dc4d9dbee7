/* SPDX-License-Identifier: MIT
 * A peer from its connection to its end. `refs` keep its memory; `uses` are the application's and
 * keep a connection that this side initiated. The node holds a reference while it lists the peer.
 *
 *   peer.c     references, liveness, dropping
 *   connect.c  connecting to nodes, opening channels; dial.c makes the connections */
#ifndef HAUL_NODE_PEER_H
#define HAUL_NODE_PEER_H

#include "node/control.h"
#include "node/node.h"

/* Drop reason of a peer whose connection this side ended. */
#define CLOSED_HERE "this side closed the connection"

struct haul_peer {
  struct link base;       /* what transports see; first */
  struct haul_node *node; /* a reference */
  struct list list;       /* node->peers while connected, in the order of base.number */
  struct list same_token; /* in a list of node->tokens; empty if this side connected */
  _Atomic uint32_t refs;
  _Atomic uint32_t uses;         /* handles, remotes, messages */
  bool ready;                    /* the initiator's channels are open */
  uint8_t node_id[16];           /* that the other side claims */
  uint8_t share[16], shared[16]; /* of struct welcome; `shared`: in the initiator */
  bool offered;                  /* share.h: this node's link was named to the other side */
  unsigned holds;                /* share.h: HOLD without HELD */
  _Atomic bool held;             /* share.h: the other side has a use of this node's link */
  _Atomic bool holding;          /* share.h: this node has one of the other side's */
  bool unsettled;                /* share.h: this node closes it though the other side uses it */
  uint8_t token[16];             /* proves that a channel belongs to this connection */
  char origin[48]; /* address that it connected from, without the port; "": a Unix socket */
  char address_text[160];
  struct address address;         /* initiator: the address for channels */
  char companion[64];             /* initiator: the peer's Unix socket for channels; "": none */
  struct incoming *joined, *left; /* events; NULL: queued, or not wanted */
  uint64_t *granted;              /* handles that its lookups were granted (regions.c) */
  uint32_t granted_count;

  pthread_mutex_t failure_lock;  /* the first peer_fail counts */
  char failure_reason[192];      /* set before `failure`, constant after it */
  _Atomic int failure;           /* code of peer_fail; 0: none */
  _Atomic int64_t rails_lost_at; /* when link.last_path_lost was called; 0: never */
  int64_t close_sent_at;         /* when this side sent GOODBYE; 0: never */
  bool write_shut;               /* the socket is shut for writing after GOODBYE */

  /* Receiving. */
  struct stream stream;
  struct watch watch;
  struct timer timer;
  uint8_t inbox[CONTROL_HEAD + CONTROL_BODY_MAX];
  size_t inbox_length;
  bool frames_deferred;     /* whole frames in `inbox` wait for the peer's next turn */
  struct incoming *message; /* being received */
  size_t message_got;
  struct list requests; /* that wait for a response */
  uint32_t last_request;

  /* Messages in the node's inbox; its inbox_lock. */
  size_t unread;     /* their bytes and overhead */
  size_t credit_due; /* bytes taken out of the inbox and not returned as credit yet */
  unsigned queued;   /* messages and events */
  bool ended_queued; /* counted in node->ended_peers */

  /* Sending. */
  pthread_mutex_t send_lock; /* guards the rest */
  struct list outgoing;      /* frames */
  size_t response_bytes;     /* of the responses in `outgoing` */
  size_t credit;             /* bytes of messages that the peer has room for */
  int64_t sent_at;           /* when a frame was last queued */
  int64_t moved_at;          /* when the socket last took bytes, or the queue was empty */
  bool closed;               /* `stream` may not be used */
};

/* The peer as described in its handshake. */
struct peer_info {
  const uint8_t *node_id, *boot; /* 16 bytes each */
  const char *name;
  bool local, loopback;
  uint32_t message_window;
  uint16_t window;
  unsigned version;
};

/* With the loop's lock. Takes over the stream on success. The peer has one reference and is not
 * listed until peer_start. */
int peer_new(struct haul_node *node, const struct stream *stream, const struct peer_info *info,
             struct haul_peer **peer);
int peer_start(struct haul_peer *peer);
/* With the loop's lock. Ends the peer's transfers, closes its connections and logs the reason. */
void peer_drop(struct haul_peer *peer, int code, const char *reason);
/* With the loop's lock. NULL: no peer that connected to this node has the token. */
struct haul_peer *peer_by_token(struct haul_node *node, const uint8_t token[16]);
/* The rest from any thread, with or without locks. */
/* Has the peer dropped soon; the first reason counts. */
void peer_fail(struct haul_peer *peer, int code, const char *reason);
/* 0, or the code with which the peer ended and its reason as the detail. */
int peer_check(struct haul_peer *peer);
void peer_ref(struct haul_peer *peer);
void peer_unref(struct haul_peer *peer);
void peer_use(struct haul_peer *peer);
void peer_unuse(struct haul_peer *peer);
/* Writes a line to the node's log. `code` 0 and `reason` NULL: none. */
void peer_log(const struct haul_peer *peer, enum log_event event, int code, const char *reason);

/* Connects to a node; without locks. The peer is not started. `id`: the node that must listen
 * there, 16 bytes; NULL: any. */
int peer_connect(struct haul_node *node, const char *address, const uint8_t *id,
                 haul_deadline until, struct haul_peer **peer);

#endif
