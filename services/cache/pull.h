/* SPDX-License-Identifier: MIT
 * The bytes of puts, which the store reads from regions of a client. One thread at a time. */
#ifndef HAUL_CACHE_PULL_H
#define HAUL_CACHE_PULL_H

#include "cache/tier.h"

#define REMOTES 16 /* regions of a client that are known at a time */

struct source {
  uint64_t number; /* 0: none */
  haul_remote *remote;
};

struct puller {
  haul_node *node;
  haul_peer *peer; /* the client */
  struct source sources[REMOTES];
  unsigned next_source;
  haul_region *bounce; /* for a device tier; NULL: none yet */
};

/* A block, and the offset of its bytes in the client's region. */
struct pull {
  struct block *block;
  uint64_t from;
};

/* Reads the bytes of the blocks, at most REQUEST_KEYS_MAX, into their rooms in the tier, and sets
 * their checksums. `source` names the region. As of haul_peer_lookup, haul_read and
 * haul_region_copy. */
int pull_blocks(struct puller *puller, struct tier *tier, uint64_t source, const struct pull *pulls,
                uint32_t count, haul_deadline until);
void puller_release(struct puller *puller);

#endif
