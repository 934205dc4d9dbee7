/* SPDX-License-Identifier: MIT
 * Costs of the paths between memories of one type at both ends, by size. They start as the
 * transports' estimates, and measured transfers correct them. The cheapest path of each size is
 * kept, so that choosing is one load.
 *
 * Estimates are those of good hardware, so a path that is worse is corrected by using it, and a
 * path that is estimated too slow is never tried. A size is known for a path once four transfers of
 * about that size had the path to themselves. The correction is their time over the estimate,
 * within 1/256 and 256. A new sample moves it by an eighth, and an outlier by little (core/tune.h).
 *
 * A correction expires when no sample arrives for a minute plus a thousand times the path's cost.
 * Then the path is tried again, which is seldom enough to cost little. The path in use stays until
 * another one is an eighth cheaper.
 *
 * Any thread may read and record; of two records at the same time one may be lost. */
#ifndef HAUL_TRANSFER_COSTS_H
#define HAUL_TRANSFER_COSTS_H

#include "core/tune.h"
#include "fabric/transport.h"

#define COST_SIZES 40u   /* size n is 2^n to 2^(n+1) - 1 bytes; the last one has no end */
#define COSTS_MAX  256u  /* of a link; further remotes use the estimates alone */
#define COST_REACH 2u    /* an unknown size uses the correction of one at most this far away */
#define COST_BOUND 256.0 /* of a correction, and its inverse */

struct cost {
  bool open; /* to transfers that do not set `only` */
  char detail[sizeof((struct estimate *)0)->detail];
  struct line lines[SEND_MODES];
  struct sample {
    struct measure ratio; /* to the estimate, in 1/COST_UNIT */
    _Atomic uint32_t at;  /* of the last sample: ms, modulo 2^32 */
  } samples[COST_SIZES];
};
#define COST_UNIT 4096

struct costs {
  struct costs *next;
  uint64_t type; /* as in struct route */
  struct haul_place remote;
  struct cost paths[TRANSPORTS_MAX];
  /* The path within the host that moves each byte once; -1: none. No other path does less, so
   * measurements do not count against it. */
  int single_copy;
  _Atomic uint8_t best[COST_SIZES]; /* path + 1; 0: none is open */
};

/* The link's costs for these estimates, created on first use; they live as long as the link. NULL:
 * no memory, or COSTS_MAX reached. */
struct costs *costs_of(struct link *link, uint64_t type, struct haul_place remote,
                       const struct estimate estimates[TRANSPORTS_MAX]);
/* The link is not used any more. */
void costs_free(struct link *link);

static inline unsigned costs_size(uint64_t bytes) {
  unsigned size = bytes ? 63 - (unsigned)__builtin_clzll(bytes) : 0;
  return size < COST_SIZES ? size : COST_SIZES - 1;
}

/* The cheapest open path; -1: none. */
static inline int costs_best(const struct costs *costs, uint64_t bytes) {
  return atomic_load_explicit(&costs->best[costs_size(bytes)], memory_order_relaxed) - 1;
}

/* The send mode of a transfer of this size, and its estimated ns. */
enum send_mode lines_mode(const struct line lines[SEND_MODES], uint64_t bytes);
double lines_ns(const struct line lines[SEND_MODES], uint64_t bytes);
/* The factor of the estimate. `known`, which may be NULL: whether this size was measured. */
double costs_correction(const struct costs *costs, size_t path, uint64_t bytes, bool *known);
/* Records that a transfer which was alone took `ns` and ended at `now`. */
void costs_record(struct costs *costs, size_t path, uint64_t bytes, int64_t ns, int64_t now);

#endif
