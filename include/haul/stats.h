/* SPDX-License-Identifier: MIT
 *
 * What a node is doing, as it tells of itself, or as a peer of it is told: `haul top`.
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

#ifdef __cplusplus
}
#endif

#endif
