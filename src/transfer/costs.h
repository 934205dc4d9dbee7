/* SPDX-License-Identifier: MIT
 * What the paths between memories of one sort at both ends take, by size: first as the transports
 * estimate it, then as transfers took. The cheapest path for each size is kept, so that choosing is
 * a load.
 *
 * The estimates are what good hardware does. A path that is worse is corrected by using it; what is
 * estimated too slow is never tried for the sake of knowing. A size is known for a path when four
 * transfers of about it went alone over that path. Their time over the estimate is the correction:
 * within 1/256 and 256, moved by an eighth of what is new, and by little for one that is far off
 * (core/tune.h). What nobody was told of for a while is forgotten, and the path has its chance
 * again: after a minute and a thousand times what it took, so that trying costs little. The path in
 * use keeps its place until another is an eighth cheaper.
 *
 * Any thread may ask and tell; when two tell at once, one may be lost. */
#ifndef HAUL_TRANSFER_COSTS_H
#define HAUL_TRANSFER_COSTS_H

#include "core/tune.h"
#include "fabric/transport.h"

#define COST_SIZES 40u   /* from 2^n bytes to below 2^(n+1); the last without an end */
#define COSTS_MAX  256u  /* a link; remotes beyond them go by the estimates alone */
#define COST_REACH 2u    /* sizes so far away are a guess for one that is not known itself */
#define COST_BOUND 256.0 /* how far a correction goes, either way */

struct cost {
  bool open; /* to all who ask for no path */
  char detail[sizeof((struct estimate *)0)->detail];
  struct line lines[SEND_MODES];
  struct took {
    struct measure ratio;  /* to the estimate, in 1/COST_UNIT */
    _Atomic uint32_t told; /* when, in ms, modulo */
  } took[COST_SIZES];
};
#define COST_UNIT 4096

struct costs {
  struct costs *next;
  uint64_t sort; /* of the local memory, and the operation */
  struct haul_place there;
  struct cost paths[TRANSPORTS_MAX];
  /* The path within the host that moves the bytes once, straight, or -1: no other does less, so
   * nothing that is measured speaks against it. */
  int straight;
  _Atomic uint8_t best[COST_SIZES]; /* path + 1; 0: none is open */
};

/* Those of the link for these estimates, made when first asked for; NULL where there is no memory,
 * or no room for more. They live as long as the link. */
struct costs *costs_of(struct link *link, uint64_t sort, struct haul_place there,
                       const struct estimate estimates[TRANSPORTS_MAX]);
/* Nobody asks any more. */
void costs_free(struct link *link);

static inline unsigned costs_size(uint64_t bytes) {
  unsigned size = bytes ? 63 - (unsigned)__builtin_clzll(bytes) : 0;
  return size < COST_SIZES ? size : COST_SIZES - 1;
}

/* The cheapest open path, or -1. */
static inline int costs_best(const struct costs *costs, uint64_t bytes) {
  return atomic_load_explicit(&costs->best[costs_size(bytes)], memory_order_relaxed) - 1;
}

/* How a transfer of the size is sent, and what it is estimated to take. */
enum send_mode lines_mode(const struct line lines[SEND_MODES], uint64_t bytes);
double lines_ns(const struct line lines[SEND_MODES], uint64_t bytes);
/* What the estimate is to be multiplied with; `known`, which may be NULL: whether that was measured
 * for this size. */
double costs_correction(const struct costs *costs, size_t path, uint64_t bytes, bool *known);
/* A transfer that was alone took so long, up to `now`. */
void costs_tell(struct costs *costs, size_t path, uint64_t bytes, int64_t took_ns, int64_t now);

#endif
