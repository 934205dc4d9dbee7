/* SPDX-License-Identifier: MIT
 * A rail, one data connection of an endpoint: its life, and its sending and receiving halves. */
#ifndef HAUL_FABRIC_TCP_RAILS_H
#define HAUL_FABRIC_TCP_RAILS_H

#include <signal.h>

#include "fabric/tcp/payload.h"
#include "fabric/tcp/tcp.h"

/* Payload bytes in a rail's queue that keep its socket busy. Beyond them works stay pending, where
 * works of a better rank can overtake. */
#define TCP_QUEUE 2097152u

/* Splicing costs SPLICE_NS (pipe, vmsplice, splice) for any number of pages; copying costs time for
 * each byte. So splicing pays from some size on: bench/run tcp-write. */
#define SPLICE_NS      5400.0
#define SPLICE_SEGMENT 4096u /* least average segment: a pipe holds pages */

/* Bytes for heads and small payloads; more than FRAME_HEAD_MAX. A read of a head takes TCP_AHEAD
 * bytes of a large payload at most: they are copied once more. */
#define TCP_INBOX 32768u
#define TCP_AHEAD 8192u

/* A frame to send. */
struct tx_frame {
  struct list link; /* the rail's queue, or the endpoint's staged_sends */
  struct tcp_rail *rail;
  uint64_t request;
  uint8_t type;           /* enum frame_type */
  bool queued;            /* in the rail's queue */
  bool splice;            /* the payload is passed by reference */
  bool summed;            /* tx.checksum accumulates its checksum as it is sent */
  struct tcp_slot *slot;  /* a request's: until it was sent whole or abandoned */
  uint64_t handle;        /* DATA: of the export that is read */
  uint64_t sent;          /* bytes of the whole frame that the socket took */
  struct payload payload; /* WRITE, DATA; its region is a reference for DATA */
  struct devcopy copy;    /* source to bounce buffer */
  uint8_t trailer[FRAME_TRAILER];
  uint8_t *head; /* the header, then segments on the wire or an inline value; behind `segments` */
  uint32_t head_length;
  struct frame_segment segments[]; /* of the source */
};

/* A rail's sending half; the endpoint's lock. */
struct rail_tx {
  struct list queue;   /* tx_frames; the first is being sent */
  uint64_t queued;     /* payload bytes in it */
  bool fresh;          /* a frame was queued since the last pump */
  bool used;           /* ever */
  size_t share;        /* most bytes of one call and of one turn */
  size_t turn;         /* bytes of this turn */
  _Atomic bool unsent; /* the pump has bytes left to send; for a look without the lock */
  int pipe[2];         /* for splicing; -1: none */
  size_t in_pipe;
  bool may_splice;
  bool masked;   /* this pump blocked SIGPIPE */
  sigset_t mask; /* before that */
  bool calm;     /* no urgent frames: a larger `share`, and no limit of the socket's unsent bytes */
  bool corked;   /* the socket may hold bytes back until more follow */
  int64_t moved; /* when the socket last took bytes */
  struct running_checksum checksum;
};

enum rx_state { RX_HEAD, RX_PAYLOAD, RX_TRAILER };

/* A rail's receiving half; the loop's lock. */
struct rail_rx {
  enum rx_state state;
  bool blocked; /* waits for a bounce buffer and watches no event; both locks to change */
  uint8_t inbox[TCP_INBOX];
  size_t inbox_start, inbox_end;
  struct frame frame;
  struct frame_segment segments[FRAME_SEGMENTS_MAX]; /* also takes discarded bytes */
  struct payload payload; /* its region: WRITE: a reference; DATA: the work's; NULL: discarded */
  int status;             /* of a discarded payload: for its sender or its work */
  struct work *work;      /* DATA */
  uint64_t left;          /* payload bytes to come */
  bool summed;            /* `checksum` accumulates this payload's */
  struct running_checksum checksum;
  int64_t moved; /* when bytes last came */
  unsigned idle_polls;
};

enum rail_parking {
  RAIL_IN_USE,
  RAIL_ASKED, /* PARK was sent, and its answer has not come */
  RAIL_PARKED /* PARKED was sent, or has come: the end of the stream is normal */
};

struct tcp_rail {
  struct tcp_endpoint *endpoint;
  unsigned index;
  struct stream stream;      /* fd -1: closed */
  _Atomic bool broken;       /* the socket failed; the loop will close the rail */
  enum rail_parking parking; /* both locks to change */
  uint32_t outstanding;      /* requests of the peer; the endpoint's lock */
  uint64_t expected;         /* payload bytes of unanswered READs; the endpoint's lock */
  struct watch watch;
  struct rail_tx tx;
  struct rail_rx rx;
};

/* The one after `rail`, the first one for NULL; NULL past the last. */
static inline struct tcp_rail *rail_after(const struct tcp_endpoint *endpoint,
                                          const struct tcp_rail *rail) {
  for (unsigned i = rail ? rail->index + 1 : 0; i < TCP_RAILS; i++)
    if (endpoint->rails[i])
      return endpoint->rails[i];
  return NULL;
}

#define each_rail(rail, endpoint)                                                                  \
  for (struct tcp_rail *rail = NULL; (rail = rail_after((endpoint), rail));)

static inline bool rail_is_open(const struct tcp_rail *rail) {
  return rail->stream.fd >= 0 && !rail->broken;
}

/* Whether works may start on it; with a lock. */
static inline bool rail_takes_works(const struct tcp_rail *rail) {
  return rail_is_open(rail) && rail->parking == RAIL_IN_USE;
}

/* rails.c: with the loop's lock unless stated otherwise */

/* Takes over the stream, also on failure. */
int rail_open(struct tcp_endpoint *endpoint, unsigned index, struct stream stream);
/* Ends the rail's works with `code` and drops its responses. An outstanding request that modifies
 * memory and was begun fails the peer: the peer may still read those bytes, which must not
 * overwrite a later write of another path. */
void rail_close(struct tcp_rail *rail, int code);
void rail_free(struct tcp_rail *rail); /* closed, or NULL */
/* In a forked child: closes the descriptors and accesses nothing else. */
void rail_forked(struct tcp_rail *rail);
/* Tells the loop the rail's events. With the endpoint's lock. */
void rail_watch(struct tcp_rail *rail);
/* Serves the express rail in the middle of this rail's turn. */
void rail_serve_express(const struct tcp_rail *rail);
/* A poller's round; true when bytes came. */
bool rail_poll(struct tcp_rail *rail, int64_t spin_ns);
/* Whether rail_poll has nothing to do before the rail's next event. */
bool rail_is_idle(const struct tcp_rail *rail, int64_t spin_ns);
/* Fails the peer when it has stopped within a frame, or has not read, for `bound` ns. A peer that
 * is silent altogether is dropped as such (node/peer.c). */
void rail_check_stall(struct tcp_rail *rail, int64_t now, int64_t bound);

/* send.c: with the endpoint's lock unless stated otherwise */

/* Whether pages of the memory may be spliced (splice.c says why): haul allocated them, or a file.
 */
static inline bool tcp_may_splice(const struct memory *memory) {
  return memory->view && !memory->wrapped && !memory->imported && !memory->provider->recycles;
}

static inline bool tx_is_response(const struct tx_frame *frame) {
  return frame->type == FRAME_ACK || frame->type == FRAME_DATA;
}

/* New frames; NULL with the detail. DATA responds to a request whose source was checked, and takes
 * over the reference to the region. */
struct tx_frame *tx_request(const struct work *work, uint64_t request);
struct tx_frame *tx_ack(uint64_t request, int32_t status);
struct tx_frame *tx_parking(enum frame_type type);
struct tx_frame *tx_data(const struct frame *request, const struct frame_segment *segments,
                         struct haul_region *region);
/* The DATA of an atomic operation. Its old value, 8 bytes, is in the head at TX_OLD_VALUE, as the
 * region's may have changed by the time of sending. */
#define TX_OLD_VALUE FRAME_HEADER
struct tx_frame *tx_atomic_data(uint64_t request);

/* Queues on the frame's rail, through a bounce buffer where needed; the caller then calls
 * tcp_advance. */
void tx_submit(struct tx_frame *frame);
/* Queues on the frame's rail as it is; the caller then calls tcp_advance. */
void tx_enqueue(struct tx_frame *frame);
void tx_unqueue(struct tx_frame *frame);
/* Unlinks and frees it. */
void tx_drop(struct tx_frame *frame);
/* The frame's work or region is gone: none of its bytes is sent from now on. True when nothing was
 * sent, and the frame is freed; else zeros follow, and `status` in the trailer. */
bool tx_abort(struct tx_frame *frame, int32_t status);
/* A DATA frame cannot be sent: an ACK replaces it, or its trailer carries the status. */
void tx_reject(struct tx_frame *frame, int32_t status);
/* The source of a WRITE or DATA frame cannot be read, for the reason in the thread's detail. */
void tx_fail(struct tx_frame *frame, int code);
/* Queues a response. NULL, for lack of memory, fails the link: the peer would wait for ever. */
void tx_respond(struct tcp_rail *rail, struct tx_frame *frame);

/* Sends from the queue up to the rest of the rail's share, and leaves the socket corked where more
 * follows. Only tcp_advance calls it. */
void rail_pump(struct tcp_rail *rail);
void rail_uncork(struct tcp_rail *rail);

/* The payload's next bytes are passed by reference. */
static inline bool tx_is_spliced(const struct tx_frame *frame) {
  const struct rail_tx *tx = &frame->rail->tx;
  return frame->splice && tx->may_splice && !frame->rail->endpoint->trial.copies;
}

static inline uint64_t tx_payload_end(const struct tx_frame *frame) {
  return frame->head_length + frame->payload.length;
}

/* The kernel took these bytes of the payload. */
void tx_move_cursor(struct tx_frame *frame, uint64_t bytes);

/* splice.c: with the endpoint's lock unless stated otherwise */

/* Splices payload of the first frame, and what the pipe still holds, to the socket; returns as
 * splice(2). EINTR: none of either; the rest is copied. */
ssize_t tx_send_pages(struct tcp_rail *rail, struct tx_frame *frame);
/* Sockets took these bytes at `now`; requests were unanswered all the time since `began`. */
void splice_trial_count(struct splice_trial *trial, uint64_t bytes, int64_t now);
/* Ends a trial without a result. */
void splice_trial_abandon(struct splice_trial *trial);
/* Whether the system splices pages here: 0, or the errno. Without the lock. */
int tcp_probe_splice(void);

/* park.c: with the loop's lock unless stated otherwise */

/* Initiator: asks to park the rails if they have been idle for long enough. */
void tcp_park_if_idle(struct tcp_endpoint *endpoint, int64_t now);
/* A frame PARK, PARKED or UNPARKED came. */
void rail_on_parking(struct tcp_rail *rail);
/* The rail ended and was not parked; with both locks. */
void rail_parking_lost(struct tcp_rail *rail);
/* Frees the rails if all are closed, and some were parked. No rail is in use by the caller. */
void tcp_free_rails(struct tcp_endpoint *endpoint);

/* receive.c: with the loop's lock */

/* Reads until the socket is empty or a budget is used up; true when bytes came. */
bool rail_receive(struct tcp_rail *rail);
/* Its payload waits for a bounce buffer. */
bool rail_awaits_bounce(const struct tcp_rail *rail);
/* Reads and drops the rest of the payload; `status` is for the sender or the work. */
void rail_discard_payload(struct tcp_rail *rail, int status);
/* Fails the link for a broken protocol or lack of memory; the rail stops reading. With or without
 * the endpoint's lock. */
void rail_fail(struct tcp_rail *rail, int code, const char *reason);
/* Checks a payload at its destination. `checksum`: the accumulated one, or NULL. 0 or a code with
 * the detail. */
int payload_verify(const struct payload *payload, const struct frame *frame,
                   const struct frame_trailer *trailer, const struct running_checksum *checksum);
/* Answers the WRITE, or ends the READ's work, with the code. */
void payload_complete(struct tcp_rail *rail, const struct frame *frame, int code);
/* Keeps further bytes for the work out of its memory. */
void receive_detach(struct tcp_endpoint *endpoint, const struct work *work);
/* Keeps further bytes for the export out of its memory. */
void receive_revoke(struct tcp_endpoint *endpoint, uint64_t handle);

#endif
