/* SPDX-License-Identifier: MIT
 * Statistics and event traces, of this process's node or of a peer: `haul top`, `haul trace`.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_STATS_H
#define HAUL_STATS_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statistics --------------------------------------------------------------------------- */

#define HAUL_STATS_PATHS 4

/* Totals of one path since the node was opened. `bytes_out` and `bytes_in` are what the node's own
 * transfers wrote and read. `served` counts what its peers' transfers wrote and read here: over map
 * as the peers tell, which the node cannot check; not over rdma, where it takes no part. */
struct haul_path_stats {
  char path[8]; /* "map"; "" ends the list */
  int open;     /* of a peer: transfers can use it */
  uint64_t writes, reads, atomics, bytes_out, bytes_in, errors;
  uint64_t served, served_in, served_out; /* slices of peers, and their bytes */
};

struct haul_node_stats {
  char name[64];
  uint64_t uptime_ns;
  unsigned peers, published;
  unsigned transfers;               /* in flight, or with a handle that is not released */
  uint64_t posted, failed, retried; /* transfers; slices sent again on another path */
  uint64_t pool_bytes, staging_bytes;
  struct haul_path_stats paths[HAUL_STATS_PATHS]; /* of all peers, including those that left */
};

struct haul_peer_stats {
  uint64_t number; /* unique among the node's peers, and constant while the peer is connected */
  char name[64], identity[64];
  int initiator; /* 1: the node connected to the peer */
  int same_host;
  unsigned transfers; /* of the node, in flight with the peer */
  uint64_t silent_ns; /* since the node last received anything from the peer */
  struct haul_path_stats paths[HAUL_STATS_PATHS];
};

/* Reads the statistics of this process's node. Fills up to *count peers, oldest first, and sets
 * *count to the number of peers. */
HAUL_API int haul_node_stats(haul_node *node, struct haul_node_stats *stats,
                             struct haul_peer_stats *peers, size_t *count);
/* Reads the statistics of a peer's node, in pages: peers that come or leave meanwhile may be
 * missing. HAUL_EACCESS: not permitted. Its own user and root may, over a Unix socket; peers
 * without an identity, if it has neither key nor certificate; and everyone, if its any_observer is
 * set. HAUL_ETIMEDOUT, or as haul_peer_status. */
HAUL_API int haul_peer_stats_of(haul_peer *peer, haul_deadline until, struct haul_node_stats *stats,
                                struct haul_peer_stats *peers, size_t *count);

/* ---- Event traces ------------------------------------------------------------------------- */

enum haul_trace_kind {
  HAUL_TRACE_SUBMIT = 1,   /* a transfer of the node starts; `slice` is the number of slices */
  HAUL_TRACE_POST = 2,     /* a slice is posted to a path; again if that path breaks */
  HAUL_TRACE_DONE = 3,     /* the path is done with the slice, with `status` */
  HAUL_TRACE_COMPLETE = 4, /* the transfer has ended */
  HAUL_TRACE_SERVE = 5,    /* tcp: a slice that a peer writes begins to arrive */
  HAUL_TRACE_SERVED = 6,   /* tcp: it has arrived, or a slice that a peer reads is in the socket */
  HAUL_TRACE_REQUEST = 7   /* tcp: just before DONE. `bytes` is the id of the slice's request, which
                              is `transfer` of SERVE and SERVED at the peer */
};

struct haul_trace_event {
  uint64_t at_ns;    /* CLOCK_MONOTONIC of the node's host */
  uint64_t peer;     /* `number` of struct haul_peer_stats */
  uint64_t transfer; /* unique among transfers in flight; of SERVE and SERVED the id of the peer's
                        request, which the peer reuses */
  uint64_t bytes;
  unsigned slice; /* of POST and DONE: its index in the transfer */
  int status;     /* of what has ended: 0 or a HAUL_E… code */
  enum haul_trace_kind kind;
  enum haul_operation operation;
  char path[8]; /* "tcp"; "" before a path is chosen */
};

/* The position of a reader; start from zeros. */
struct haul_trace {
  uint64_t next;     /* number of the next event to read; 0: events from now on */
  uint64_t lost;     /* total of events that were overwritten before they were read */
  uint64_t clock_ns; /* the node's clock at its response */
};

/* Reads events of this process's node from trace->next on: fills up to *count of `events`, in
 * order, sets *count to the number filled and advances *trace. Fewer than asked for are all there
 * are now; the call does not wait for more.
 *
 * The first call of any reader starts recording, which ends 3 s after the last call: call several
 * times a second. All readers share a ring of 1 MiB with the last 16,384 events. Transfers over map
 * that end within their call are not recorded. HAUL_ENOMEM, HAUL_ECLOSED. */
HAUL_API int haul_node_trace(haul_node *node, struct haul_trace *trace,
                             struct haul_trace_event *events, size_t *count);
/* The same for a peer's node, with a request for each 128 events. On failure *trace is unchanged
 * and *count is 0. HAUL_EACCESS as of haul_peer_stats_of, HAUL_ENOMEM, HAUL_ECLOSED (also the
 * peer's), HAUL_ETIMEDOUT, or as haul_peer_status. */
HAUL_API int haul_peer_trace_of(haul_peer *peer, haul_deadline until, struct haul_trace *trace,
                                struct haul_trace_event *events, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
