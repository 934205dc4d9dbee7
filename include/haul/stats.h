/* SPDX-License-Identifier: MIT
 *
 * What a node is doing, as it tells of itself, or as a peer of it is told: `haul top` and
 * `haul trace`.
 *
 * What haul.h says of all its calls holds here. Everything here is there since version 0.1.
 */
#ifndef HAUL_STATS_H
#define HAUL_STATS_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_STATS_PATHS 4

/* Of one path, since the node was opened. `out` and `in` are bytes that this node's own transfers
 * wrote and read; what its peers' transfers wrote here and read is seen over tcp alone, as over map
 * and rdma this node does nothing for it. */
struct haul_path_stats {
  char path[8]; /* "map"; "" behind the last one */
  int open;     /* of a peer: it can be taken */
  uint64_t writes, reads, atomics, bytes_out, bytes_in, errors;
  uint64_t served, served_in, served_out; /* slices of peers, and their bytes */
};

struct haul_node_stats {
  char name[64];
  uint64_t uptime_ns;
  unsigned peers, published;
  unsigned transfers;               /* under way, or with a handle that was not released */
  uint64_t posted, failed, retried; /* transfers; slices that took another path */
  uint64_t pool_bytes, staging_bytes;
  struct haul_path_stats paths[HAUL_STATS_PATHS]; /* all peers', those that left too */
};

struct haul_peer_stats {
  uint64_t number; /* of this node's peers: no two have the same */
  char name[64], identity[64];
  int initiator, same_host; /* the node connected to it, and not it to the node */
  unsigned transfers;       /* of the node, under way with it */
  uint64_t silent_ns;       /* since something last came from it */
  struct haul_path_stats paths[HAUL_STATS_PATHS];
};

/* This node's own. Fills up to *count peers, in the order in which they came, and sets *count to
 * how many there are. */
HAUL_API int haul_node_stats(haul_node *node, struct haul_node_stats *stats,
                             struct haul_peer_stats *peers, size_t *count);
/* The peer's, which tells its own user and root over a Unix socket, everybody where it has neither
 * key nor certificate, and else whom its setting any_observer lets see: HAUL_EACCESS. Asks in
 * pages, so peers that come or leave meanwhile may be missed. */
HAUL_API int haul_peer_stats_of(haul_peer *peer, haul_deadline until, struct haul_node_stats *stats,
                                struct haul_peer_stats *peers, size_t *count);

/* ---- What happens, when: `haul trace` ---- */

enum haul_trace_kind {
  HAUL_TRACE_SUBMIT = 1,   /* a transfer of the node's begins; `slice`: how many it has */
  HAUL_TRACE_POST = 2,     /* a slice of it is handed to a path, again where a path broke */
  HAUL_TRACE_DONE = 3,     /* that has ended, with `status`: it may be handed to another path */
  HAUL_TRACE_COMPLETE = 4, /* the transfer has ended */
  HAUL_TRACE_SERVE = 5,    /* over tcp, a slice that a peer writes begins to come */
  HAUL_TRACE_SERVED = 6    /* it is there, or what a peer reads was handed to the socket */
};

struct haul_trace_event {
  uint64_t at_ns;    /* by CLOCK_MONOTONIC on the node's host */
  uint64_t peer;     /* as in struct haul_peer_stats */
  uint64_t transfer; /* no two under way have the same number; of SERVE and SERVED: the request's,
                        which the peer chose, and uses again */
  uint64_t bytes;
  unsigned slice; /* of POST and DONE: its number in the transfer */
  int status;     /* of what has ended: 0 or a code */
  enum haul_trace_kind kind;
  enum haul_operation operation;
  char path[8]; /* "tcp"; "": none yet */
};

/* Where a reader is; begin with zeros. */
struct haul_trace {
  uint64_t next;     /* the number of the event to go on from; 0: what happens from now on */
  uint64_t lost;     /* events that were gone before they were read, in all */
  uint64_t clock_ns; /* the node's clock when it answered */
};

/* This node's own events from trace->next on: fills up to *count of `events`, in the order of their
 * numbers, sets *count to how many there were, and moves on in *trace; fewer than asked for are all
 * there is now. Does not wait for more.
 *
 * The first call begins the recording, and three seconds after the last one, of anyone, it ends:
 * call it several times a second. It takes 1 MiB meanwhile, whoever reads, for the last 16,384
 * events: older ones are lost. Copies that are complete within their call over map are no events.
 * HAUL_ENOMEM; HAUL_EINVAL: no place for what is told. */
HAUL_API int haul_node_trace(haul_node *node, struct haul_trace *trace,
                             struct haul_trace_event *events, size_t *count);
/* The peer's, which tells them to whom it tells haul_peer_stats_of: HAUL_EACCESS. Blocks for its
 * answers until `until`: one for each 128 events. After a failure *trace is as it was, and *count
 * 0. */
HAUL_API int haul_peer_trace_of(haul_peer *peer, haul_deadline until, struct haul_trace *trace,
                                struct haul_trace_event *events, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
