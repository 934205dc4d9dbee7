/* SPDX-License-Identifier: MIT
 * The `tcp` transport. The data connections of one endpoint are its rails; the express rail is an
 * extra one for works of the best rank. Payload goes from the source buffer to the socket and from
 * the socket to its final address. Over a Unix control channel the rails are Unix sockets too.
 *
 *   frame.c     the wire format
 *   payload.c   segments, cursors, checksums
 *   tcp.c       the transport's table; works, and the slots of unanswered requests
 *   send.c      frames to send, and the pump that sends them
 *   receive.c   the state machine that reads a rail
 *   handle.c    what a received frame does
 *   staging.c   bounce buffers for device memory, in both directions
 *   rails.c     a rail's life: opened, watched, polled, closed
 *   estimate.c  what the path would cost, and what this host lacks for it
 *
 * Locks. The combiner's lock, "the endpoint's lock", guards everything that sending touches: slots,
 * pending works, the rails' `tx`, staged sends. It is taken after the loop's lock, which is never
 * taken while it is held. Receiving holds the loop's lock alone, and takes the endpoint's to queue
 * a response or to end a work. A thread that posts a work never waits for either. */
#ifndef HAUL_FABRIC_TCP_TCP_H
#define HAUL_FABRIC_TCP_TCP_H

#include "core/combiner.h"
#include "fabric/transport.h"
#include "fabric/work_batch.h"
#include "memory/staging.h"

#define TCP_RAILS_MAX 16
#define TCP_EXPRESS   TCP_RAILS_MAX /* the index of the express rail */
#define TCP_RAILS     (TCP_RAILS_MAX + 1)
#define TCP_WINDOW    REQUESTS_MAX /* requests that one side may have unanswered, at most */
/* Bytes that one system call transfers at most, and that a rail sends before the lock is released:
 * in between the express rail is looked at. To send, a page less than the 64 KiB of a segment on
 * loopback, so that a call does not end with a few bytes of a further segment. While nothing urgent
 * has passed for TCP_CALM_NS it is TCP_CALM times as much. That saves a tenth of a processor at
 * most (bench/run fileservice), and delays the first urgent work by one such call. */
#define TCP_SENDS    61440u
#define TCP_RECEIVES 65536u
#define TCP_CALM     4u
#define TCP_CALM_NS  INT64_C(10000000)

struct tcp_rail;
struct tx_frame;

/* A request of this side without its response; the endpoint's lock. */
struct tcp_slot {
  struct work *work;      /* NULL: free, or the work has ended early (`busy` tells) */
  struct tcp_rail *rail;  /* that carries the request, and its response */
  struct tx_frame *frame; /* NULL once it was sent whole */
  uint32_t generation;    /* upper half of the request's number: no response matches a later use */
  bool busy;
  bool modifies;     /* changes the peer's memory: a WRITE or an atomic */
  bool abandoned;    /* such a request whose work ended after it was begun: it may still land */
  bool data_started; /* its DATA is arriving: no second response is accepted */
  bool spliced;      /* pages of its source were passed by reference (send.c) */
};

struct tcp_endpoint {
  struct endpoint base;
  struct combiner combiner;          /* the endpoint's lock; submitted works */
  struct tcp_rail *rails[TCP_RAILS]; /* allocated when first opened; both locks to change */
  unsigned rail_count;               /* allocated ones but the express rail; there are no gaps */
  _Atomic unsigned open_rails;       /* without the express rail */
  _Atomic int protection;            /* enum protection, of the rails */
  size_t splice_min;                 /* payload bytes from which on pages are spliced; constant */
  double
      link_speed; /* bytes/ns of the network interface, 0: unknown; constant once a rail is open */
  struct work_batch work_batch; /* submitted works that are not taken in yet */
  struct poller poller;
  struct timer stall;

  /* The endpoint's lock. */
  struct backlog pending; /* works that wait for a slot, for room on a rail, or for `abandoned` */
  struct tcp_slot slots[TCP_WINDOW];
  uint32_t busy_slots, next_slot;
  /* Abandoned slots, and rails that ended with requests that were begun. Until all are answered no
   * work begins here, nor does a write over another path: it could be overwritten. */
  uint32_t abandoned;
  uint32_t unanswered; /* requests of the peer */
  struct list
      staged_sends; /* tx_frames whose source is being copied to a bounce buffer, or waits */
  struct staging_user tx_staging;

  /* The loop's lock. */
  struct list staged_receives;
  struct staging_user rx_staging;
};

/* Starts pending works and pumps the rails with new frames, until neither makes room for the other;
 * each rail sends at most its share. With the endpoint's lock, after whatever freed a slot or
 * queued a frame. `returns`, which may be NULL, is pumped in any case; true when it has more to
 * send than its share: it is still corked, and the caller comes back at once or uncorks it. */
bool tcp_advance(struct tcp_endpoint *endpoint, struct tcp_rail *returns);

/* The request's DATA begins: once, on the rail of the request. *work is NULL when the work has
 * ended early. False when no request waits for it. With the loop's lock. */
bool slot_start_data(struct tcp_rail *rail, uint64_t request, struct work **work);
/* The request was answered on this rail; `data`: its DATA is complete. Frees the slot. *work is to
 * be ended by the caller, or NULL when it has ended early. False when no such request waits. With
 * the loop's lock. */
bool slot_complete(struct tcp_rail *rail, uint64_t request, bool data, struct work **work);
/* The request's work ends early: what was not sent yet never is, and a response is still awaited if
 * anything was. Returns the work, to be ended by the caller, or NULL when it has ended before. With
 * the endpoint's lock; tcp_advance is to follow. */
struct work *slot_abandon(struct tcp_endpoint *endpoint, struct tcp_slot *slot, int code);
/* The rail ends: frees its slots and moves their works to `works`. True when one of the requests
 * was begun and modifies the peer's memory: `abandoned` counts the rail from now on. With the
 * endpoint's lock. */
bool slots_drop(struct tcp_rail *rail, struct list *works);

/* ---- estimate.c ---- */

/* The table's slots. */
void tcp_estimate(struct endpoint *base, const struct remote_key *key, void *binding,
                  const struct memory *local, enum haul_operation operation,
                  struct estimate *estimate);
size_t tcp_checks(struct haul_check *checks, size_t room);
/* The configured tcp_zero_copy, else the size, in whole pages, from which on splicing is faster
 * than copying. */
size_t tcp_splice_min(const struct fabric *fabric);
/* Bytes/ns of the interface that the connection goes over; 0 where its driver does not report it.
 */
double tcp_link_speed(int fd);

extern const struct transport tcp_transport;

#endif
