/* SPDX-License-Identifier: MIT
 * The transport table: how bytes travel. Each transport is one const table, the only global symbol
 * of its folder, listed in fabric.c.
 *
 * Terms: a link is one peer as the transports see it; an endpoint is one transport's end of a link;
 * a channel is an extra connection of a transport to the peer; a binding is an endpoint's state of
 * one remote region; a work is one slice of a transfer.
 *
 * "The lock" below is the loop's (core/loop.h). */
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
#include "fabric/rdma_settings.h"
#include "memory/region.h"

#define TRANSPORTS_MAX  4
#define WORK_BYTES_MAX  1048576u /* the same for all transports, so that a work can change path */
#define WORK_PIECES_MAX 256u
#define WORK_BATCH_NS   20000 /* a batch of works is sent at this age */

struct costs;
struct exports;
struct transport;

struct endpoint_counters {
  _Atomic uint64_t writes, reads, atomics, bytes_out, bytes_in, errors;
  _Atomic uint64_t served, served_in, served_out; /* works of the peer, and their bytes */
};

/* The transports' common state in one node. */
struct fabric {
  struct loop *loop;
  struct heap *heap;
  struct exports *exports;
  uint8_t node_id[16], boot[16];
  const struct haul_node_config *config; /* complete: defaults are filled in */
  const struct rdma_settings *rdma;
  void *shared[TRANSPORTS_MAX];                          /* each transport's own, from its `open` */
  struct endpoint_counters disconnected[TRANSPORTS_MAX]; /* sums over disconnected peers */
  struct trace trace;
  struct log log;
  _Atomic uint64_t work_bytes; /* memory for posted works that have not begun; a window bounds the
                                  others */
};

struct endpoint;

/* Most outstanding requests of one side of a link, up to 1 MiB each: they fill the network and both
 * sockets. A peer may allow fewer. */
#define REQUESTS_MAX 128

struct link {
  struct fabric *fabric;
  uint64_t number;        /* identifies the peer within the node; set before works are posted */
  char name[64];          /* the peer's */
  char identity[64];      /* proven by the peer: the name of a key or a certificate, "uid:N" over a
                             Unix socket; "": none */
  bool boot_known;        /* both sides could read their boot id */
  bool same_host;         /* boot ids agree */
  bool local;             /* the control channel is a Unix socket */
  bool loopback;          /* or a loopback connection */
  bool initiator;         /* this side connected */
  bool tls;               /* the control channel is encrypted, and so is each channel over TCP */
  int socket;             /* the control channel's; valid during `create` */
  uint16_t window;        /* outstanding requests that the peer allows to this side */
  uint16_t own_window;    /* outstanding requests that this side allows to the peer */
  unsigned version;       /* of the protocol, as both sides agreed */
  _Atomic int64_t heard;  /* when bytes last came from the peer */
  _Atomic int ended;      /* 0 while the peer is connected, else HAUL_EPEER, HAUL_ECLOSED… */
  char ended_reason[192]; /* set before `ended` */
  _Atomic int failing;    /* the code of a current or imminent `fail` */
  /* A bit for each transport whose abandoned writes may still land at the peer. Until then no work
   * that modifies the peer's memory begins on another, as they could overwrite it. */
  _Atomic uint32_t abandoned;
  struct list writes;          /* transfer.c: asynchronous writes and atomics in flight, by start */
  uint64_t write_number;       /* transfer.c: of the latest one */
  _Atomic uint32_t transfers;  /* in flight */
  struct costs *_Atomic costs; /* costs.c: a list; the latest first */
  _Atomic uint32_t costs_count;
  struct endpoint *endpoints[TRANSPORTS_MAX];

  /* Connects a channel of the transport, with its handshake; the peer's `adopt` receives it.
   * `local`: over a Unix socket that can carry descriptors. Initiator only; blocks until `until`.
   * 0 or a code with the detail. */
  int (*open_channel)(struct link *link, const struct transport *transport, bool local,
                      unsigned index, haul_deadline until, struct stream *stream);
  /* The same in the loop, for `local` as above; the initiator's endpoint gets the outcome by
   * `dialed`, perhaps before this returns. 0, or a code with the detail and no `dialed`. With the
   * lock. */
  int (*dial_channel)(struct link *link, const struct transport *transport, bool local,
                      unsigned index, haul_deadline until);
  /* Acceptor: asks the peer to open the channels of the transport; its endpoint gets `requested`.
   * 0 or a code with the detail. With the lock. */
  int (*request_channels)(struct link *link, const struct transport *transport);
  /* Initiator: tells the peer that it cannot open them; its endpoint gets `refused`. With the lock.
   */
  void (*refuse_channels)(struct link *link, const struct transport *transport, int code,
                          const char *reason);
  /* The peer broke the protocol, or its connection ended: the node drops it soon, with this reason.
   * With or without the lock, never blocks. */
  void (*fail)(struct link *link, int code, const char *reason);
  /* The path of last resort lost its connections, usually because the peer ended. The node reads
   * the control channel to its end, then drops the peer, at the latest after half a liveness
   * timeout. With or without the lock, never blocks. */
  void (*last_path_lost)(struct link *link);
  /* Sends the message once `commit` returns true: 0, also if it returned false; a code; or 1 if the
   * peer has no room, before `commit`: its loop runs when that changes. From any thread, never
   * blocks, and takes locks of the layers above. */
  int (*notify)(struct link *link, const struct haul_notification *message,
                bool (*commit)(void *user), void *user);
  /* References to the peer. */
  void (*retain)(struct link *link);
  void (*put)(struct link *link);
};

/* Embedded first in each transport's own struct. */
struct endpoint {
  const struct transport *transport;
  struct link *link;
  _Atomic bool open; /* works may be posted */
  unsigned channels; /* initiator: that it opens on demand. The acceptor gets them by `expect` */
  /* By endpoint_close and endpoint_interrupt, after `close_reason` and before `open` becomes false.
   * The text has a lock of its own. */
  _Atomic bool closed;            /* for good */
  _Atomic bool interrupted;       /* the transport connects it again */
  _Atomic int64_t interrupted_at; /* the last time; 0: never */
  char close_reason[192];
  _Atomic bool no_zero_copy;   /* unavailable here: large transfers are copied */
  _Atomic bool copy_wins;      /* available, but copying them was measured to be faster */
  _Atomic bool lost;           /* closed after it was open; not logged yet (link_log_lost) */
  _Atomic unsigned rails_lost; /* connections that ended while others remain; not logged yet */
  struct endpoint_counters *counters; /* own_counters, or on a page that the peer reads */
  struct endpoint_counters own_counters;
};

/* A region that the peer published, as a lookup found it. */
struct remote_key {
  uint64_t handle, length;
  struct haul_place place;
  unsigned rights;
};

struct work {
  struct list link; /* in a list of the transfer or the transport */
  struct endpoint *endpoint;
  const struct remote_key *key;
  void *binding;
  struct haul_region *region;
  const struct haul_piece *pieces; /* checked against both lengths, and kept until done */
  uint32_t count;
  enum haul_operation operation;
  struct operands operands; /* of an atomic, which has one segment of 8 bytes, at multiples of 8 */
  bool begun; /* an atomic that the path has received: it may take effect despite a failure */
  bool checksum : 1;
  bool more : 1;        /* set before the post: works follow at once; may wait for a batch */
  bool last : 1;        /* of its transfer */
  uint8_t rank;         /* among the pending works of the path, as in core/backlog.h */
  bool listed;          /* transfer.c: in one of its lists; the transfers' lock */
  _Atomic int canceled; /* the code of a cancel, which keeps it from beginning */
  uint64_t bytes;
  uint64_t whole;   /* bytes of the whole transfer */
  uint64_t request; /* the id that the peer sees, for trace events; 0: none */
  /* Called once, with 0 or a code with the detail, from any thread, possibly under a transport's
   * lock: it must neither block nor call a transport. The transport then no longer uses the work
   * or its memory. */
  void (*done)(struct work *work, int code);
  void *owner;             /* the transfer */
  void *state;             /* the transport's while posted */
  _Atomic int64_t started; /* when its turn came; 0: not yet */
};

/* For the transport, when the work no longer waits for other works. */
static inline void work_starts(struct work *work) {
  atomic_store_explicit(&work->started, clock_now(), memory_order_relaxed);
}

/* A remote region that the CPU can access: the layer above makes small copies itself. A copy is
 * valid when `*word` holds `stamp` before and after it (both acquire) and the endpoint was open;
 * other copies go through `now`. */
struct direct {
  char *view; /* NULL: there is none */
  const _Atomic uint32_t *word;
  uint32_t stamp;
  uint32_t limit; /* bytes of a copy */
  struct endpoint *endpoint;
};

/* Orders a copy's reads before the following load of the word. The thread sanitizer does not model
 * fences, nor see other processes' accesses. */
static inline void order_copy(void) {
#ifdef __SANITIZE_THREAD__
  atomic_signal_fence(memory_order_acquire);
#else
  atomic_thread_fence(memory_order_acquire);
#endif
}

/* How bytes leave the requester's memory, by increasing transfer size. */
enum send_mode {
  SEND_SHORT,    /* within the call, or inline in the NIC's work request */
  SEND_BUFFERED, /* copied to a socket or a pinned buffer */
  SEND_DIRECT,   /* read in place */
  SEND_MODES
};

/* A mode's cost for transfers of at most `most` bytes: latency_ns + ns_per_byte * bytes. */
struct line {
  uint64_t most; /* 0: not offered; UINT64_MAX: all */
  double latency_ns, ns_per_byte;
};

/* A path's cost for a pair of memories. Costs assume good hardware:
 * cost feedback corrects a path that is slower, but never tries one that seems too slow. */
struct estimate {
  bool open;
  bool explicit_only; /* open only where the caller names this path; else closed for `reason` */
  bool zero_copy;
  struct direct direct; /* optional */
  /* A transfer takes the first mode offered for its size, here and in the transport. One mode is
   * offered for all sizes. */
  struct line lines[SEND_MODES];
  unsigned copies_cpu, copies_kernel, copies_dma;
  /* Where both are offered: the additional kernel copies of SEND_BUFFERED, and the average segment
   * length (bytes) below which it is taken at any size. */
  unsigned copies_kernel_buffered;
  uint64_t small_piece;
  unsigned rails;
  unsigned refusal;             /* transport.refusal */
  const _Atomic bool *outdated; /* once it is true the estimate does not hold any more; or NULL */
  char detail[64];
  char reason[192]; /* why it is closed, or open and staged */
};

struct transport {
  const char *name;
  unsigned index;   /* in the list; also its number in trace events */
  bool descriptors; /* its channels are Unix sockets, and carry descriptors */
  bool payload;     /* its channels carry payload, and may be unencrypted */
  bool within_host; /* connects memories of one host, over no network */

  /* NULL means: nothing to do, none, or false. */

  /* Once per node. Fails for lack of memory, as the path would stay closed for the node's life, and
   * for settings that do not fit the host; the node fails with it. What the host lacks closes
   * endpoints instead (`create`). */
  int (*open)(struct fabric *fabric);
  /* The node listens: opens the drivers that the first peer would wait for. Without locks. Where
   * that fails, each link tries again and keeps the reason. */
  void (*prepare)(struct fabric *fabric);
  /* Ends its threads; works posted later end with HAUL_EPATH. */
  void (*close)(struct fabric *fabric);
  /* After close, when no references to the node remain: frees its memory. */
  void (*release)(struct fabric *fabric);
  /* In a forked child, after `forked` of its endpoints: closes the node's descriptors and accesses
   * nothing else, without locks. */
  void (*abandon)(struct fabric *fabric);
  /* Reports its own counters, "NAME.…", a constant set. */
  void (*counters)(struct fabric *fabric,
                   void (*each)(void *user, const char *name, uint64_t value), void *user);
  /* Checks its requirements on this host, like provider.checks. */
  size_t (*checks)(struct haul_check *checks, size_t room);

  /* The ports that it uses, as in haul_port_list, seen from `device`: writes at most `room`
   * entries; returns the total. */
  size_t (*ports)(const struct fabric *fabric, const struct haul_device *device,
                  struct haul_port *ports, size_t room);

  /* One end of a link, on both sides, before any channel; not open yet. With the lock. */
  int (*create)(struct link *link, struct endpoint **endpoint);
  /* Initiator: connects its channels. Blocks until `until`, without the lock. Without a channel the
   * endpoint stays closed with its reason. */
  void (*connect)(struct endpoint *endpoint, haul_deadline until);
  /* Takes over the stream of a channel that arrived. With the lock. */
  void (*adopt)(struct endpoint *endpoint, unsigned index, struct stream stream);
  /* The end of link.dial_channel: 0 and the stream, or a code with the detail. With the lock. */
  void (*dialed)(struct endpoint *endpoint, unsigned index, int code, struct stream stream);
  /* Acceptor, once: the channels that the peer will open on demand. HAUL_EPROTO: impossible. With
   * the lock. */
  int (*expect)(struct endpoint *endpoint, unsigned channels);
  /* Initiator: the peer asks for the channels. Acceptor: they cannot be opened, for this reason of
   * the peer; HAUL_EPROTO: not with this code. With the lock. NULL: a peer that sends this breaks
   * the protocol. */
  void (*requested)(struct endpoint *endpoint);
  int (*refused)(struct endpoint *endpoint, int code, const char *reason);
  /* The peer left or the node closes: ends all works with `code` and closes the channels; no work
   * is posted afterwards. With the lock. */
  void (*stop)(struct endpoint *endpoint, int code);
  /* In a forked child: closes the descriptors and accesses nothing else, without locks. */
  void (*forked)(struct endpoint *endpoint);
  /* After stop, when the link has no references. Without the lock. */
  void (*destroy)(struct endpoint *endpoint);

  /* The application wrapped this memory; it may be registered together with wrapped neighbours.
   * From any thread; does not block. */
  void (*announce)(struct fabric *fabric, const struct memory *memory);
  /* Memory of this node is about to be freed or unmapped: ends its registrations. No work uses it.
   * From any thread; may block for the kernel. */
  void (*invalidate)(struct fabric *fabric, const struct memory *memory);

  /* Requests access to a remote region from the peer; blocks until `until`, without the lock. The
   * endpoint is open or interrupted. On
   * failure the path is closed for this region, for the reason in the thread's error detail. */
  int (*bind)(struct endpoint *endpoint, const struct remote_key *key, haul_deadline until,
              void **binding);
  /* No work uses the binding. From any thread, with or without the lock. */
  void (*unbind)(struct endpoint *endpoint, void *binding);

  /* Whether device memory needs bounce buffers on this side: 0, or a number below 2^16 that names
   * the reason to `estimate`. May block in the kernel to try whether it can be registered. From any
   * thread. NULL: 0. */
  unsigned (*refusal)(struct endpoint *endpoint, struct haul_region *local);
  /* Sets all other fields than `refusal`, which has the outcome of that call for `local`. The
   * endpoint is open or interrupted. Does not block. */
  void (*estimate)(struct endpoint *endpoint, const struct remote_key *key, void *binding,
                   const struct memory *local, enum haul_operation operation,
                   struct estimate *estimate);

  /* Completes a small transfer within the call: 0 or a code; 1 when it must be posted instead. The
   * segments have been checked, and stay the caller's. NULL: always 1. */
  int (*now)(struct endpoint *endpoint, const struct remote_key *key, void *binding,
             struct haul_region *region, const struct haul_piece *pieces, size_t count,
             uint64_t bytes, enum haul_operation operation);
  /* Completes an atomic work within the call, without a reference to it: 0 or a code; 1 when it
   * must be posted instead. NULL: always 1. */
  int (*atomic)(struct endpoint *endpoint, const struct work *work);
  /* Takes a work; from any thread. Always ends in exactly one `done`, possibly before it returns.
   * HAUL_EPATH: its connection failed, and the caller posts it again, unless it is an atomic that
   * has begun. HAUL_ENOPATH: this path can take no work of the transfer, for the reason in the
   * detail. */
  void (*post)(struct endpoint *endpoint, struct work *work);
  /* Ends a posted work with `code` unless it has ended; with the lock. `done` is called before it
   * returns, or within one engine operation. */
  void (*cancel)(struct endpoint *endpoint, struct work *work, int code);
  /* Runs a part of the pending works on a waiting thread; returns whether there was one. */
  bool (*help)(struct fabric *fabric, uint64_t least);

  /* The region was unpublished and is no longer in the exports: ends the peer's works on it here.
   * With the lock, does not block. */
  void (*revoke)(struct endpoint *endpoint, uint64_t handle, struct haul_region *region);
  /* Whether a work of the peer may still access the region; with the lock, does not block. The
   * caller of `revoke` polls this until it is false, as long as haul_region_release allows. */
  bool (*touches)(struct endpoint *endpoint, uint64_t handle, const struct haul_region *region);
  /* Whether a live peer is accessing memory of this node that `stop` does not protect. With the
   * lock, needs no turn of the loop. */
  bool (*touches_any)(struct endpoint *endpoint);
  /* Brings the counters of the peer's works up to date, where the peer counts them. With the lock.
   */
  void (*collect)(struct endpoint *endpoint);
};

/* The i-th transport, best first; NULL past the last. */
const struct transport *transport_at(size_t index);
/* NULL for an unknown name. */
const struct transport *transport_named(const char *name);

/* These call the callback of every transport. After a failed fabric_open, fabric_close and
 * fabric_release are due, too. */
int fabric_open(struct fabric *fabric);
void fabric_prepare(struct fabric *fabric);
void fabric_close(struct fabric *fabric);
void fabric_release(struct fabric *fabric);
bool fabric_help(struct fabric *fabric, uint64_t least);
/* `least` for a caller that polls: smaller transfers fit into the caches of one CPU, between which
 * two CPUs would pass them (bench/run nccl-1m, nccl-64m). */
#define HELP_POLLED (UINT64_C(4) << 20)
void fabric_announce(struct fabric *fabric, const struct memory *memory);
void fabric_invalidate(struct fabric *fabric, const struct memory *memory);
/* All or none. With the lock. */
int link_create_endpoints(struct link *link);
void link_connect(struct link *link, haul_deadline until);
void link_stop(struct link *link, int code);
void link_destroy_endpoints(struct link *link);

/* Writes to the node's log; from any thread. `path` may be NULL. */
void link_log(const struct link *link, enum log_event event, const char *path, const char *reason);
/* Logs lost paths and rails. Called with a delay: when a peer leaves, all of them fail, and none is
 * worth a line. */
void link_log_lost(const struct link *link);

/* Counts a work that ended with `code`. */
static inline void endpoint_count(struct endpoint *endpoint, enum haul_operation operation,
                                  uint64_t bytes, int code) {
  struct endpoint_counters *counters = endpoint->counters;
  bool write = operation == HAUL_OP_WRITE;
  if (code) {
    atomic_fetch_add_explicit(&counters->errors, 1, memory_order_relaxed);
    return;
  }
  atomic_fetch_add_explicit(write                            ? &counters->writes
                            : operation_is_atomic(operation) ? &counters->atomics
                                                             : &counters->reads,
                            1, memory_order_relaxed);
  atomic_fetch_add_explicit(write ? &counters->bytes_out : &counters->bytes_in, bytes,
                            memory_order_relaxed);
}

/* Counts a work of the peer, with its bytes received and sent. */
static inline void endpoint_served(struct endpoint *endpoint, uint64_t in, uint64_t out) {
  struct endpoint_counters *counters = endpoint->counters;
  atomic_fetch_add_explicit(&counters->served, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->served_in, in, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->served_out, out, memory_order_relaxed);
}

/* Whether a work must wait for abandoned writes of other paths. Acquire: false means that they have
 * landed. */
static inline bool endpoint_is_blocked(const struct endpoint *endpoint,
                                       enum haul_operation operation) {
  uint32_t abandoned = atomic_load_explicit(&endpoint->link->abandoned, memory_order_acquire);
  return abandoned && operation != HAUL_OP_READ &&
         abandoned & ~(1u << endpoint->transport->index) &&
         atomic_load_explicit(&endpoint->open, memory_order_relaxed);
}

/* Traces the begin or the end of a slice of the peer. */
__attribute__((cold)) void endpoint_trace_served(const struct endpoint *endpoint,
                                                 enum haul_trace_kind kind,
                                                 enum haul_operation operation, uint64_t request,
                                                 uint64_t bytes, int code);
static inline bool endpoint_is_traced(const struct endpoint *endpoint) {
  return trace_is_on(&endpoint->link->fabric->trace);
}

/* Closes an endpoint; the first reason stays. From any thread. */
void endpoint_close(struct endpoint *endpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for an endpoint that was open and may open again; the first reason stays until then. */
void endpoint_interrupt(struct endpoint *endpoint, const char *reason);
/* Why the endpoint was interrupted since then, though it is open again; else "". As
 * endpoint_reason. */
const char *endpoint_interruption(const struct endpoint *endpoint, int64_t since);
/* Opens a new or interrupted endpoint, unless it was closed meanwhile. With the lock. */
void endpoint_resume(struct endpoint *endpoint);
/* The same as endpoint_close with a warning, for an endpoint that could not open. */
void endpoint_failed(struct endpoint *endpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline bool endpoint_is_closed(const struct endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->closed, memory_order_acquire);
}

/* Why the endpoint is closed or interrupted, else ""; valid until the thread's next call. From any
 * thread. */
const char *endpoint_reason(const struct endpoint *endpoint);

/* Sets or clears this endpoint's bit in the link's `abandoned`. From any thread, with the
 * endpoint's lock; never blocks. */
void endpoint_set_abandoned(struct endpoint *endpoint, bool abandoned);
/* Whether abandoned writes of any endpoint may still land at the peer. */
static inline bool link_has_abandoned(const struct link *link) {
  return atomic_load(&link->abandoned);
}

/* For `connect`, without the lock: whether the endpoint opened or was closed by `until`. */
bool endpoint_wait_settled(struct endpoint *endpoint, haul_deadline until);
/* Closes an endpoint that is neither open nor closed; concatenates the parts of the reason. */
void endpoint_close_unless_open(struct endpoint *endpoint, const char *before, const char *detail);

/* A request on an endpoint's channel, on the stack of the thread that awaits its response. */
struct channel_request {
  struct list link; /* in the endpoint's list; the lock */
  struct endpoint *endpoint;
  uint32_t id;
  bool done;
  int code;
  struct haul_error error; /* the detail of `code` */
};

/* NULL: there is none, or it timed out. With the lock. */
struct channel_request *channel_request_find(struct list *requests, uint32_t id);
/* Wakes its thread with 0 or a code with the detail. With the lock. */
void channel_request_end(struct channel_request *request, int code);
/* Ends all with `code` and the endpoint's reason. With the lock. */
void channel_requests_fail(struct list *requests, int code);
/* Returns the code of its end, with the detail, or HAUL_ETIMEDOUT. Without the lock. */
int channel_request_wait(struct channel_request *request, haul_deadline until);

#endif
