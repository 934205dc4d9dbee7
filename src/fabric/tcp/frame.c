/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/frame.h"

#include "core/wire.h"
#include "haul/haul.h"

#define MAGIC         0x50435448u /* "HTCP" */
#define MAGIC_TRAILER 0x444e4548u /* "HEND" */

void frame_pack(const struct frame *frame, uint8_t bytes[FRAME_HEADER]) {
  struct wire wire = wire_over(bytes, FRAME_HEADER);
  wire_put32(&wire, MAGIC);
  wire_put8(&wire, frame->type);
  wire_put8(&wire, frame->flags);
  wire_put16(&wire, frame->count);
  wire_put64(&wire, frame->request);
  wire_put64(&wire, frame->handle);
  wire_put64(&wire, frame->payload);
  wire_put32(&wire, (uint32_t)frame->status);
  memset(wire.at, 0, wire_left(&wire));
}

void frame_pack_piece(const struct frame_piece *piece, uint8_t bytes[FRAME_PIECE]) {
  struct wire wire = wire_over(bytes, FRAME_PIECE);
  wire_put64(&wire, piece->offset);
  wire_put64(&wire, piece->length);
}

void frame_pack_trailer(const struct frame_trailer *trailer, uint8_t bytes[FRAME_TRAILER]) {
  struct wire wire = wire_over(bytes, FRAME_TRAILER);
  wire_put64(&wire, trailer->checksum);
  wire_put32(&wire, (uint32_t)trailer->status);
  wire_put32(&wire, MAGIC_TRAILER);
}

static int wrong(const char **what, const char *text) {
  *what = text;
  return HAUL_EPROTO;
}

/* A peer's code is one of ours, or 0. That a path broke, the last of them, is this side's to find
 * out: what ends with it is sent again, for as long as the peer would answer so. */
static int is_code(int32_t status) {
  return status <= 0 && status > HAUL_EPATH;
}

static int check_atomic(const struct frame *frame, const char **what) {
  bool fits = frame->count == 2 && frame->payload == 8 && frame->flags == 0 && frame->status == 0;
  return fits ? 0 : wrong(what, "an atomic operation that is not one of 8 bytes");
}

static int check_shape(const struct frame *frame, const char **what) {
  if (frame_is_atomic(frame))
    return check_atomic(frame, what);
  bool has_pieces = frame->type == FRAME_WRITE || frame->type == FRAME_READ;
  if (frame->count > FRAME_PIECES_MAX || has_pieces != (frame->count > 0))
    return wrong(what, "a frame with an impossible number of pieces");
  if (frame->payload > FRAME_PAYLOAD_MAX)
    return wrong(what, "a frame with too large a payload");
  if ((frame->type == FRAME_ACK) != (frame->payload == 0))
    return wrong(what, "a frame whose payload does not fit its type");
  if (!is_code(frame->status) || (frame->type != FRAME_ACK && frame->status != 0))
    return wrong(what, "a frame with an impossible status");
  return 0;
}

int frame_parse(const uint8_t bytes[FRAME_HEADER], struct frame *frame, const char **what) {
  struct wire wire = wire_over(bytes, FRAME_HEADER);
  uint32_t magic = wire_get32(&wire);
  frame->type = wire_get8(&wire);
  frame->flags = wire_get8(&wire);
  frame->count = wire_get16(&wire);
  frame->request = wire_get64(&wire);
  frame->handle = wire_get64(&wire);
  frame->payload = wire_get64(&wire);
  frame->status = (int32_t)wire_get32(&wire);
  if (magic != MAGIC)
    return wrong(what, "a frame with a wrong magic number");
  if (frame->type < FRAME_WRITE || frame->type > FRAME_COMPARE_SWAP)
    return wrong(what, "a frame of an unknown type");
  if (frame->flags & ~FRAME_CHECKSUM)
    return wrong(what, "a frame with unknown flags");
  while (wire_left(&wire) > 0)
    if (wire_get8(&wire) != 0)
      return wrong(what, "a frame with reserved bytes set");
  return check_shape(frame, what);
}

static int check_operands(const struct frame *frame, const struct frame_piece *operands,
                          const char **what) {
  bool fits = frame->type == FRAME_COMPARE_SWAP || operands->length == 0;
  return fits ? 0 : wrong(what, "an addition with two operands");
}

int frame_parse_pieces(const uint8_t *bytes, const struct frame *frame, struct frame_piece *pieces,
                       const char **what) {
  struct wire wire = wire_over(bytes, (size_t)frame->count * FRAME_PIECE);
  uint64_t total = 0;
  uint16_t count = frame_is_atomic(frame) ? 1 : frame->count;
  for (uint16_t i = 0; i < count; i++) {
    uint64_t end;
    pieces[i].offset = wire_get64(&wire);
    pieces[i].length = wire_get64(&wire);
    if (pieces[i].length == 0 || pieces[i].length > frame->payload - total)
      return wrong(what, "pieces that are not the payload");
    if (__builtin_add_overflow(pieces[i].offset, pieces[i].length, &end))
      return wrong(what, "a piece that wraps around");
    total += pieces[i].length;
  }
  if (total != frame->payload)
    return wrong(what, "pieces that are not the payload");
  if (count == frame->count)
    return 0;
  pieces[count] = (struct frame_piece){wire_get64(&wire), 0};
  pieces[count].length = wire_get64(&wire);
  return check_operands(frame, &pieces[count], what);
}

int frame_parse_trailer(const uint8_t bytes[FRAME_TRAILER], struct frame_trailer *trailer,
                        const char **what) {
  struct wire wire = wire_over(bytes, FRAME_TRAILER);
  trailer->checksum = wire_get64(&wire);
  trailer->status = (int32_t)wire_get32(&wire);
  if (wire_get32(&wire) != MAGIC_TRAILER)
    return wrong(what, "a payload without its trailer");
  return is_code(trailer->status) ? 0 : wrong(what, "a trailer with an impossible status");
}
