/* SPDX-License-Identifier: MIT
 * The state of one haul_broadcast_receive, in three parts: the call (receive.c) starts and lands
 * chunks (flight.c) until all are here, each from the feeder that choice.c names. */
#ifndef HAUL_SERVICES_BROADCAST_RECEIVE_H
#define HAUL_SERVICES_BROADCAST_RECEIVE_H

#include "broadcast/feeder.h"

#define FLIGHTS (IN_FLIGHT_MOST + 1) /* one probe more */

/* A chunk on its way. */
struct flight {
  haul_transfer *transfer; /* NULL: free */
  struct feeder *feeder;
  uint64_t chunk;
  int64_t since;
  bool probe; /* to compare the feeder with the present one */
};

struct receive {
  haul_broadcast *broadcast;
  struct join *join;
  struct haul_broadcast_version version;
  haul_region *region;
  unsigned flags;
  haul_deadline until;
  struct haul_broadcast_report *report;

  struct held *held;
  uint64_t chunks, got, window;
  uint64_t margin; /* a feeder that lacks more chunks than this is far behind */
  const uint64_t *sums;
  uint64_t *have_bits, *taken; /* taken: here, or in flight */
  struct feeders feeders;
  struct feeder *current; /* that the latest chunk was requested from, or that is waited for */
  struct flight flights[FLIGHTS];
  uint64_t flying;
  uint64_t wrong;            /* chunks that came from the source with wrong bytes */
  unsigned wrong_turns;      /* times that the source was blocked for that since a chunk came */
  int64_t started, chunk_at; /* chunk_at: when the latest chunk came */
  int64_t pace;              /* mean time between two chunks */
  int64_t connect_at;        /* no member is connected to before */
  int64_t probe_at, head_at, called_at;
};

/* ---- choice.c ---- */

/* The feeder of the next chunk, and the chunk; NULL: none now. `current` is then the feeder that is
 * waited for, if any. Blocks for at most a tenth of the time, to connect. */
struct feeder *choose_feeder(struct receive *receive, uint64_t *chunk);
/* Whether a member that has chunks which are missing here is only passed over for a while. */
bool member_may_send(const struct receive *receive);
/* Once a second: a chunk to read from the feeder that would be used instead of the current one, if
 * that has many more chunks than this node. NULL: none. */
struct feeder *choose_probe(struct receive *receive, uint64_t *chunk);
/* Compares the time of a probe with that of other chunks, and blocks a current feeder that is slow.
 */
void judge_feeder(struct receive *receive, const struct flight *probe);
/* Asks the current feeder which chunks it has, if it is time, and takes the responses of all.
 * Returns when to call it again. */
int64_t poll_feeders(struct receive *receive);

/* ---- flight.c ---- */

/* Whether the bytes of a chunk in the region are right. */
int chunk_check(struct receive *receive, uint64_t chunk, bool *right);
/* The chunk is here: others may read it. */
void chunk_here(struct receive *receive, uint64_t chunk);

/* Requests chunks until the window is full. */
void flights_start(struct receive *receive);
/* Waits until one of them ends, or until `wake`. */
void flights_wait(struct receive *receive, int64_t wake);
/* Takes those that have ended, and cancels those of feeders from which none arrives. Returns an
 * error of this side only. */
int flights_land(struct receive *receive);
/* Cancels all: no chunk arrives afterwards, unless a feeder hangs for 5 s. */
void flights_end(struct receive *receive);

#endif
