/* SPDX-License-Identifier: MIT
 * The checksum of a large payload, taken as its bytes pass by: they are in the cache then, and
 * nothing waits for a sum over all of it. */
#ifndef HAUL_FABRIC_TCP_TALLY_H
#define HAUL_FABRIC_TCP_TALLY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/sum.h"
#include "fabric/tcp/frame.h"

struct tally {
  XXH3_state_t *state;
  uint64_t sum; /* of the pieces that are whole */
};

/* False: no memory. */
static inline bool tally_open(struct tally *tally) {
  tally->state = XXH3_createState();
  return tally->state != NULL;
}

static inline void tally_close(struct tally *tally) {
  XXH3_freeState(tally->state);
}

static inline void tally_begin(struct tally *tally) {
  tally->sum = 0;
  XXH3_64bits_reset(tally->state);
}

static inline void tally_add(struct tally *tally, const void *bytes, size_t length) {
  XXH3_64bits_update(tally->state, bytes, length);
}

/* A piece is whole. */
static inline void tally_piece(struct tally *tally) {
  tally->sum = frame_checksum(tally->sum, XXH3_64bits_digest(tally->state));
  XXH3_64bits_reset(tally->state);
}

#endif
