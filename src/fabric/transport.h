/* SPDX-License-Identifier: MIT
 * The second of haul's two tables: how bytes travel. A transport is one const table in a folder of
 * its own whose one global symbol is that table; fabric.c lists it.
 *
 * Words: a link is what transports know of one peer; an endpoint is one transport's end of a link;
 * a channel is an extra connection that a transport asked the node to make; a binding is what an
 * endpoint knows of one remote region; a work is one slice of a transfer on its way.
 *
 * Locks: "the lock" below is the loop's (core/loop.h). */
#ifndef HAUL_FABRIC_TRANSPORT_H
#define HAUL_FABRIC_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/backlog.h"
#include "core/log.h"
#include "core/loop.h"
#include "core/stream.h"
#include "core/sys.h"
#include "core/trace.h"
#include "fabric/operation.h"
#include "memory/region.h"

#define TRANSPORTS_MAX 4
#define WORK_BYTES_MAX                                                                             \
  1048576u /* payload of a work; the same for all, so that it can change path */
#define WORK_PIECES_MAX 256u
/* Works that are sent at once: so many, or bytes, and no work waits longer for others. */
#define WORK_BATCH       16u
#define WORK_BATCH_BYTES 65536u
#define WORK_BATCH_NS    20000

struct costs;
struct exports;
struct transport;

/* Bytes and counts of one endpoint. */
struct endpoint_counters {
  _Atomic uint64_t writes, reads, atomics, bytes_out, bytes_in, errors;
  _Atomic uint64_t served, served_in, served_out; /* the peer's works, and their bytes */
};

/* What the transports of one node share. */
struct fabric {
  struct loop *loop;
  struct heap *heap;
  struct exports *exports;
  uint8_t node_id[16], boot[16];
  const struct haul_node_config *config;         /* completed: no zeros that mean a default */
  void *shared[TRANSPORTS_MAX];                  /* each transport's own, from its open slot */
  struct endpoint_counters left[TRANSPORTS_MAX]; /* sums of the peers that left */
  struct trace trace;                            /* for who watches: node/trace.c */
  struct log log;                                /* for who runs it */
  _Atomic uint64_t work_bytes; /* what transports keep for each work, however many there are; what
                                  only those have that were begun, their windows bound */
};

struct endpoint;

/* Requests of up to a MiB that one side of a link may have unanswered, where its peer says no less:
 * enough to fill the line and both sockets. */
#define REQUESTS_MAX 128

struct link {
  struct fabric *fabric;
  uint64_t number;       /* of the node's peers, growing; set before works are posted */
  char name[64];         /* the peer's */
  char identity[64];     /* who proved to be there: the name of a key or a certificate, "uid:N" over
                            a Unix socket; "": nobody */
  bool boot_known;       /* both sides could read their boot id */
  bool same_host;        /* boot ids agree */
  bool local;            /* the control connection is a Unix socket */
  bool loopback;         /* or a loopback address */
  bool initiator;        /* this side connected */
  uint16_t window;       /* requests that the peer lets this side have unanswered */
  uint16_t own_window;   /* and this side the peer */
  _Atomic int64_t heard; /* when something last came from the peer */
  _Atomic int ended; /* 0 while the peer is there, else why not: HAUL_EPEER, HAUL_ECLOSED, … */
  char ended_reason[192]; /* set before `ended` */
  _Atomic int failing;    /* `fail` was called with this code, or is about to be: it will end */
  struct list writes;    /* transfer.c: asynchronous writes and atomics under way, by their start */
  uint64_t write_number; /* transfer.c: of the latest one */
  _Atomic uint32_t transfers;  /* under way */
  struct costs *_Atomic costs; /* costs.c: a list; the latest first */
  _Atomic uint32_t costs_count;
  struct endpoint *endpoints[TRANSPORTS_MAX];

  /* Makes a channel for the transport: a connection to the peer that has been through the handshake
   * and that arrives at the other side's `adopt`. `local`: over a Unix socket, which must be able
   * to carry descriptors. Initiator only; blocks until `until`. 0 or a code with the detail. */
  int (*dial)(struct link *link, const struct transport *transport, bool local, unsigned index,
              haul_deadline until, struct stream *stream);
  /* The peer broke the protocol, or its connection ended: the node drops the peer soon, with this
   * reason. With or without the lock, never blocks. */
  void (*fail)(struct link *link, int code, const char *reason);
  /* The path of last resort lost its connections, which is nearly always the peer's end. What the
   * peer sent before that is on the control connection, which is read to its end first: the node
   * drops the peer there, or half a liveness bound later. With or without the lock, never blocks.
   */
  void (*leaves)(struct link *link);
  /* References: what holds the link holds the peer. */
  void (*retain)(struct link *link);
  void (*put)(struct link *link);
};

/* Embedded first in each transport's own struct. */
struct endpoint {
  const struct transport *transport;
  struct link *link;
  _Atomic bool open; /* works may be posted */
  /* What other paths have given up may still land at the peer: until it has, nothing that changes
   * the peer's memory begins here, so that it does not land on what came later. A bit for each of
   * these paths. */
  _Atomic uint32_t held;
  /* From now on large transfers are copied like small ones (struct estimate): the system refuses
   * what would save it. */
  _Atomic bool as_small;
  char reason[192];            /* why it is not; set before `open` becomes false */
  _Atomic bool lost;           /* it was open, of which the log is not told yet (link_log_lost) */
  _Atomic unsigned rails_lost; /* connections that ended, while others go on; likewise */
  struct endpoint_counters counters;
};

/* A published region of the peer's, as its lookup answered. */
struct remote_key {
  uint64_t handle, length;
  struct haul_place place;
  unsigned rights;
};

struct work {
  struct list link; /* the holder's: a transfer's or a transport's list */
  struct endpoint *endpoint;
  const struct remote_key *key;
  void *binding;
  struct haul_region *region;
  const struct haul_piece *pieces; /* checked against both lengths, and kept until done */
  uint32_t count;
  enum haul_operation operation;
  struct operands operands; /* of an atomic: one piece of 8 bytes, at multiples of 8 */
  bool begun; /* an atomic: the path was handed it, and it may take place whatever breaks now */
  /* Set before it is posted: others follow at once, for which it may wait, as WORK_BATCH says. */
  bool checksum : 1, more : 1;
  uint8_t rank;         /* among what waits for the path, as in core/backlog.h */
  bool listed;          /* transfer.c: in one of its lists; the transfers' lock */
  _Atomic int canceled; /* from a cancel on its code: it is not begun any more */
  uint64_t bytes;
  uint64_t whole; /* bytes of the transfer that it is a slice of */
  /* Called once, with 0 or a code, from any thread, possibly under a transport's lock: it must not
   * block nor call a transport. Neither the work nor its memory is touched by the transport after
   * it. The thread's error detail describes a failure. */
  void (*done)(struct work *work, int code);
  void *owner; /* the transfer */
  /* The transport's while posted. */
  void *state;
  _Atomic int64_t started; /* when its turn came; 0: not yet */
};

/* For the transport: the work waits for no other any more. */
static inline void work_starts(struct work *work) {
  atomic_store_explicit(&work->started, clock_now(), memory_order_relaxed);
}

/* A remote region that the CPU reaches: with it the layer above does small copies without a call.
 * A copy counts when `*word` holds `stamp` before and after it (both acquire) and the endpoint was
 * open; whatever else is the case goes through `now`. */
struct direct {
  char *view; /* NULL: there is none */
  const _Atomic uint32_t *word;
  uint32_t stamp;
  uint32_t limit; /* bytes of a copy */
  struct endpoint *endpoint;
};

/* Between a copy and the look at the word: what was copied was read before it. The thread sanitizer
 * knows no fences, and nothing of another process's memory. */
static inline void order_copy(void) {
#ifdef __SANITIZE_THREAD__
  atomic_signal_fence(memory_order_acquire);
#else
  atomic_thread_fence(memory_order_acquire);
#endif
}

/* How bytes leave the memory of the side that asks, the one for the smallest first. */
enum send_mode {
  SEND_SHORT,     /* within the call, or within the request to the NIC */
  SEND_BUFFERED,  /* copied first: into a socket, a pinned buffer */
  SEND_ZERO_COPY, /* handed over where they lie */
  SEND_MODES
};

/* What that takes, for transfers of at most `most` bytes: latency_ns + ns_per_byte * bytes. */
struct line {
  uint64_t most; /* 0: not offered; UINT64_MAX: all */
  double latency_ns, ns_per_byte;
};

/* Why a path is closed for a pair of memories, or what it would cost. Lines are what good hardware
 * does: a path that does worse is found out by using it, one that does better never would be. */
struct estimate {
  bool open;
  bool only_asked; /* open, to those who ask for this path alone; closed for `reason` to others */
  bool zero_copy;
  struct direct direct; /* optional */
  /* A transfer is sent by the first that is offered for its size; one of them is for all sizes. The
   * transport does so too. */
  struct line lines[SEND_MODES];
  unsigned copies_cpu, copies_kernel, copies_dma;
  /* Where there are two: what is sent buffered is copied by the kernel so many times more, and what
   * has less than `small_piece` bytes a piece is sent buffered whatever its size. */
  unsigned copies_kernel_buffered;
  uint64_t small_piece;
  unsigned rails;
  char detail[64];
  char reason[192];
};

struct transport {
  const char *name;
  unsigned index;   /* its place in the list; also its number on the wire */
  bool descriptors; /* its channels are Unix sockets that carry some */
  bool payload;     /* its channels carry transfers' bytes, and may go without encryption */
  bool within_host; /* the memories of one host, by no line */

  /* Once a node; no slot: nothing to open. On failure the transport is closed on this node and the
   * thread's error detail says why. */
  int (*open)(struct fabric *fabric);
  /* Ends its threads; works that are posted after it end with HAUL_EPATH. */
  void (*close)(struct fabric *fabric);
  /* After close, when nobody holds the node any more: its memory. */
  void (*release)(struct fabric *fabric);
  /* In a forked child, after `forked` of its endpoints: closes the node's descriptors and touches
   * nothing else, without locks. */
  void (*abandon)(struct fabric *fabric);
  /* Tells counters of its own, "NAME.…", always the same. No slot: it has none. */
  void (*counters)(struct fabric *fabric,
                   void (*each)(void *user, const char *name, uint64_t value), void *user);
  /* What it needs on this host, as provider.checks. */
  size_t (*checks)(struct haul_check *checks, size_t room);

  /* The ports that it goes through, as haul_port_list has them, seen from `device`: writes at most
   * `room` entries; returns how many there are. No slot: none. */
  size_t (*ports)(const struct haul_device *device, struct haul_port *ports, size_t room);

  /* One end of a link, on both sides, before any channel; it is not open yet. With the lock. */
  int (*create)(struct link *link, struct endpoint **endpoint);
  /* Initiator: dials the channels it wants. Blocks until `until`, without the lock. Not getting
   * them is no failure: the endpoint stays closed with its reason. */
  void (*connect)(struct endpoint *endpoint, haul_deadline until);
  /* A channel arrived; with the lock. The stream is the endpoint's from now on. */
  void (*adopt)(struct endpoint *endpoint, unsigned index, struct stream stream);
  /* The peer is gone or the node closes: every work ends with `code`, channels are closed, nothing
   * is posted any more. With the lock. */
  void (*stop)(struct endpoint *endpoint, int code);
  /* In a forked child: closes the descriptors and touches nothing else, without locks. */
  void (*forked)(struct endpoint *endpoint);
  /* After stop, when nobody holds the link. Without the lock. */
  void (*destroy)(struct endpoint *endpoint);

  /* The caller gave this memory, and may give its neighbours: what is made of them can be made of
   * all at once. From any thread; does not block. No slot: nothing is made. */
  void (*learn)(struct fabric *fabric, const struct memory *memory);
  /* Memory of this node is about to be freed or unmapped: what was made of it (a registration) ends
   * now. No work uses it. From any thread; may block for the kernel. No slot: nothing was made. */
  void (*forget)(struct fabric *fabric, const struct memory *memory);

  /* Learns of a remote region; blocks until `until`, without the lock. On failure the path is
   * closed for this region with the reason in the thread's error detail. No slot: nothing to learn.
   */
  int (*bind)(struct endpoint *endpoint, const struct remote_key *key, haul_deadline until,
              void **binding);
  /* No work uses it any more. From any thread, with or without the lock. */
  void (*unbind)(struct endpoint *endpoint, void *binding);

  /* Fills everything. The endpoint is open. It may register `local` to see whether a device's
   * memory can be, which takes as long as the kernel does; nothing else blocks. */
  void (*estimate)(struct endpoint *endpoint, const struct remote_key *key, void *binding,
                   const struct memory *local, enum haul_operation operation,
                   struct estimate *estimate);

  /* Does small transfers on the spot: 0 or a code when done, 1 when it would rather be posted.
   * Pieces are foreign to it and have been checked. No slot: always 1. */
  int (*now)(struct endpoint *endpoint, const struct remote_key *key, void *binding,
             struct haul_region *region, const struct haul_piece *pieces, size_t count,
             uint64_t bytes, enum haul_operation operation);
  /* Does an atomic work on the spot, which is not the transport's after it: 0 or a code when done,
   * 1 when it would rather be posted. No slot: always 1. */
  int (*atomic)(struct endpoint *endpoint, const struct work *work);
  /* Takes a work; from any thread. Always ends in exactly one `done`, possibly before it returns.
   * HAUL_EPATH: what it was on broke, and it is to be posted again, unless it is an atomic and has
   * begun. HAUL_ENOPATH: this path cannot
   * take it, for the reason in the detail, nor any other of the transfer's. */
  void (*post)(struct endpoint *endpoint, struct work *work);
  /* Ends a posted work early with `code`, if it has not ended; with the lock. When it returns,
   * `done` was called or will be within one engine operation. */
  void (*cancel)(struct endpoint *endpoint, struct work *work, int code);
  /* Works that a waiting thread can do a part of; returns whether it did. No slot: none. */
  bool (*help)(struct fabric *fabric);

  /* The region behind `handle` was withdrawn from peers (the table of exports has forgotten it):
   * ends what works of the peer do with it here; with the lock, does not block. No slot: nothing to
   * end. */
  void (*revoke)(struct endpoint *endpoint, uint64_t handle, struct haul_region *region);
  /* Whether a work of the peer's may still touch it; with the lock, does not block. Who withdraws
   * asks until none does, as long as the contract of haul_region_release says. No slot: revoke
   * ended all. */
  bool (*touches)(struct endpoint *endpoint, uint64_t handle, const struct haul_region *region);
  /* Whether the peer, if it lives, is touching memory of this node that stopping the endpoint would
   * not take from it; with the lock, needs no turn of the loop. No slot: no. */
  bool (*touches_any)(struct endpoint *endpoint);
};

/* ---- fabric.c: the list ---- */

/* The i-th transport, best first; NULL past the last. */
const struct transport *transport_at(size_t index);
/* NULL for an unknown name. */
const struct transport *transport_named(const char *name);

/* Opens and closes every transport on the node. */
void fabric_open(struct fabric *fabric);
void fabric_close(struct fabric *fabric);
void fabric_release(struct fabric *fabric);
bool fabric_help(struct fabric *fabric);
void fabric_learn(struct fabric *fabric, const struct memory *memory);
void fabric_forget(struct fabric *fabric, const struct memory *memory);

/* Creates an endpoint of each transport; all or none. With the lock. */
int link_create_endpoints(struct link *link);
/* For the node's log; from anywhere. `path` may be NULL. */
void link_log(const struct link *link, enum log_event event, const char *path, const char *reason);
/* Says what broke, a while after it did: with a peer that left everything breaks, and nothing is to
 * be said. */
void link_log_lost(const struct link *link);
/* Dials every transport's channels. */
void link_connect(struct link *link, haul_deadline until);
void link_stop(struct link *link, int code);
void link_destroy_endpoints(struct link *link);

/* Counts what was written or read at once. */
static inline void endpoint_count(struct endpoint *endpoint, enum haul_operation operation,
                                  uint64_t bytes) {
  struct endpoint_counters *counters = &endpoint->counters;
  bool write = operation == HAUL_OP_WRITE;
  atomic_fetch_add_explicit(write                            ? &counters->writes
                            : operation_is_atomic(operation) ? &counters->atomics
                                                             : &counters->reads,
                            1, memory_order_relaxed);
  atomic_fetch_add_explicit(write ? &counters->bytes_out : &counters->bytes_in, bytes,
                            memory_order_relaxed);
}

/* Counts what was done of the peer's: bytes that came, or that went. */
static inline void endpoint_served(struct endpoint *endpoint, uint64_t in, uint64_t out) {
  struct endpoint_counters *counters = &endpoint->counters;
  atomic_fetch_add_explicit(&counters->served, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->served_in, in, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->served_out, out, memory_order_relaxed);
}

/* Whether a work has to wait. Acquire: what another path gave up has landed before. */
static inline bool endpoint_is_blocked(const struct endpoint *endpoint,
                                       enum haul_operation operation) {
  return operation != HAUL_OP_READ && atomic_load_explicit(&endpoint->held, memory_order_acquire) &&
         atomic_load_explicit(&endpoint->open, memory_order_relaxed);
}

/* For who watches the node: a slice of the peer's begins to come, or has ended. */
__attribute__((cold)) void endpoint_trace_served(const struct endpoint *endpoint,
                                                 enum haul_trace_kind kind,
                                                 enum haul_operation operation, uint64_t request,
                                                 uint64_t bytes, int code);
static inline bool endpoint_is_traced(const struct endpoint *endpoint) {
  return trace_is_on(&endpoint->link->fabric->trace);
}

/* Closes an endpoint with a reason, for the transports; from any thread. The first reason stands.
 */
void endpoint_close(struct endpoint *endpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same of one that was to open and could not, which is worth a warning. */
void endpoint_failed(struct endpoint *endpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets this one's bit of `held` of the link's other endpoints, or takes it away. From any thread,
 * with the endpoint's lock; never blocks. */
void endpoint_block_others(struct endpoint *endpoint, bool held);
/* Whether what one of them gave up may still land at the peer. */
bool link_is_blocked(const struct link *link);

/* For `connect`, without the lock: whether the endpoint opened or was shut by `until`. */
bool endpoint_wait_settled(struct endpoint *endpoint, haul_deadline until);
/* Shuts one that did neither, with both halves of a reason. */
void endpoint_close_unless_open(struct endpoint *endpoint, const char *before, const char *detail);

#endif
