/* SPDX-License-Identifier: MIT
 * This process's end: what the files of this folder share.
 *
 *   node.c       open, close, progress
 *   listen.c     listeners, and connections whose handshake is not over
 *   handshake.c  the first bytes of a connection, packed and parsed
 *   peer.c       connecting, dropping, liveness
 *   control.c    frames on the control connection
 *   names.c      publishing, looking up, listing
 *   message.c    messages and events
 *   regions.c    the public calls on regions
 *   info.c       devices, checks, counters
 *   stats.c      what the node is doing, for this process and for peers
 *   trace.c      what happens when, for the same
 *   directory.c, register.c  names in etcd: see directory.h
 *
 * Locks, in the order in which they are taken: the loop's; a peer's `send_lock`; the node's
 * `inbox_lock`. The loop's guards all that has no other lock named. */
#ifndef HAUL_NODE_NODE_H
#define HAUL_NODE_NODE_H

#include <pthread.h>

#include "core/stream.h"
#include "fabric/exports.h"
#include "node/handshake.h"
#include "transfer/transfer.h"

#define CONTROL_HEAD     16u
#define CONTROL_BODY_MAX 8192u      /* of every frame but a message */
#define CONTROL_QUEUE    262144u    /* bytes of answers that a peer may leave unread */
#define MESSAGE_COST     64u        /* what a message counts besides its bytes */
#define WINDOW_MAX       (1u << 30) /* of a peer's messages, whatever it says */
/* The largest message must fit although up to a quarter of the window is not told back yet. */
#define MESSAGE_WINDOW_LEAST ((size_t)(HAUL_MESSAGE_MAX + MESSAGE_COST) * 4 / 3 + 1)

struct control_frame {
  uint16_t type;
  uint32_t length, request;
};

enum control_type {
  CONTROL_READY = 1, /* the initiator's channels are made */
  CONTROL_PING = 2,  /* request: PING_ASKS for one in return, or 0 */
  CONTROL_GOODBYE = 3,
  CONTROL_LOOKUP = 4,  /* name */
  CONTROL_FOUND = 5,   /* status i32; handle, length, place, rights */
  CONTROL_LIST = 6,    /* name to go on behind */
  CONTROL_NAMES = 7,   /* total u32, count u16; entries */
  CONTROL_MESSAGE = 8, /* tag u64; bytes */
  CONTROL_CREDIT = 9,  /* u32 bytes that were taken out of the inbox */
  CONTROL_STATS = 10,  /* u64: the peer's number to go on behind */
  CONTROL_STATE = 11,  /* i32 status; the node's, and peers': stats.c */
  CONTROL_TRACE = 12,  /* u64: the number of the first event, u16: how many */
  CONTROL_TRACED = 13  /* i32 status; clock, next, lost, events: trace.c */
};
#define CONTROL_LAST CONTROL_TRACED

#define PING_ASKS 1u

/* A frame that waits to be sent. */
struct outgoing {
  struct list link;
  size_t length, sent;
  bool answer; /* counts against CONTROL_QUEUE */
  uint8_t bytes[];
};

/* Somebody waits for the peer's answer. Lives on the asker's stack. */
struct request {
  struct list link; /* peer->requests */
  struct haul_peer *peer;
  uint32_t id;
  bool done;
  int code;
  /* Reads the answer's body; with the loop's lock. */
  int (*take)(struct request *request, const uint8_t *body, size_t length);
  struct haul_error error;
};

struct incoming {
  struct list link; /* node->inbox */
  int kind;
  struct haul_peer *peer; /* a use */
  uint64_t tag;
  size_t length;
  uint8_t bytes[];
};

struct haul_peer {
  struct link base;       /* what transports see; first */
  struct haul_node *node; /* a reference */
  struct list list;       /* node->peers, while it is connected; base.number grows along it */
  _Atomic uint32_t refs;  /* of the memory */
  _Atomic uint32_t uses;  /* the application's: handles, remotes, messages */
  bool ready;             /* the JOINED event was queued, or it is the initiator's side */
  uint8_t token[16];
  char companion[64];
  struct address address; /* initiator: to dial more */
  char address_text[160];
  /* Its events until they are queued; NULL: not wanted. */
  struct incoming *joined, *left;

  pthread_mutex_t doom_lock; /* the two below */
  int doom;                  /* link.fail was called: drop it */
  char doom_reason[192];
  _Atomic bool doomed;
  _Atomic int64_t pathless_at; /* link.leaves was called then; 0: it was not */
  int64_t goodbye_at;          /* this side said it then; 0: it did not. The loop's lock */
  bool said_all;               /* and the peer was told that nothing follows; likewise */

  /* Receiving. */
  struct stream stream;
  struct watch watch;
  struct timer timer;
  uint8_t inbox[CONTROL_HEAD + CONTROL_BODY_MAX];
  size_t inbox_length;
  bool unheard;             /* frames in it wait for the peer's next turn; the loop's lock */
  struct incoming *message; /* being received */
  size_t message_got;
  struct list requests;
  uint32_t next_request;
  size_t unread;     /* bytes and costs of its messages in the inbox; inbox_lock */
  size_t credit_due; /* taken out and not told yet; inbox_lock */
  unsigned queued;   /* its messages and events in the inbox; inbox_lock */
  bool departed;     /* it left with some of them there; inbox_lock */
  char origin[48];   /* the address that it connected from, without the port; "": a Unix socket */
  uint64_t *told;    /* names.c: handles that it looked up; the loop's lock */
  uint32_t told_count;

  /* Sending. */
  pthread_mutex_t send_lock; /* the rest */
  struct list outgoing;
  size_t answers; /* bytes of answers in it */
  size_t credit;  /* bytes of messages that the peer has room for */
  int64_t sent_at;
  int64_t moved_at; /* when the socket last took bytes, or there was nothing to take */
  bool closed;      /* the connection is closed */
};

struct listener {
  struct list link;
  struct haul_node *node;
  struct watch watch;
  struct timer timer; /* while nobody is accepted */
  struct address address;
  int fd;
  bool companion; /* takes channels only */
};

struct haul_node {
  _Atomic uint32_t refs; /* the opener, peers, calls that wait */
  _Atomic bool closing;
  struct haul_node_config config;
  char name[64];
  struct tls_context *tls; /* NULL: this node has neither key nor certificate */
  struct loop *loop;
  struct heap *heap;
  struct exports *exports;
  struct fabric fabric;
  struct transfers transfers;
  bool has_transfers;
  pthread_t thread;
  bool has_thread;
  char companion[64]; /* the abstract socket's name; empty when there is none */
  struct list listeners, handshakes, peers;
  unsigned handshake_count, proving, peer_count;
  uint64_t last_number; /* of a peer; the loop's lock */
  int64_t opened_at;
  bool unheard;         /* some peer is, below; the loop's lock */
  struct poller poller; /* drops what is to be dropped */
  _Atomic bool keeps;   /* imports without a user: `expiry` is to be set */
  struct timer expiry;
  struct timer watched; /* until nobody asks for events any more */
  pthread_mutex_t inbox_lock;
  struct list inbox;
  unsigned departed;              /* peers that left and have something in the inbox; inbox_lock */
  char *login;                    /* at directories: the file's text; NULL: none is wanted there */
  pthread_mutex_t directory_lock; /* the rest; nothing is locked while it is held */
  struct list directories;        /* directory.c: connections that are kept */
  unsigned idle_directories;
  struct registration *registration, *registering; /* register.c */
};

#define MESSAGE_WINDOW(node) ((uint32_t)(node)->config.message_window)

/* Requests of a MiB that a peer may have unanswered here. */
static inline uint16_t node_window(const struct haul_node *node) {
  size_t requests = node->config.peer_bytes >> 20;
  return (uint16_t)(requests < REQUESTS_MAX ? requests : REQUESTS_MAX);
}

void node_retain(struct haul_node *node);
void node_put(struct haul_node *node);
bool node_is_closed(struct haul_node *node);
/* error_enter, and HAUL_EINVAL for no node. */
int node_enter(const char *call, const struct haul_node *node);

/* listen.c; with the loop's lock. */
int listen_on(struct haul_node *node, struct address *address, bool companion);
void listen_stop(struct haul_node *node);
/* Of the listener with this number; without locks. False: there are fewer. */
bool listener_address(struct haul_node *node, size_t index, char *text, size_t size);
void listen_forked(struct haul_node *node); /* in a forked child: closes descriptors, no more */

/* peer.c; with the loop's lock unless it says otherwise. */
/* Takes the stream on success. */
struct arrival {
  const uint8_t *boot; /* 16 bytes */
  const char *name;
  bool local, loopback;
  uint32_t message_window;
  uint16_t window;
};
int peer_new(struct haul_node *node, const struct stream *stream, const struct arrival *arrival,
             struct haul_peer **peer);
int peer_start(struct haul_peer *peer);
/* Connects, without locks: an unstarted peer. `id` NULL, or the node that it has to be. */
int peer_reach(struct haul_node *node, const char *address, const uint8_t *id, haul_deadline until,
               struct haul_peer **peer);
void peer_drop(struct haul_peer *peer, int code, const char *reason);
int peer_check(struct haul_peer *peer);  /* 0, or why it is gone; any time */
void peer_ref(struct haul_peer *peer);   /* any time */
void peer_unref(struct haul_peer *peer); /* any time */
void peer_fail(struct haul_peer *peer, int code, const char *reason); /* any time */
/* For the node's log; any time. `code` 0: none. */
void peer_log(const struct haul_peer *peer, enum log_event event, int code, const char *reason);
struct haul_peer *peer_by_token(struct haul_node *node, const uint8_t token[16]);

/* control.c */
int control_parse(const uint8_t head[CONTROL_HEAD], struct control_frame *frame);
void control_receive(struct haul_peer *peer); /* with the loop's lock */
/* Queues and sends; any time. HAUL_EPEER, HAUL_ENOMEM: then the peer is dropped if it waits for the
 * frame. `tag` goes before the bytes of a message. */
int control_send(struct haul_peer *peer, enum control_type type, uint32_t request, const void *body,
                 size_t length);
int control_send_message(struct haul_peer *peer, uint64_t tag, const void *bytes, size_t length);
void control_pump(struct haul_peer *peer);  /* with send_lock */
void control_clear(struct haul_peer *peer); /* with send_lock */
/* Whether frames wait to be sent, and the peer still takes some. */
bool control_lingers(struct haul_peer *peer);
/* Sends what waits, then the goodbye; true when the peer may be dropped. Over TCP that is never:
 * the peer's end of the connection drops it, or the bound (peer.c). With the loop's lock. */
bool control_takes_leave(struct haul_peer *peer);
/* Whether frames wait, and the peer took nothing of them for the liveness bound. */
bool control_stalls(struct haul_peer *peer);
/* Asks and waits for the answer; without locks. */
int control_request(struct request *request, enum control_type type, const void *body,
                    size_t length, haul_deadline until);

/* names.c; with the loop's lock. 0 or HAUL_EPROTO. */
int names_on_lookup(struct haul_peer *peer, uint32_t request, const uint8_t *body, size_t length);
int names_on_list(struct haul_peer *peer, uint32_t request, const uint8_t *body, size_t length);
/* Takes every name of the region back; without locks. */
void names_withdraw(struct haul_node *node, struct haul_region *region);

/* stats.c; with the loop's lock. 0 or HAUL_EPROTO. */
int stats_on_request(struct haul_peer *peer, uint32_t request, const uint8_t *body, size_t length);
/* Who may be told; and that the peer says this side may not be: HAUL_EACCESS. */
bool stats_may_observe(const struct haul_peer *peer);
int stats_refused(const struct haul_peer *peer);

/* trace.c; with the loop's lock. 0 or HAUL_EPROTO. */
int trace_on_request(struct haul_peer *peer, uint32_t request, const uint8_t *body, size_t length);
/* A timer's, three seconds after the last question: the recording ends. */
void trace_expire(struct timer *timer);

/* message.c */
/* A peer's events are made with the peer, so that none is lost for want of memory. */
int message_make_events(struct haul_peer *peer);
void message_free_events(struct haul_peer *peer);
/* Queues one of the two, where the application wants events. */
void message_event(struct haul_peer *peer, struct incoming **event);
/* The peer left. Until what it sent is taken out it counts as a peer: the memory of those that
 * come, send and go is bounded as that of those that stay. */
void message_departed(struct haul_peer *peer);
unsigned message_departed_count(struct haul_node *node);
/* A message of `length` bytes begins: NULL for want of memory, with *code; or when the peer exceeds
 * its window, with HAUL_EPROTO. */
struct incoming *message_begin(struct haul_peer *peer, uint64_t tag, size_t length, int *code);
void message_queue(struct haul_peer *peer, struct incoming *message);
void message_clear(struct haul_node *node);

#endif
