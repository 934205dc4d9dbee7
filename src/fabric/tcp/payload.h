/* SPDX-License-Identifier: MIT
 * The payload of a frame: segments of a region. Where the region has no view, the payload is
 * staged: a bounce buffer holds it, and the device's engine copies between the two.
 *
 * Received payloads take bounce buffers as STAGING_RECEIVE, sent ones as STAGING_SEND: a peer that
 * does not read can never keep this side from receiving. */
#ifndef HAUL_FABRIC_TCP_PAYLOAD_H
#define HAUL_FABRIC_TCP_PAYLOAD_H

#include <sys/uio.h>

#include "core/sum.h"
#include "fabric/devcopy.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/tcp.h"

#define TCP_BOUNCES 8 /* most bounce buffers of an endpoint in each direction */

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

/* Accumulates the checksum of a large payload as its bytes pass, while the CPU caches hold them. So
 * no second pass delays the response. */
struct running_checksum {
  XXH3_state_t *state; /* of the current segment; NULL: no memory */
  uint64_t sum;        /* of the complete segments */
};

static inline void running_checksum_reset(struct running_checksum *checksum) {
  checksum->sum = 0;
  XXH3_64bits_reset(checksum->state);
}

/* Positions it at the first byte of the segments. */
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

/* Appends iovecs for the next `left` bytes while *count is below `room`; returns whether all
 * fitted. */
bool payload_spans(const struct payload *payload, uint64_t left, struct iovec *spans, int *count,
                   int room);
/* Moves the position on by `bytes`, and adds them to the checksum unless that is NULL. */
void payload_advance(struct payload *payload, uint64_t bytes, struct running_checksum *checksum);
/* The checksum of all segments, computed in the region's memory. */
int payload_checksum(const struct payload *payload, uint64_t *sum);
/* Shortens the iovecs to `most` bytes in total, and returns their bytes. */
uint64_t spans_cut(struct iovec *spans, int *count, uint64_t most);

/* A complete payload in a bounce buffer, being copied to memory without a view; the loop's lock. */
struct staged_receive {
  struct list link; /* the endpoint's staged_receives */
  struct tcp_rail *rail;
  struct frame frame;
  struct frame_trailer trailer;
  struct payload payload; /* its region is a reference for WRITE */
  struct work *work;      /* DATA */
  struct devcopy copy;    /* bounce buffer to region */
  struct frame_segment segments[];
};

/* Gets a bounce buffer for a payload that awaits one: 0, 1 (later), or a code with the detail. */
int payload_get_bounce(struct payload *payload, struct staging_user *user);
void payload_put_bounce(struct payload *payload, struct staging_user *user);

/* Advance the copies, and return whether one ended; *urgent: one must be polled soon. */
/* With the endpoint's lock; the caller calls tcp_advance after it. */
bool staged_sends_poll(struct tcp_endpoint *endpoint, bool *urgent);
/* With the loop's lock. */
bool staged_receives_poll(struct tcp_endpoint *endpoint, bool *urgent);

/* Starts the copy of the rail's payload from its bounce buffer, while the rail reads the next
 * frame. HAUL_ENOMEM: the rail still owns it. With the loop's lock. */
int staged_receive_start(struct tcp_rail *rail, const struct frame_trailer *trailer);
/* Answers the WRITE or ends the READ's work, and frees it. With the loop's lock. */
void staged_receive_finish(struct staged_receive *staged, int code);

/* Cancels waits that are no longer needed, in favour of others. With the loop's lock. */
void tcp_staging_leave_queue(struct tcp_endpoint *endpoint);
/* Reclaims bounce buffers held for too long while others wait, and fails overdue waits. With the
 * loop's lock. */
void tcp_staging_expire(struct tcp_endpoint *endpoint, int64_t now);

#endif
