/* SPDX-License-Identifier: MIT
 * The `tcp` transport: data rails, payload from the source buffer to the socket and from the socket
 * to its final address. On a Unix control connection the rails are Unix sockets too.
 *
 *   frame.c    what goes over a rail, packed and parsed
 *   job.c      jobs, the frames to send
 *   tx.c       the pump that sends them
 *   tally.h    checksums of what passes by
 *   rx.c       the state machine that reads a rail
 *   atomic.c   atomic operations
 *   landing.c  the end of a payload that arrived
 *   stage.c    host buffers for memory that has no view
 *   line.c     how fast the line below is
 *   rails.c    a rail's life: adopted, watched, polled, closed
 *   tcp.c      the table: works, windows, estimates
 *
 * Locks: the lock of the endpoint's combiner guards everything that sending touches (slots, pending
 * works, rails' queues, staged sources); it is taken after the loop's lock and nothing is taken
 * after it. Receiving happens with the loop's lock alone, and takes `lock` to queue an answer or to
 * end a work. Who posts a work never waits for it. */
#ifndef HAUL_FABRIC_TCP_H
#define HAUL_FABRIC_TCP_H

#include <sys/uio.h>

#include "core/combiner.h"
#include "fabric/devcopy.h"
#include "fabric/exports.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/tally.h"
#include "fabric/transport.h"
#include "fabric/work_batch.h"
#include "memory/staging.h"

#define TCP_RAILS_MAX 16
#define TCP_EXPRESS   TCP_RAILS_MAX /* the index of the rail for what has the best rank */
#define TCP_RAILS     (TCP_RAILS_MAX + 1)
#define TCP_WINDOW    REQUESTS_MAX /* frames that one side may have unanswered, at most */
/* What a rail has to send at most before works wait, where one of a better rank passes them: enough
 * to keep the socket busy. */
#define TCP_QUEUE 2097152u
/* What one call sends or receives at most, and what the pump sends before it lets others have the
 * lock: between two of them the express rail is looked at. A page less than the 64 KiB of a segment
 * on loopback, so that a segment is not left with a few bytes of the next. Where nothing urgent
 * came by for TCP_CALM_NS it is four times as much, which saves system calls, a tenth of a
 * processor at most (bench/run fileservice), and costs the first urgent work the time of such a
 * call. */
#define TCP_SENDS    61440u
#define TCP_RECEIVES 65536u
#define TCP_CALM     4u
#define TCP_CALM_NS  INT64_C(10000000)
#define TCP_STAGES   8     /* host buffers that a direction of an endpoint takes at most */
#define TCP_INBOX    8192u /* a rail's buffer for heads and small payloads; over FRAME_HEAD_MAX */

struct tcp_endpoint;
struct tcp_rail;

/* A frame on its way out. */
struct tcp_job {
  struct list link; /* a rail's queue, or the endpoint's staging list */
  struct tcp_rail *rail;
  uint8_t type;                    /* enum frame_type */
  bool filler;                     /* the work ended: the rest of the payload is zeros */
  bool splice;                     /* payload goes by reference (tx.c) */
  bool tallies;                    /* its checksum is the rail's `leaving`, known at its end */
  bool queued;                     /* in the rail's queue, not in the staging list */
  struct slot *slot;               /* WRITE, READ: until it was sent or abandoned */
  struct haul_region *region;      /* WRITE, DATA: the source; a reference for DATA */
  uint64_t handle;                 /* DATA: the export behind the region */
  const struct haul_piece *pieces; /* of the source: `local` and `length` */
  uint32_t count;
  uint32_t head; /* bytes of header and pieces */
  uint64_t payload;
  uint64_t sent;  /* bytes of the whole frame that the socket took */
  uint32_t piece; /* payload cursor: the next byte to hand to the kernel */
  uint64_t piece_at;
  struct bounce *stage; /* the payload, when the source has no view */
  int64_t since;        /* waits for one, has it, or is sent from it */
  struct devcopy copy;  /* source to stage */
  uint8_t trailer[FRAME_TRAILER];
  uint8_t bytes[]; /* head; for DATA the pieces behind it */
};

/* What an unanswered request waits for. */
struct slot {
  struct work *work; /* NULL: free, or the work ended early (`busy` tells) */
  struct tcp_rail *rail;
  struct tcp_job *job; /* not sent whole yet */
  uint32_t stamp;
  bool busy;
  bool write;     /* it changes the peer's memory: a WRITE or an atomic */
  bool left;      /* one of these that was begun and given up: its bytes may still land */
  bool answering; /* its DATA has begun: nothing else may answer it */
  bool lent;      /* pages of its source were passed by reference */
};

/* A payload that goes through a stage into memory without a view. */
struct landing {
  struct list link; /* the endpoint's landings */
  struct tcp_rail *rail;
  struct frame frame;
  struct frame_trailer trailer;
  struct haul_region *region; /* a reference for WRITE */
  struct work *work;          /* DATA */
  struct bounce *stage;
  struct devcopy copy; /* stage to region */
  uint32_t count;
  struct frame_piece pieces[]; /* offsets in the region */
};

enum rx_state { RX_HEAD, RX_PAYLOAD, RX_TRAILER };

struct tcp_rail {
  struct tcp_endpoint *endpoint;
  unsigned index;
  struct stream stream; /* fd -1: none */
  _Atomic bool broken;  /* the socket failed; the loop will close the rail */
  struct watch watch;

  /* Sending; endpoint's lock. */
  struct list queue;
  uint64_t queued;     /* payload bytes in it */
  bool fresh;          /* something was queued since the pump last ran */
  size_t share;        /* what it sends in a call and in a turn */
  size_t pumped;       /* bytes of this turn */
  _Atomic bool unsent; /* the pump has something to do; to look without the lock */
  int pipe[2];         /* for splicing; -1: none */
  size_t in_pipe;
  bool may_splice;
  bool corked; /* the socket may hold back what it took, for more to come */
  struct tally leaving;
  int64_t tx_moved; /* when the socket last took bytes */

  /* Receiving; loop's lock. */
  enum rx_state state;
  bool blocked; /* waits for a stage; both locks to change */
  uint8_t inbox[TCP_INBOX];
  size_t inbox_start, inbox_end;
  struct frame frame;
  struct frame_piece pieces[FRAME_PIECES_MAX];
  int verdict;                /* of a WRITE that is refused: its payload is thrown away */
  struct haul_region *region; /* WRITE: a reference; DATA: the work's; NULL: thrown away */
  struct work *work;          /* DATA */
  struct bounce *stage;
  int64_t staged_at; /* when it got that */
  uint32_t piece;
  uint64_t piece_at;
  uint64_t left; /* payload bytes to come */
  bool tallies;  /* this payload's checksum is `arriving` */
  struct tally arriving;
  uint8_t *scratch; /* for bytes that are thrown away */
  int64_t rx_moved; /* when bytes last came */
  unsigned idle_polls;
};

/* Passing pages by reference takes so long (pipe, vmsplice, splice), however many there are;
 * copying takes its time a byte. So there is a size from which on pages are cheaper: bench/run
 * tcp-write. */
#define SPLICE_NS    5400.0
#define SPLICE_PIECE 4096u /* and not less a piece on the average: a pipe holds pages */

/* Whether pages of it may be passed by reference (tx.c): what haul allocated, and files. */
static inline bool tcp_lends(const struct memory *memory) {
  return memory->view && !memory->wrapped && !memory->imported && !memory->provider->recycles;
}

struct tcp_endpoint {
  struct endpoint base;
  struct combiner combiner;          /* "the lock"; brings works */
  struct tcp_rail *rails[TCP_RAILS]; /* made when first opened; both locks to change */
  unsigned rail_count;               /* all below it were made; the express rail apart */
  _Atomic unsigned open_rails;       /* without the express rail */
  _Atomic int protection;            /* enum protection, of the rails */
  size_t splice_from;                /* bytes of a work whose pages are passed; constant */
  double line; /* bytes a ns below the first rail, 0 unknown; constant once there is a rail */
  struct backlog pending;       /* works that wait for a slot, a rail, or what is left of others */
  struct work_batch work_batch; /* works that are not in yet */
  struct slot slots[TCP_WINDOW];
  uint32_t busy_slots, next_slot;
  uint32_t left;       /* slots that say so, and rails that ended with such: until they are answered
                          no work begins, nor any write over other paths */
  uint32_t owed;       /* the peer's requests that are not answered */
  struct list staging; /* jobs whose source is being copied to a stage, or waits for one */
  struct staging_user tx;
  struct list landings;   /* loop's lock */
  struct staging_user rx; /* loop's lock */
  struct poller poller;
  struct timer stall;
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

/* estimate.c: the table's. */
void tcp_estimate(struct endpoint *base, const struct remote_key *key, void *binding,
                  const struct memory *local, enum haul_operation operation,
                  struct estimate *estimate);
/* Where passing pages and copying take as long, in whole pages; or what was set. */
size_t tcp_splice_from(const struct fabric *fabric);

/* checks.c: the table's. */
size_t tcp_checks(struct haul_check *checks, size_t room);

/* line.c: bytes a ns of the interface that the connection goes over; 0 where its driver does not
 * say.
 */
double tcp_line_speed(int fd);

/* job.c and tx.c; with the lock unless it says otherwise. */
/* With so many bytes of head, and `extra` behind them; NULL with the detail. */
struct tcp_job *job_new(uint8_t type, uint32_t head, size_t extra);
struct tcp_job *job_request(const struct work *work, uint64_t request);
struct tcp_job *job_ack(uint64_t request, int32_t status);
/* A DATA job that answers the frame; the source is checked and its reference is the job's. */
struct tcp_job *job_data(const struct frame *frame, const struct frame_piece *pieces,
                         struct haul_region *region);
void job_free(struct tcp_job *job);
/* Queues on the job's rail, through a stage where it needs one. */
void job_submit(struct tcp_job *job);
/* Takes it out of its list. */
void job_unqueue(struct tcp_job *job);
/* Queues on the job's rail; rail_pump is to follow. */
void job_enqueue(struct tcp_job *job);
/* The work or the region behind the job is gone: no byte of it is sent from now on. True when the
 * job was not begun, and is freed; else zeros follow, and the trailer says `status`. */
bool job_abandon(struct tcp_job *job, int32_t status);
/* The source of a DATA job cannot be sent: a refusal takes its place, or its trailer says so. */
void job_refuse(struct tcp_job *job, int32_t status);
/* Ends a WRITE or DATA job whose source cannot be read; the thread's error detail says why. */
void job_fail(struct tcp_job *job, int code);
/* Sends what the queue holds, up to the rest of the rail's share, and leaves the socket corked
 * where more follows. Only tcp_advance calls it. */
void rail_pump(struct tcp_rail *rail);
void rail_uncork(struct tcp_rail *rail);
/* Whether the system passes pages by reference here: 0, or the errno; without the lock. */
int tcp_try_lending(void);
/* Tells the loop which events the rail waits for. */
void rail_watch(struct tcp_rail *rail);
/* Leaves `most` bytes of the spans, and returns how many they are; without the lock. */
uint64_t spans_cut(struct iovec *spans, int *count, uint64_t most);
/* XXH3 over the pieces, where the bytes are. */
int pieces_checksum(struct memory *memory, const struct haul_piece *pieces, uint32_t count,
                    uint64_t *sum);

/* rx.c; with the loop's lock. */
/* It has no buffer for its payload, and gets none now. */
bool rail_waits_for_stage(const struct tcp_rail *rail);
/* The bytes to come are read and forgotten; the verdict is what the peer, or the work, gets. */
void rail_throw_away(struct tcp_rail *rail, int verdict);
/* Reads until the socket is empty or a budget is used up; true when
 * something came. */
bool rail_receive(struct tcp_rail *rail);
/* Answers a request of the peer's. */
void rail_answer(struct tcp_rail *rail, uint64_t request, int32_t status);

/* atomic.c */
struct tcp_job *job_atomic(const struct work *work, uint64_t request); /* as job_request */
/* With the loop's lock: does what the rail's frame asks, whose region and range were checked, and
 * answers it. Else the code to refuse it with. */
int rail_operate(struct tcp_rail *rail, struct haul_region *region);

/* landing.c; with the loop's lock. */
/* The payload and its trailer are there: answers a WRITE, ends the work of a DATA, or lands. */
void payload_end(struct tcp_rail *rail, const struct frame_trailer *trailer);
void rail_drop_landing(struct tcp_rail *rail);
/* Ends a staged landing: answers or ends the work. */
void landing_finish(struct landing *landing, int code);
/* Counts the work, if there is one, and ends it. */
void work_end(struct tcp_endpoint *endpoint, struct work *work, int code);

/* stage.c */
void stages_open(struct tcp_endpoint *endpoint);
/* Nobody waits for one any more. */
void stages_close(struct tcp_endpoint *endpoint);
/* Gives *stage back, if there is one. */
void stage_give(struct staging_user *user, struct bounce **stage);
/* For memory without a view: 0, 1 (later), or a code. */
int stage_take(struct staging_user *user, const struct memory *device, struct bounce **stage);
/* Who waits no more makes way for others. With the loop's lock. */
void stages_tend(struct tcp_endpoint *endpoint);
/* Ends what keeps others waiting for too long, and what waited too long. With the loop's lock. */
void stages_expire(struct tcp_endpoint *endpoint, int64_t now);
/* The landing's copy, not started. */
void landing_prepare(struct landing *landing);
bool stage_sources(struct tcp_endpoint *endpoint, bool *urgent);  /* with the lock */
bool stage_landings(struct tcp_endpoint *endpoint, bool *urgent); /* with the loop's lock */

/* rails.c; with the loop's lock. */
/* The stream is the endpoint's from now on, also on failure. */
int rail_open(struct tcp_endpoint *endpoint, unsigned index, struct stream stream);
void rail_free(struct tcp_rail *rail); /* closed, or NULL */
/* Sends what waits to be sent, if anything does, up to a bound. */
void rail_push(struct tcp_rail *rail);
/* In the middle of this rail's turn: what has the best rank does not wait for its end. */
void rail_look_aside(const struct tcp_rail *rail);
/* A poller's round; true when something came. */
bool rail_poll(struct tcp_rail *rail, int64_t spin_ns);
/* The rail's works end with `code`, its answers are forgotten. When a WRITE was begun on it and not
 * answered, the peer fails: it may still read those bytes, and they must not land behind what
 * another path brought meanwhile. */
void rail_close(struct tcp_rail *rail, int code);

/* tcp.c */
/* Ends the work of a request that was sent on this rail; with the loop's lock, without the
 * endpoint's. False when there is no such request, or when `data` does not tell whether its DATA
 * has begun. *work is what is to be ended (NULL: it ended early). */
bool slot_take(struct tcp_rail *rail, uint64_t request, bool data, struct work **work);
/* The request's DATA begins: once, and on its rail. */
bool slot_answer(struct tcp_rail *rail, uint64_t request, struct work **work);
/* Starts pending works and pumps the rails with new frames, until neither makes room for the other;
 * each rail sends at most its share. With the lock, at the end of whatever freed a slot or queued a
 * frame. `returns`, which may be NULL, is pumped in any case; true when it has more to send than
 * its share: it is still corked, and the caller comes back at once or uncorks it. */
bool tcp_advance(struct tcp_endpoint *endpoint, struct tcp_rail *returns);
/* With the lock: forgets the request's work and what of it was not sent; returns the work, to be
 * ended, or NULL when it ended before. tcp_advance is to follow. */
struct work *slot_abandon(struct tcp_endpoint *endpoint, struct slot *slot, int code);
/* With the lock: frees it as well, before its answer. */
struct work *slot_drop(struct tcp_endpoint *endpoint, struct slot *slot);

extern const struct transport tcp_transport;

#endif
