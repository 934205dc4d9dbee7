/* SPDX-License-Identifier: MIT
 * Frames to send, and the pump that sends them. Everything here holds the endpoint's lock unless it
 * says otherwise. */
#ifndef HAUL_FABRIC_TCP_SEND_H
#define HAUL_FABRIC_TCP_SEND_H

#include "fabric/devcopy.h"
#include "fabric/tcp/payload.h"
#include "fabric/tcp/tcp.h"

/* Payload bytes in a rail's queue from which on works stay pending, where one of a better rank
 * passes them: enough to keep the socket busy. */
#define TCP_QUEUE 2097152u

/* Splicing costs SPLICE_NS (pipe, vmsplice, splice) however many pages there are; copying costs
 * time for each byte. So splicing pays from some size on: bench/run tcp-write. */
#define SPLICE_NS      5400.0
#define SPLICE_SEGMENT 4096u /* least average segment: a pipe holds pages */

/* A frame on its way out. */
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

/* Sending state of a rail. */
struct rail_tx {
  struct list queue;   /* tx_frames; the first is being sent */
  uint64_t queued;     /* payload bytes in it */
  bool fresh;          /* a frame was queued since the last pump */
  size_t share;        /* bytes that one call, and one turn, sends at most */
  size_t turn;         /* bytes of this turn */
  _Atomic bool unsent; /* the pump has something left to do; to look without the lock */
  int pipe[2];         /* for splicing; -1: none */
  size_t in_pipe;
  bool may_splice;
  bool corked;   /* the socket may hold back what it took until more follows */
  int64_t moved; /* when the socket last took bytes */
  struct running_checksum checksum;
};

/* Whether pages of the memory may be spliced (send.c says why): haul allocated them, or a file. */
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
struct tx_frame *tx_data(const struct frame *request, const struct frame_segment *segments,
                         struct haul_region *region);
/* The DATA of an atomic operation. The old value goes to the eight bytes at TX_OLD_VALUE of the
 * head: the region's own may have changed by the time it is sent. */
#define TX_OLD_VALUE FRAME_HEADER
struct tx_frame *tx_atomic_data(uint64_t request);

/* Queues on the frame's rail, by way of a bounce buffer where it needs one. tcp_advance is to
 * follow. */
void tx_submit(struct tx_frame *frame);
/* Queues on the frame's rail as it is. tcp_advance is to follow. */
void tx_enqueue(struct tx_frame *frame);
/* Takes it out of its list. */
void tx_unqueue(struct tx_frame *frame);
/* Unlinks and frees it. */
void tx_drop(struct tx_frame *frame);
/* The work or the region behind the frame is gone: no byte of it is sent from now on. True when
 * nothing was sent, and the frame is freed; else zeros follow, and the trailer says `status`. */
bool tx_abort(struct tx_frame *frame, int32_t status);
/* A DATA frame cannot be sent: an ACK that rejects the request takes its place, or its trailer says
 * so. */
void tx_reject(struct tx_frame *frame, int32_t status);
/* The source of a WRITE or DATA frame cannot be read; the thread's error detail says why. */
void tx_fail(struct tx_frame *frame, int code);
/* Queues a response. NULL, for want of memory: the link fails, as the peer would wait for ever. */
void tx_respond(struct tcp_rail *rail, struct tx_frame *frame);

/* Sends what the queue holds, up to the rest of the rail's share, and leaves the socket corked
 * where more follows. Only tcp_advance calls it. */
void rail_pump(struct tcp_rail *rail);
void rail_uncork(struct tcp_rail *rail);
/* Whether the system splices pages here: 0, or the errno. Without the lock. */
int tcp_probe_splice(void);

#endif
