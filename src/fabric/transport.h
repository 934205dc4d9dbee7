/* SPDX-License-Identifier: MIT
 * The second of haul's two tables: how bytes travel. A transport is one const table, the only
 * global symbol of its folder; fabric.c lists it.
 *
 * Terms: a link is what transports know of one peer; an endpoint is one transport's end of a link;
 * a channel is an extra connection that a transport asked the node to make; a binding is what an
 * endpoint knows of one remote region; a work is one slice of a transfer.
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

#define TRANSPORTS_MAX  4
#define WORK_BYTES_MAX  1048576u /* the same for all transports, so that a work can change path */
#define WORK_PIECES_MAX 256u
/* A batch of works is sent when it has this many works, or bytes, or is this old. */
#define WORK_BATCH       16u
#define WORK_BATCH_BYTES 65536u
#define WORK_BATCH_NS    20000

struct costs;
struct exports;
struct transport;

struct endpoint_counters {
  _Atomic uint64_t writes, reads, atomics, bytes_out, bytes_in, errors;
  _Atomic uint64_t served, served_in, served_out; /* works of the peer, and their bytes */
};

/* What the transports of one node share. */
struct fabric {
  struct loop *loop;
  struct heap *heap;
  struct exports *exports;
  uint8_t node_id[16], boot[16];
  const struct haul_node_config *config;         /* complete: no zeros that mean a default */
  void *shared[TRANSPORTS_MAX];                  /* each transport's own, from its `open` */
  struct endpoint_counters left[TRANSPORTS_MAX]; /* sums of the peers that left */
  struct trace trace;
  struct log log;
  _Atomic uint64_t work_bytes; /* that transports keep for posted works, beside those that windows
                                  bound: of works that were begun */
};

struct endpoint;

/* Requests, of up to 1 MiB, that one side of a link may have unanswered unless its peer allows
 * fewer: enough to fill the network and both sockets. */
#define REQUESTS_MAX 128

struct link {
  struct fabric *fabric;
  uint64_t number;       /* identifies the peer within the node; set before works are posted */
  char name[64];         /* the peer's */
  char identity[64];     /* that the peer proved: the name of a key or a certificate, "uid:N" over a
                            Unix socket; "": none */
  bool boot_known;       /* both sides could read their boot id */
  bool same_host;        /* boot ids agree */
  bool local;            /* the control channel is a Unix socket */
  bool loopback;         /* or a loopback connection */
  bool initiator;        /* this side connected */
  uint16_t window;       /* requests that the peer lets this side have unanswered */
  uint16_t own_window;   /* requests that this side lets the peer have unanswered */
  _Atomic int64_t heard; /* when something last came from the peer */
  _Atomic int ended; /* 0 while the peer is connected, else why not: HAUL_EPEER, HAUL_ECLOSED… */
  char ended_reason[192];      /* set before `ended` */
  _Atomic int failing;         /* the code of a `fail` that was called or is about to be */
  struct list writes;          /* transfer.c: asynchronous writes and atomics in flight, by start */
  uint64_t write_number;       /* transfer.c: of the latest one */
  _Atomic uint32_t transfers;  /* in flight */
  struct costs *_Atomic costs; /* costs.c: a list; the latest first */
  _Atomic uint32_t costs_count;
  struct endpoint *endpoints[TRANSPORTS_MAX];

  /* Connects a channel of the transport: a connection to the peer after its handshake, which
   * arrives at the other side's `adopt`. `local`: over a Unix socket that can carry descriptors.
   * Initiator only; blocks until `until`. 0 or a code with the detail. */
  int (*dial)(struct link *link, const struct transport *transport, bool local, unsigned index,
              haul_deadline until, struct stream *stream);
  /* The peer broke the protocol, or its connection ended: the node drops it soon, with this reason.
   * With or without the lock, never blocks. */
  void (*fail)(struct link *link, int code, const char *reason);
  /* The path of last resort lost its connections, nearly always because the peer ended. The node
   * first reads the control channel to its end, for what the peer sent before; it drops the peer
   * there, or half a liveness bound later. With or without the lock, never blocks. */
  void (*leaves)(struct link *link);
  /* References, which keep the peer. */
  void (*retain)(struct link *link);
  void (*put)(struct link *link);
};

/* Embedded first in each transport's own struct. */
struct endpoint {
  const struct transport *transport;
  struct link *link;
  _Atomic bool open; /* works may be posted */
  /* Set once, by endpoint_close, after `close_reason` and before `open` becomes false. Its release
   * and the acquire of endpoint_reason let any thread read the text without a lock. */
  _Atomic bool closed;
  char close_reason[192];
  /* A bit for each transport whose abandoned writes may still land at the peer. Until they have, no
   * work that modifies the peer's memory begins here: they could overwrite it. */
  _Atomic uint32_t blocked_by;
  _Atomic bool as_small; /* large transfers are copied like small ones: the system refuses else */
  _Atomic bool lost;     /* it was open, and closed; not logged yet (link_log_lost) */
  _Atomic unsigned rails_lost; /* connections that ended while others go on; not logged yet */
  struct endpoint_counters counters;
};

/* A region that the peer published, as a lookup found it. */
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
  struct operands operands; /* of an atomic, which has one piece of 8 bytes, at multiples of 8 */
  bool begun; /* an atomic that the path has received: it may take place whatever fails now */
  bool checksum : 1;
  bool more : 1;        /* set before it is posted: works follow at once; may wait for a batch */
  uint8_t rank;         /* among the pending works of the path, as in core/backlog.h */
  bool listed;          /* transfer.c: in one of its lists; the transfers' lock */
  _Atomic int canceled; /* the code of a cancel: it does not begin any more */
  uint64_t bytes;
  uint64_t whole; /* bytes of the transfer that it is a slice of */
  /* Called once, with 0 or a code, from any thread, possibly under a transport's lock: it must not
   * block nor call a transport. From then on the transport uses neither the work nor its memory.
   * The thread's error detail describes a failure. */
  void (*done)(struct work *work, int code);
  void *owner;             /* the transfer */
  void *state;             /* the transport's while posted */
  _Atomic int64_t started; /* when its turn came; 0: not yet */
};

/* For the transport: the work waits for no other work any more. */
static inline void work_starts(struct work *work) {
  atomic_store_explicit(&work->started, clock_now(), memory_order_relaxed);
}

/* A remote region that the CPU reaches: the layer above makes small copies without a call. A copy
 * is valid when `*word` holds `stamp` before and after it (both acquire) and the endpoint was open;
 * all others go through `now`. */
struct direct {
  char *view; /* NULL: there is none */
  const _Atomic uint32_t *word;
  uint32_t stamp;
  uint32_t limit; /* bytes of a copy */
  struct endpoint *endpoint;
};

/* Orders the reads of a copy before the load of the word that follows. The thread sanitizer knows
 * no fences, and does not see another process's accesses. */
static inline void order_copy(void) {
#ifdef __SANITIZE_THREAD__
  atomic_signal_fence(memory_order_acquire);
#else
  atomic_thread_fence(memory_order_acquire);
#endif
}

/* How bytes leave the requester's memory, in the order of the sizes that they suit. */
enum send_mode {
  SEND_SHORT,     /* within the call, or inline in the NIC's work request */
  SEND_BUFFERED,  /* copied first: into a socket, or a pinned buffer */
  SEND_ZERO_COPY, /* read where they are */
  SEND_MODES
};

/* The cost of a mode for transfers of at most `most` bytes: latency_ns + ns_per_byte * bytes. */
struct line {
  uint64_t most; /* 0: not offered; UINT64_MAX: all */
  double latency_ns, ns_per_byte;
};

/* Why a path is closed for a pair of memories, or what it would cost. Costs are those of good
 * hardware: measuring corrects a path that is slower, but never tries one that seems too slow. */
struct estimate {
  bool open;
  bool only_asked; /* open only where the caller demands this path; else closed for `reason` */
  bool zero_copy;
  struct direct direct; /* optional */
  /* A transfer takes the first mode that is offered for its size, here and in the transport; one
   * mode is offered for all sizes. */
  struct line lines[SEND_MODES];
  unsigned copies_cpu, copies_kernel, copies_dma;
  /* Where both are offered: further kernel copies of SEND_BUFFERED, and the average bytes a piece
   * below which it is taken whatever the size. */
  unsigned copies_kernel_buffered;
  uint64_t small_piece;
  unsigned rails;
  char detail[64];
  char reason[192];
};

struct transport {
  const char *name;
  unsigned index;   /* in the list; also its number on the wire */
  bool descriptors; /* its channels are Unix sockets, and carry descriptors */
  bool payload;     /* its channels carry payload, and may go without encryption */
  bool within_host; /* between memories of one host, over no network */

  /* Once per node; no slot: nothing to open. On failure the transport is closed on this node and
   * the thread's error detail says why. */
  int (*open)(struct fabric *fabric);
  /* Ends its threads; works that are posted later end with HAUL_EPATH. */
  void (*close)(struct fabric *fabric);
  /* After close, when the node has no references any more: frees its memory. */
  void (*release)(struct fabric *fabric);
  /* In a forked child, after `forked` of its endpoints: closes the node's descriptors and touches
   * nothing else, without locks. */
  void (*abandon)(struct fabric *fabric);
  /* Reports its own counters, "NAME.…", always the same ones. No slot: it has none. */
  void (*counters)(struct fabric *fabric,
                   void (*each)(void *user, const char *name, uint64_t value), void *user);
  /* Checks what it needs on this host, as provider.checks does. */
  size_t (*checks)(struct haul_check *checks, size_t room);

  /* The ports that it uses, as in haul_port_list, seen from `device`: writes at most `room`
   * entries; returns how many there are. No slot: none. */
  size_t (*ports)(const struct haul_device *device, struct haul_port *ports, size_t room);

  /* One end of a link, on both sides, before any channel; it is not open yet. With the lock. */
  int (*create)(struct link *link, struct endpoint **endpoint);
  /* Initiator: connects its channels. Blocks until `until`, without the lock. Where it gets none
   * the endpoint stays closed with its reason. */
  void (*connect)(struct endpoint *endpoint, haul_deadline until);
  /* A channel arrived; with the lock. The stream is the endpoint's from now on. */
  void (*adopt)(struct endpoint *endpoint, unsigned index, struct stream stream);
  /* The peer is gone or the node closes: every work ends with `code`, channels are closed, and no
   * work is posted any more. With the lock. */
  void (*stop)(struct endpoint *endpoint, int code);
  /* In a forked child: closes the descriptors and touches nothing else, without locks. */
  void (*forked)(struct endpoint *endpoint);
  /* After stop, when the link has no references. Without the lock. */
  void (*destroy)(struct endpoint *endpoint);

  /* The caller wrapped this memory, and may wrap its neighbours: they can be registered together.
   * From any thread; does not block. No slot: nothing is registered. */
  void (*learn)(struct fabric *fabric, const struct memory *memory);
  /* Memory of this node is about to be freed or unmapped: its registrations end now. No work uses
   * it. From any thread; may block for the kernel. No slot: nothing was registered. */
  void (*forget)(struct fabric *fabric, const struct memory *memory);

  /* Gets from the peer what works on a remote region need; blocks until `until`, without the lock.
   * On failure the path is closed for this region, with the reason in the thread's error detail. No
   * slot: they need nothing. */
  int (*bind)(struct endpoint *endpoint, const struct remote_key *key, haul_deadline until,
              void **binding);
  /* No work uses it any more. From any thread, with or without the lock. */
  void (*unbind)(struct endpoint *endpoint, void *binding);

  /* Sets all fields. The endpoint is open. It may register `local` to find out whether a device's
   * memory can be, which takes as long as the kernel does; nothing else blocks. */
  void (*estimate)(struct endpoint *endpoint, const struct remote_key *key, void *binding,
                   const struct memory *local, enum haul_operation operation,
                   struct estimate *estimate);

  /* Completes a small transfer within the call: 0 or a code when done, 1 when it is to be posted
   * instead. The pieces have been checked, and stay the caller's. No slot: always 1. */
  int (*now)(struct endpoint *endpoint, const struct remote_key *key, void *binding,
             struct haul_region *region, const struct haul_piece *pieces, size_t count,
             uint64_t bytes, enum haul_operation operation);
  /* Completes an atomic work within the call, without a reference to it: 0 or a code when done, 1
   * when it is to be posted instead. No slot: always 1. */
  int (*atomic)(struct endpoint *endpoint, const struct work *work);
  /* Takes a work; from any thread. Always ends in exactly one `done`, possibly before it returns.
   * HAUL_EPATH: its connection failed, and it is to be posted again, unless it is an atomic that
   * has begun. HAUL_ENOPATH: this path cannot take this work nor others of its transfer, for the
   * reason in the detail. */
  void (*post)(struct endpoint *endpoint, struct work *work);
  /* Ends a posted work early with `code`, if it has not ended; with the lock. When it returns,
   * `done` was called or will be within one engine operation. */
  void (*cancel)(struct endpoint *endpoint, struct work *work, int code);
  /* Lets a waiting thread do a part of pending works; returns whether it did. No slot: none. */
  bool (*help)(struct fabric *fabric);

  /* The region behind `handle` was unpublished, and is no longer in the exports: ends the peer's
   * works on it here; with the lock, does not block. No slot: there are none. */
  void (*revoke)(struct endpoint *endpoint, uint64_t handle, struct haul_region *region);
  /* Whether a work of the peer may still access it; with the lock, does not block. The caller of
   * `revoke` repeats this until it is false, for as long as haul_region_release allows. No slot:
   * revoke ended all. */
  bool (*touches)(struct endpoint *endpoint, uint64_t handle, const struct haul_region *region);
  /* Whether the peer, if it lives, is accessing memory of this node that `stop` would not take from
   * it; with the lock, needs no turn of the loop. No slot: no. */
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
/* Writes to the node's log; from any thread. `path` may be NULL. */
void link_log(const struct link *link, enum log_event event, const char *path, const char *reason);
/* Logs the paths and rails that were lost. Called with a delay: when the peer leaves all of them
 * fail, and none is worth a line. */
void link_log_lost(const struct link *link);
/* Connects every transport's channels. */
void link_connect(struct link *link, haul_deadline until);
void link_stop(struct link *link, int code);
void link_destroy_endpoints(struct link *link);

/* Counts a work that is complete. */
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

/* Counts a work of the peer: bytes that came, or that went. */
static inline void endpoint_served(struct endpoint *endpoint, uint64_t in, uint64_t out) {
  struct endpoint_counters *counters = &endpoint->counters;
  atomic_fetch_add_explicit(&counters->served, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->served_in, in, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->served_out, out, memory_order_relaxed);
}

/* Whether a work has to wait for abandoned writes of other paths. Acquire: those have landed when
 * this is false. */
static inline bool endpoint_is_blocked(const struct endpoint *endpoint,
                                       enum haul_operation operation) {
  return operation != HAUL_OP_READ &&
         atomic_load_explicit(&endpoint->blocked_by, memory_order_acquire) &&
         atomic_load_explicit(&endpoint->open, memory_order_relaxed);
}

/* Traces a slice of the peer: it begins to arrive, or has ended. */
__attribute__((cold)) void endpoint_trace_served(const struct endpoint *endpoint,
                                                 enum haul_trace_kind kind,
                                                 enum haul_operation operation, uint64_t request,
                                                 uint64_t bytes, int code);
static inline bool endpoint_is_traced(const struct endpoint *endpoint) {
  return trace_is_on(&endpoint->link->fabric->trace);
}

/* For the transports: closes an endpoint with a reason; the first reason stays. From any thread. */
void endpoint_close(struct endpoint *endpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same, with a warning, for an endpoint that could not open. */
void endpoint_failed(struct endpoint *endpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline bool endpoint_is_closed(const struct endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->closed, memory_order_acquire);
}

/* Why an endpoint closed, for as long as the endpoint lives; "" before. From any thread. */
static inline const char *endpoint_reason(const struct endpoint *endpoint) {
  return endpoint_is_closed(endpoint) ? endpoint->close_reason : "";
}

/* Sets or clears this endpoint's bit in `blocked_by` of the link's other endpoints. From any
 * thread, with the endpoint's lock; never blocks. */
void endpoint_block_others(struct endpoint *endpoint, bool blocks);
/* Whether abandoned writes of an endpoint may still land at the peer. */
bool link_is_blocked(const struct link *link);

/* For `connect`, without the lock: whether the endpoint opened or was closed by `until`. */
bool endpoint_wait_settled(struct endpoint *endpoint, haul_deadline until);
/* Closes one that did neither, with both halves of a reason. */
void endpoint_close_unless_open(struct endpoint *endpoint, const char *before, const char *detail);

#endif
