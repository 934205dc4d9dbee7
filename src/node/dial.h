/* SPDX-License-Identifier: MIT
 * Connects to a node in the loop: address, TLS, hello, welcome. The other side is accept.c's.
 *
 * A dial ends once, by its callback: with a stream and the listener's welcome, or with a code. */
#ifndef HAUL_NODE_DIAL_H
#define HAUL_NODE_DIAL_H

#include "node/handshake.h"
#include "node/peer.h"

struct dial {
  struct list link; /* node->dials */
  struct haul_node *node;
  struct watch watch;
  struct timer timer; /* the deadline, or the next attempt at a full Unix listener */
  enum { DIAL_CONNECT, DIAL_TLS, DIAL_HELLO, DIAL_WELCOME, DIAL_DONE } state;
  bool queued, begun; /* `queued`: waits until others to this address have ended */
  bool connecting;    /* the socket is waited for */
  bool bare;          /* the listener answered TLS without TLS */
  size_t length;      /* of the hello, or of what has come of the welcome */
  size_t sent;        /* of the hello */
  uint8_t bytes[HANDSHAKE_MAX];

  /* Set between dial_new and dial_start. */
  struct address address;
  char text[160];         /* names the address in errors */
  struct haul_peer *peer; /* a channel's: the listener must have its identity; else NULL */
  unsigned index;         /* of the channel */
  bool companion;         /* the address is the peer's companion socket */
  bool descriptors;       /* the channel may carry descriptors */
  bool plain, reads;      /* of stream_settle */
  haul_deadline until;
  /* Called with the lock, perhaps before dial_start returns. Takes over the stream if `code` is 0;
   * else the thread has its detail. The dial is freed after it. */
  void (*done)(struct dial *dial, int code);
  void *user;

  /* The result. */
  struct stream stream;
  struct welcome welcome;
  char identity[64]; /* that the listener proved by TLS */
};

/* What a dial with dial_wait came to. */
struct dialed {
  struct stream stream;
  struct welcome welcome;
  char identity[64];
  /* dial.c's own. */
  struct haul_node *node;
  bool ended; /* the lock */
  int code;
  struct haul_error error;
};

/* NULL with the detail. */
struct dial *dial_new(struct haul_node *node);
/* Takes over the dial. With the lock. */
void dial_start(struct dial *dial, const struct hello *hello);
/* The same, and waits for the end; without the lock. The result has a stream if 0 is returned. */
int dial_wait(struct dial *dial, const struct hello *hello, struct dialed *dialed);
/* Ends the dials for channels of the peer, with the code of its end. With the lock. */
void dials_end(struct haul_peer *peer);
/* The node closes: ends all dials. With the lock. */
void dials_stop(struct haul_node *node);
/* In a forked child: only closes the descriptors. */
void dials_forked(const struct haul_node *node);

#endif
