/* SPDX-License-Identifier: MIT
 * The nodes that one call of haul_broadcast_receive may read chunks from. */
#ifndef HAUL_SERVICES_BROADCAST_FEEDER_H
#define HAUL_SERVICES_BROADCAST_FEEDER_H

#include "broadcast/join.h"

struct feeder {
  struct card card; /* of the source: all zero */
  bool source, open, polled;
  bool before;  /* this node in the chain, as the list was read last */
  bool stalled; /* it was blocked as late, and has had no progress since */
  haul_peer *peer;
  haul_remote *data, *have;
  haul_region *copy;   /* where `poll` reads its NAME.V.have to */
  haul_transfer *poll; /* in flight, or NULL */
  uint64_t *bits;      /* chunks that it has, as last read; not of the source */
  uint64_t count;      /* of these bits */
  uint64_t most;       /* count at most, over all connections: only more is progress */
  unsigned slow;       /* probes in a row that were faster elsewhere */
  unsigned flying;     /* chunks in flight from it */
  unsigned allowed;    /* of these, at most: see feeder_landed */
  int64_t best;        /* least time that a chunk took, 0: unknown */
  int64_t polled_at, progress_at;
  int64_t gained_at, pace; /* pace: mean time between two chunks that it gained, 0: unknown */
  int64_t patience;        /* it may be without progress so long */
  int64_t blocked_until;   /* it is not used before */
  int64_t hold;            /* the next block lasts so long */
  unsigned lost;           /* connections in a row that failed, or were not made in 1 s */
  int failed;              /* code of the last failure, 0 after a success */
  struct haul_broadcast_feeder told;
};

struct feeders {
  haul_broadcast *broadcast;
  haul_deadline until; /* of the call: nothing blocks for longer */
  uint64_t version, chunks;
  struct feeder **all; /* all that were ever listed */
  size_t count;
  struct feeder **order; /* in the order of preference: members before this one, the nearest first,
                            the source, the members behind */
  size_t order_count;
  uint64_t revision; /* of the list that `order` was made of */
};

static inline size_t bit_words(uint64_t chunks) {
  return (size_t)(chunks / 64 + (chunks % 64 != 0));
}

int feeders_open(struct feeders *feeders, haul_broadcast *broadcast,
                 const struct haul_broadcast_version *version, haul_deadline until);
void feeders_close(struct feeders *feeders);
/* Follows the list of members. */
int feeders_update(struct feeders *feeders);

/* Connects to it and finds its regions. Blocks for at most 1 s. On failure it is blocked, for ten
 * times as long as that took or longer. */
int feeder_connect(struct feeders *feeders, struct feeder *feeder);
/* Starts to read which chunks it has, unless that is under way. */
void feeder_poll(struct feeders *feeders, struct feeder *feeder);
/* Takes the response, if it is there. */
void feeder_polled(struct feeders *feeders, struct feeder *feeder);
/* A chunk came from it in so many nanoseconds. More are allowed in flight as long as none has to
 * queue: chunks that share a link arrive late, and all together. */
void feeder_landed(struct feeder *feeder, int64_t took);
/* It is not used for a time that doubles. `reason` is for the report. */
void feeder_block(struct feeder *feeder, const char *reason, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether it has had no progress for its `patience`. */
bool feeder_is_late(const struct feeder *feeder);
/* Blocks it for that, and doubles its patience. It is `stalled`. */
void feeder_block_late(struct feeder *feeder);
/* It is to be tried again in so many nanoseconds, as if it had not failed. */
void feeder_retry_in(struct feeder *feeder, int64_t nanoseconds);
/* A call or a transfer with it failed: closes its connection and blocks it. */
void feeder_fail(struct feeders *feeders, struct feeder *feeder, int code);

#endif
