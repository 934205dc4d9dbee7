/* SPDX-License-Identifier: MIT
 * The control connection: small frames, requests with their responses, and messages. All integers
 * are little-endian; docs/protocol.md describes the bodies. */
#ifndef HAUL_NODE_CONTROL_H
#define HAUL_NODE_CONTROL_H

#include "core/list.h"
#include "core/wire.h"
#include "haul/haul.h"

#define CONTROL_HEAD     16u
#define CONTROL_BODY_MAX 8192u /* bytes of a body, except that of MESSAGE */
#define CONTROL_RESPONSES_MAX                                                                      \
  262144u /* bytes of responses queued for a peer that does not read                               \
           */

struct haul_peer;
struct link;
struct transport;

enum control_type {
  CONTROL_READY = 1,   /* the initiator has opened its channels, or opens them on demand */
  CONTROL_PING = 2,    /* `request` is PING_REQUEST or PING_RESPONSE */
  CONTROL_GOODBYE = 3, /* the sender closes the connection; `request` is 0 or GOODBYE_SILENT */
  CONTROL_LOOKUP = 4,
  CONTROL_FOUND = 5, /* response to LOOKUP */
  CONTROL_LIST = 6,
  CONTROL_NAMES = 7, /* response to LIST */
  CONTROL_MESSAGE = 8,
  CONTROL_CREDIT = 9, /* room in the receiver's message window */
  CONTROL_STATS = 10,
  CONTROL_STATE = 11, /* response to STATS */
  CONTROL_TRACE = 12,
  CONTROL_TRACED = 13,  /* response to TRACE */
  CONTROL_DIAL = 14,    /* the acceptor needs the channels of a transport */
  CONTROL_REFUSED = 15, /* the initiator cannot open them */
  CONTROL_HOLD = 16,    /* the acceptor uses the connection as its own (share.h) */
  CONTROL_HELD = 17,    /* response to HOLD */
  CONTROL_RELEASE = 18, /* and uses it no more */
  CONTROL_OFFER = 19,   /* a message whose payload is in a region of the sender */
  CONTROL_TAKEN = 20    /* response to OFFER, once the receiver does not read any more */
};
#define CONTROL_LAST CONTROL_TAKEN

#define PING_RESPONSE  0u
#define PING_REQUEST   1u
#define GOODBYE_SILENT 1u

struct control_frame {
  uint16_t type;
  uint32_t length, request;
};

/* A request that waits for its response. Lives on the stack of the thread that waits. */
struct request {
  struct list link; /* peer->requests */
  struct haul_peer *peer;
  uint32_t id; /* 0: not sent */
  bool done;
  int code;
  /* Parses the body of the response, with the loop's lock: 0 or a code with the detail set. A body
   * that it leaves unread or that is too short, and HAUL_EPROTO, drop the peer. */
  int (*parse)(struct request *request, struct wire *in);
  struct haul_error error;
};

/* 0, or HAUL_EPROTO for a wrong magic, type or length. */
int control_parse(const uint8_t head[CONTROL_HEAD], struct control_frame *frame);

/* Queues a frame and sends what the socket takes; from any thread, never blocks. HAUL_EPEER or
 * HAUL_ENOMEM; without memory for a frame that the peer waits for, the peer fails. */
int control_send(struct haul_peer *peer, enum control_type type, uint32_t request, const void *body,
                 size_t length);
/* The same for a message; with send_lock. */
int control_send_message(struct haul_peer *peer, uint64_t tag, const void *bytes, size_t length);
/* Sends a request and waits for its response; without locks. Returns what `parse` returned,
 * HAUL_ETIMEDOUT, HAUL_ECLOSED or the reason why the peer ended. */
int control_request(struct request *request, enum control_type type, const void *body,
                    size_t length, haul_deadline until);

/* struct link's `request_channels` and `refuse_channels`. */
int control_request_channels(struct link *link, const struct transport *transport);
void control_refuse_channels(struct link *link, const struct transport *transport, int code,
                             const char *reason);
/* Tells the acceptor that its channels are open, or are opened on demand. */
int control_send_ready(struct haul_peer *peer);

/* Handlers of peers' requests, with the loop's lock: of published regions (regions.c), of
 * statistics and trace events (stats.c). They read the request from `in` and write the response, of
 * at most CONTROL_BODY_MAX bytes, to `out`. A request that they leave unread, or that is too short,
 * drops the peer. */
void regions_serve_lookup(struct haul_peer *peer, struct wire *in, struct wire *out);
void regions_serve_list(struct haul_peer *peer, struct wire *in, struct wire *out);
void stats_serve(struct haul_peer *peer, struct wire *in, struct wire *out);
void trace_serve(struct haul_peer *peer, struct wire *in, struct wire *out);

/* With the loop's lock. Reads and handles frames for at most a millisecond; the rest is handled
 * in the peer's next turn (peer->frames_deferred). May drop the peer. */
void control_receive(struct haul_peer *peer);
/* With send_lock: sends queued frames; frees them. */
void control_flush(struct haul_peer *peer);
void control_clear(struct haul_peer *peer);
/* With the loop's lock: closes the connection from this side step by step. Sends what is queued,
 * then GOODBYE. True once the peer may be dropped; never over TCP, where the peer closes first, or
 * peer.c drops it after a quarter of the liveness timeout. */
bool control_close(struct haul_peer *peer);
/* Whether frames are queued and the peer took none of their bytes for the liveness timeout. */
bool control_is_stalled(struct haul_peer *peer);

#endif
