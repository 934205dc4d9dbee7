/* SPDX-License-Identifier: MIT
 * The `tcp` transport. An endpoint's data connections are its rails; the express rail is an extra
 * one for works of the best rank. Payload goes from the source buffer to the socket, and from the
 * socket to its final address. Over a Unix control channel the rails are Unix sockets too.
 *
 *   frame.c     the wire format
 *   payload.c   segments, checksums; bounce buffers for device memory, in both directions
 *   tcp.c       the transport's table; works, and the slots of outstanding requests
 *   send.c      frames to send, and the pump that sends them
 *   splice.c    large payloads, sent by reference to their pages
 *   receive.c   the state machine that reads a rail, and the handlers of its frames
 *   rails.c     the life of a rail: opened, watched, polled, closed
 *   dial.c      when rails are opened, and by whom
 *   park.c      idle rails are closed, by agreement
 *   estimate.c  cost estimates, and checks of this host
 *
 * Locks: the combiner's lock, "the endpoint's lock", guards the sending side: slots, pending works,
 * the rails' `tx`, staged sends. It is taken after the loop's lock, which is never taken while it
 * is held. Receiving holds the loop's lock, and takes the endpoint's to queue a response or end a
 * work. A thread that posts a work never waits for either. */
#ifndef HAUL_FABRIC_TCP_TCP_H
#define HAUL_FABRIC_TCP_TCP_H

#include "core/combiner.h"
#include "fabric/transport.h"
#include "fabric/work_batch.h"
#include "memory/staging.h"

#define TCP_RAILS_MAX 16
#define TCP_EXPRESS   TCP_RAILS_MAX /* the index of the express rail */
#define TCP_RAILS     (TCP_RAILS_MAX + 1)
#define TCP_WINDOW    REQUESTS_MAX /* most outstanding requests of one side */
/* Most bytes of one system call, and most bytes that a rail sends before it releases the lock and
 * serves the express rail. Sends are a page shorter than loopback's segments of 64 KiB, so that a
 * call does not end with a few bytes of a further segment. TCP_UNSENT: most bytes that a socket of
 * loopback holds unsent. While no urgent work has passed for TCP_CALM_NS calls are TCP_CALM_…
 * times as large, and the socket holds all that the system lets it: this saves a quarter of the
 * processors' time (docs/measured.md), and delays the first urgent work by one such call. */
#define TCP_SENDS         61440u
#define TCP_RECEIVES      65536u
#define TCP_UNSENT        32768
#define TCP_CALM_SENDS    16u
#define TCP_CALM_RECEIVES 8u
#define TCP_CALM_NS       INT64_C(100000000)

/* A batch is sent at this number of works, or of bytes: 16 works of 4 KiB, or 64 KiB, make calls
 * that cost more than their bytes (docs/measured.md). */
#define TCP_BATCH       32u
#define TCP_BATCH_BYTES 524288u
/* Reads, and works of at most TCP_SHARED bytes, share a call while TCP_BUSY others are unanswered:
 * a work of 64 KiB alone would end with a segment of a few bytes. The receiver takes several frames
 * of at most TCP_SMALL bytes with one call. Works of TCP_SPREAD bytes and more take the rail with
 * the least load. */
#define TCP_SHARED 131072u
#define TCP_SMALL  8192u
#define TCP_SPREAD 65536u
#define TCP_BUSY   8u

struct tcp_rail;
struct tx_frame;

/* A request of this side without its response; the endpoint's lock. */
struct tcp_slot {
  struct work *work;      /* NULL: free (not `busy`), or the work has ended early */
  struct tcp_rail *rail;  /* that carries the request, and its response */
  struct tx_frame *frame; /* NULL once it was sent whole */
  uint64_t expected;      /* payload bytes of a READ */
  uint32_t generation;    /* upper half of the request's number: no response matches a later use */
  bool busy;
  bool modifies;     /* changes the peer's memory: a WRITE or an atomic */
  bool abandoned;    /* it does, and its work ended after it was begun: it may still land */
  bool data_started; /* its DATA is arriving: no second response is accepted */
  bool spliced;      /* pages of its source were spliced (splice.c) */
};

/* The opening of rails; the loop's lock. */
struct tcp_dial {
  bool active;     /* a dial or the pause after one; acceptor: the peer was asked */
  bool asked;      /* the peer has works that wait */
  bool all;        /* no rail was open: lost ones are dialed, too */
  unsigned next;   /* the rail to dial; the one past the last is the express rail */
  int64_t until;   /* no attempt begins after it */
  int64_t pause;   /* after the next failure */
  unsigned checks; /* acceptor: since the peer was asked */
  struct timer timer;
  _Atomic bool due; /* works wait for the first rail; from any thread */
};

/* Whether to splice or to copy on one host, found by trials in turn (splice.c). */
struct splice_trial {
  bool copies;           /* in this trial; else it splices */
  bool copy_wins;        /* by the trials until now */
  double ns_per_byte[2]; /* by `copies`: mean, of which the last trial is half; 0: none */
  int64_t began;         /* this trial; 0: the next bytes begin it */
  int64_t from;          /* when its measured part began */
  uint64_t bytes;        /* since then */
  unsigned ended;        /* trials of the faster way since one of the slower */
  unsigned patience;     /* as many, until the slower is tried again */
};

struct tcp_endpoint {
  struct endpoint base;
  struct combiner combiner;          /* the endpoint's lock; submitted works */
  struct tcp_rail *rails[TCP_RAILS]; /* allocated when first opened; both locks to change */
  unsigned rail_count;               /* allocated, without the express rail; no gaps */
  _Atomic unsigned open_rails;       /* not parked; without the express rail */
  _Atomic unsigned rails_expected;   /* the same, once those that are wanted are open */
  _Atomic int protection;            /* enum protection, of the rails */
  size_t splice_min;                 /* payload bytes from which on pages are spliced; constant */
  double link_speed;                 /* bytes/ns of the interface, 0: unknown; constant */
  struct work_batch work_batch;      /* submitted works that are not admitted yet */
  struct poller poller;
  struct timer stall;
  struct tcp_dial dial;

  /* The endpoint's lock. */
  struct backlog pending; /* works that wait for a slot, for room on a rail, or for `abandoned` */
  struct tcp_slot *slots; /* TCP_WINDOW; allocated with the first rail */
  _Atomic uint32_t busy_slots; /* for a look without the lock */
  uint32_t next_slot;
  /* Abandoned slots, and rails that ended with begun requests. Until it is 0 no work begins here,
   * nor a write over another path, as it could be overwritten. */
  uint32_t abandoned;
  struct splice_trial trial;
  struct list staged_sends; /* tx_frames whose source waits for, or is copied to, a bounce buffer */
  struct staging_user tx_staging;

  /* Both locks to change. */
  unsigned asking;  /* rails whose answer to PARK has not come: no dial begins */
  unsigned retired; /* rails that were closed because they were parked */
  bool had_rails;

  /* The loop's lock. */
  bool slots_freed; /* by responses of the current read */
  struct list staged_receives;
  struct staging_user rx_staging;
};

/* Starts pending works and pumps the rails with new frames, until neither makes room for the other;
 * each rail sends at most its share. With the endpoint's lock, after a slot was freed or a frame
 * queued. `returns`, which may be NULL, is pumped in any case. True: it has more to send than its
 * share and is still corked; the caller calls again at once or uncorks it. */
bool tcp_advance(struct tcp_endpoint *endpoint, struct tcp_rail *returns);

/* Starts the works that wait for slots which the responses of one read freed, so that they share
 * calls. Responses of this side wait for the pump after the read. With the loop's lock. */
void tcp_use_slots(struct tcp_endpoint *endpoint);

/* The request's DATA begins, once, on the request's rail. *work: NULL when the work ended early.
 * False: no request waits for it. With the loop's lock. */
bool slot_start_data(struct tcp_rail *rail, uint64_t request, struct work **work);
/* The request was answered on this rail; `data`: by DATA, now complete. Frees the slot. The caller
 * ends *work, unless it is NULL because it ended early, and then calls tcp_use_slots. False:
 * no such request waits. With the loop's lock. */
bool slot_complete(struct tcp_rail *rail, uint64_t request, bool data, struct work **work);
/* The request's work ends early: unsent bytes are never sent; if any were sent, the slot still
 * awaits the response. Returns the work for the caller to end, or NULL when it ended before. With
 * the endpoint's lock; the caller then calls tcp_advance. */
struct work *slot_abandon(struct tcp_endpoint *endpoint, struct tcp_slot *slot, int code);
/* The rail ends: frees its slots and moves their works to `works`. True: a begun request modifies
 * the peer's memory, and `abandoned` counts the rail from now on. With the endpoint's lock. */
bool slots_drop(struct tcp_rail *rail, struct list *works);

/* The next look for rails that stall or are idle. With the loop's lock. */
void tcp_start_stall_timer(struct tcp_endpoint *endpoint);
/* Ends works that are in no queue with the code, whose detail the thread has. Without the
 * endpoint's lock. */
void tcp_end_works(struct tcp_endpoint *endpoint, struct list *works, int code);

/* dial.c: with the loop's lock unless stated otherwise */

void tcp_dial_init(struct tcp_endpoint *endpoint);
/* A work waits and no rail is open; with the endpoint's lock. Has the poller call tcp_dial. */
void tcp_want_rails(struct tcp_endpoint *endpoint);
void tcp_dial(struct tcp_endpoint *endpoint);
/* The transport's `connect`, without the lock; `dialed`, `expect`, `requested` and `refused`. */
void tcp_connect(struct endpoint *base, haul_deadline until);
void tcp_dialed(struct endpoint *base, unsigned index, int code, struct stream stream);
int tcp_expect(struct endpoint *base, unsigned channels);
void tcp_requested(struct endpoint *base);
int tcp_refused(struct endpoint *base, int code, const char *reason);

void tcp_estimate(struct endpoint *base, const struct remote_key *key, void *binding,
                  const struct memory *local, enum haul_operation operation,
                  struct estimate *estimate);
size_t tcp_checks(struct haul_check *checks, size_t room);
/* The configured tcp_zero_copy, else the size (whole pages) from which on splicing is faster than
 * copying. */
size_t tcp_splice_min(const struct fabric *fabric);
/* Bytes/ns of the connection's interface; 0 where its driver does not report it. */
double tcp_link_speed(int fd);

extern const struct transport tcp_transport;

#endif
