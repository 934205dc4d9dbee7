/* SPDX-License-Identifier: MIT
 * The wire format of the `tcp` transport's frames, little-endian.
 *
 *   header    48 bytes: magic u32, type u8, flags u8, count u16, request u64, handle u64,
 *             payload u64, status i32, 12 bytes of zeros
 *   segments  `count` times 16 bytes: offset u64, length u64 (WRITE and READ); FETCH_ADD and
 *             COMPARE_SWAP have one segment of 8 bytes, followed by value u64 and desired u64
 *   payload   `payload` bytes (WRITE and DATA), the segments back to back
 *   trailer   16 bytes after a payload: checksum u64, status i32, magic u32
 *
 *   WRITE  stores the payload; its response is an ACK
 *   READ   its response is DATA, or an ACK with the reason for its rejection
 *   FETCH_ADD, COMPARE_SWAP  change 8 bytes; their response is as for a READ
 *   ACK    the status of a WRITE, or the rejection of another request
 *   DATA   the bytes of a READ, or the 8 bytes before a FETCH_ADD or COMPARE_SWAP
 *   PARK, PARKED, UNPARKED  whether the rail may be closed (park.c); the rest of the header is 0
 *
 * A sender that cannot complete a payload fills it with zeros and sets the trailer's status. The
 * requester chooses `request`; a response repeats it. */
#ifndef HAUL_FABRIC_TCP_FRAME_H
#define HAUL_FABRIC_TCP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER       48u
#define FRAME_SEGMENT      16u
#define FRAME_TRAILER      16u
#define FRAME_SEGMENTS_MAX 256u
#define FRAME_PAYLOAD_MAX  1048576u
#define FRAME_HEAD_MAX     (FRAME_HEADER + FRAME_SEGMENT * FRAME_SEGMENTS_MAX)

#define FRAME_CHECKSUM 1u /* flag: the receiver verifies the trailer's checksum */

enum frame_type {
  FRAME_WRITE = 1,
  FRAME_READ = 2,
  FRAME_ACK = 3,
  FRAME_DATA = 4,
  FRAME_FETCH_ADD = 5,
  FRAME_COMPARE_SWAP = 6,
  FRAME_PARK = 7,
  FRAME_PARKED = 8,
  FRAME_UNPARKED = 9
};

struct frame { /* the header */
  uint8_t type, flags;
  uint16_t count;
  int32_t status;
  uint64_t request, handle, payload;
};

struct frame_segment {
  uint64_t offset, length;
};

struct frame_trailer {
  uint64_t checksum;
  int32_t status;
};

static inline bool frame_is_atomic(const struct frame *frame) {
  return frame->type == FRAME_FETCH_ADD || frame->type == FRAME_COMPARE_SWAP;
}

static inline bool frame_is_parking(const struct frame *frame) {
  return frame->type >= FRAME_PARK;
}

void frame_pack(const struct frame *frame, uint8_t bytes[FRAME_HEADER]);
void frame_pack_segment(const struct frame_segment *segment, uint8_t bytes[FRAME_SEGMENT]);
void frame_pack_trailer(const struct frame_trailer *trailer, uint8_t bytes[FRAME_TRAILER]);

/* The parsers return 0, or HAUL_EPROTO with the reason in *reason. */

/* Checks that count and payload fit their bounds and the type, and that `status` is a code. */
int frame_parse(const uint8_t bytes[FRAME_HEADER], struct frame *frame, const char **reason);
/* Checks that no segment is empty or wraps around, and that the lengths add up to the payload. For
 * an atomic operation segments[1] receives its value and the desired value. */
int frame_parse_segments(const uint8_t *bytes, const struct frame *frame,
                         struct frame_segment *segments, const char **reason);
int frame_parse_trailer(const uint8_t bytes[FRAME_TRAILER], struct frame_trailer *trailer,
                        const char **reason);

/* Folds the XXH3-64 of the next segment into the checksum of the preceding ones, 0 at first. */
static inline uint64_t frame_checksum(uint64_t sum, uint64_t segment) {
  return (sum << 1 | sum >> 63) ^ segment;
}

#endif
