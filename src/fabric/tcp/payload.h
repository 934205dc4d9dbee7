/* SPDX-License-Identifier: MIT
 * The payload of a frame in memory: segments of a region. Where the region has no view, a bounce
 * buffer holds the payload, and the device's engine copies between the two (staging.c). */
#ifndef HAUL_FABRIC_TCP_PAYLOAD_H
#define HAUL_FABRIC_TCP_PAYLOAD_H

#include <sys/uio.h>

#include "core/sum.h"
#include "fabric/tcp/frame.h"
#include "memory/region.h"

struct payload {
  struct haul_region *region; /* NULL: none */
  const struct frame_segment *segments;
  uint32_t count;
  uint64_t length;
  struct bounce *bounce;
  int64_t since;               /* when it began to wait for `bounce`, or got it */
  struct frame_segment staged; /* the whole payload in the bounce buffer */
  /* The next byte to move: `at` bytes into a segment, whose offset counts from `view`. */
  uint8_t *view;
  const struct frame_segment *segment;
  uint64_t at;
};

/* Accumulates the checksum of a large payload while its bytes pass by: they are in the cache then,
 * and no second pass over all of them delays the response. */
struct running_checksum {
  XXH3_state_t *state; /* of the current segment; NULL: no memory */
  uint64_t sum;        /* of the complete segments */
};

static inline void running_checksum_reset(struct running_checksum *checksum) {
  checksum->sum = 0;
  XXH3_64bits_reset(checksum->state);
}

/* All of the segments is to be moved, from the first byte on. */
static inline void payload_start(struct payload *payload, struct haul_region *region,
                                 const struct frame_segment *segments, uint32_t count,
                                 uint64_t length) {
  *payload = (struct payload){.region = region,
                              .segments = segments,
                              .count = count,
                              .length = length,
                              .view = region ? region->memory.view : NULL,
                              .segment = segments};
}

static inline bool payload_awaits_bounce(const struct payload *payload) {
  return payload->region && !payload->region->memory.view && !payload->bounce;
}

/* Appends iovecs for the next `left` bytes while *count is below `room`; returns whether all of
 * them fitted. */
bool payload_spans(const struct payload *payload, uint64_t left, struct iovec *spans, int *count,
                   int room);
/* The next `bytes` were moved; adds them to the checksum unless that is NULL. */
void payload_advance(struct payload *payload, uint64_t bytes, struct running_checksum *checksum);
/* The checksum of all segments, computed where the region's bytes are. */
int payload_checksum(const struct payload *payload, uint64_t *sum);

/* Shortens the iovecs to `most` bytes in total, and returns how many they hold then. */
uint64_t spans_cut(struct iovec *spans, int *count, uint64_t most);

#endif
