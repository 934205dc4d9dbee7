/* SPDX-License-Identifier: MIT
 * Frames of the `tcp` transport, little-endian.
 *
 *   header    48 bytes: magic u32, type u8, flags u8, count u16, request u64, handle u64,
 *             payload u64, status i32, 12 bytes of zeros
 *   pieces    count times 16 bytes: offset u64, length u64 (WRITE and READ); of FETCH_ADD and
 *             COMPARE_SWAP one of 8 bytes, and behind it value u64, desired u64
 *   payload   as many bytes as the header says (WRITE and DATA), pieces back to back
 *   trailer   16 bytes behind a payload: checksum u64, status i32, magic u32
 *
 *   WRITE  the peer stores the payload and answers ACK
 *   READ   the peer answers DATA, or ACK with the reason why not
 *   ACK    status of a WRITE, or refusal of a READ
 *   DATA   the bytes of a READ, or what was there before FETCH_ADD or COMPARE_SWAP
 *   FETCH_ADD, COMPARE_SWAP  the peer changes the 8 bytes and answers as for a READ
 *
 * The trailer says whether the payload before it counts: a sender that has to give up in the middle
 * fills the rest with zeros and says so. `request` is the sender's; answers repeat it. */
#ifndef HAUL_FABRIC_TCP_FRAME_H
#define HAUL_FABRIC_TCP_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER      48u
#define FRAME_PIECE       16u
#define FRAME_TRAILER     16u
#define FRAME_PIECES_MAX  256u
#define FRAME_PAYLOAD_MAX 1048576u
#define FRAME_HEAD_MAX    (FRAME_HEADER + FRAME_PIECE * FRAME_PIECES_MAX)

#define FRAME_CHECKSUM 1u /* flag: the trailer's checksum is set and is to be verified */

enum frame_type {
  FRAME_WRITE = 1,
  FRAME_READ = 2,
  FRAME_ACK = 3,
  FRAME_DATA = 4,
  FRAME_FETCH_ADD = 5,
  FRAME_COMPARE_SWAP = 6
};

struct frame {
  uint8_t type, flags;
  uint16_t count;
  int32_t status;
  uint64_t request, handle, payload;
};

struct frame_piece {
  uint64_t offset, length;
};

struct frame_trailer {
  uint64_t checksum;
  int32_t status;
};

void frame_pack(const struct frame *frame, uint8_t bytes[FRAME_HEADER]);
void frame_pack_piece(const struct frame_piece *piece, uint8_t bytes[FRAME_PIECE]);
void frame_pack_trailer(const struct frame_trailer *trailer, uint8_t bytes[FRAME_TRAILER]);

static inline int frame_is_atomic(const struct frame *frame) {
  return frame->type >= FRAME_FETCH_ADD;
}

/* Parses and checks a header: 0, or HAUL_EPROTO and *what says what is wrong. Afterwards count and
 * payload are within their bounds and fit the type; `status` is a code. */
int frame_parse(const uint8_t bytes[FRAME_HEADER], struct frame *frame, const char **what);
/* The frame's pieces: HAUL_EPROTO unless each has bytes, none wraps around, and together they are
 * the payload. Of an atomic pieces[1] is its value and what is desired. */
int frame_parse_pieces(const uint8_t *bytes, const struct frame *frame, struct frame_piece *pieces,
                       const char **what);
int frame_parse_trailer(const uint8_t bytes[FRAME_TRAILER], struct frame_trailer *trailer,
                        const char **what);

/* Folds the checksum of one more piece into that of the pieces before it (0 at first). */
static inline uint64_t frame_checksum(uint64_t sum, uint64_t piece) {
  return (sum << 1 | sum >> 63) ^ piece;
}

#endif
