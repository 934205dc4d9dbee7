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

void frame_pack_segment(const struct frame_segment *segment, uint8_t bytes[FRAME_SEGMENT]) {
  struct wire wire = wire_over(bytes, FRAME_SEGMENT);
  wire_put64(&wire, segment->offset);
  wire_put64(&wire, segment->length);
}

void frame_pack_trailer(const struct frame_trailer *trailer, uint8_t bytes[FRAME_TRAILER]) {
  struct wire wire = wire_over(bytes, FRAME_TRAILER);
  wire_put64(&wire, trailer->checksum);
  wire_put32(&wire, (uint32_t)trailer->status);
  wire_put32(&wire, MAGIC_TRAILER);
}

static int malformed(const char **reason, const char *text) {
  *reason = text;
  return HAUL_EPROTO;
}

/* HAUL_EPATH, the last code, is rejected: it makes this side retry the work, which a peer could
 * repeat for ever. */
static bool is_status(int32_t status) {
  return status <= 0 && status > HAUL_EPATH;
}

static int check_header(const struct frame *frame, const char **reason) {
  bool has_segments = frame->type == FRAME_WRITE || frame->type == FRAME_READ;
  if (frame_is_atomic(frame)) {
    bool fits = frame->count == 2 && frame->payload == 8 && frame->flags == 0 && frame->status == 0;
    return fits ? 0 : malformed(reason, "a malformed atomic operation");
  }
  if (frame_is_parking(frame)) {
    bool empty = !frame->flags && !frame->count && !frame->request && !frame->handle &&
                 !frame->payload && !frame->status;
    return empty ? 0 : malformed(reason, "a frame about parking with contents");
  }
  if (frame->count > FRAME_SEGMENTS_MAX || has_segments != (frame->count > 0))
    return malformed(reason, "a frame with an invalid number of segments");
  if (frame->payload > FRAME_PAYLOAD_MAX)
    return malformed(reason, "a frame with too large a payload");
  if ((frame->type == FRAME_ACK) != (frame->payload == 0))
    return malformed(reason, "a frame whose payload does not fit its type");
  if (!is_status(frame->status) || (frame->type != FRAME_ACK && frame->status != 0))
    return malformed(reason, "a frame with an invalid status");
  return 0;
}

int frame_parse(const uint8_t bytes[FRAME_HEADER], struct frame *frame, const char **reason) {
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
    return malformed(reason, "a frame with a wrong magic number");
  if (frame->type < FRAME_WRITE || frame->type > FRAME_UNPARKED)
    return malformed(reason, "a frame of an unknown type");
  if (frame->flags & ~FRAME_CHECKSUM)
    return malformed(reason, "a frame with unknown flags");
  while (wire_left(&wire) > 0)
    if (wire_get8(&wire) != 0)
      return malformed(reason, "a frame with reserved bytes set");
  return check_header(frame, reason);
}

int frame_parse_segments(const uint8_t *bytes, const struct frame *frame,
                         struct frame_segment *segments, const char **reason) {
  struct wire wire = wire_over(bytes, (size_t)frame->count * FRAME_SEGMENT);
  uint64_t total = 0;
  uint16_t count = frame_is_atomic(frame) ? 1 : frame->count;
  for (uint16_t i = 0; i < count; i++) {
    uint64_t end;
    segments[i].offset = wire_get64(&wire);
    segments[i].length = wire_get64(&wire);
    if (segments[i].length == 0 || segments[i].length > frame->payload - total)
      return malformed(reason, "segments that do not add up to the payload");
    if (__builtin_add_overflow(segments[i].offset, segments[i].length, &end))
      return malformed(reason, "a segment that wraps around");
    total += segments[i].length;
  }
  if (total != frame->payload)
    return malformed(reason, "segments that do not add up to the payload");
  if (frame_is_atomic(frame)) {
    segments[1].offset = wire_get64(&wire);
    segments[1].length = wire_get64(&wire);
    if (frame->type == FRAME_FETCH_ADD && segments[1].length != 0)
      return malformed(reason, "a FETCH_ADD with two operands");
  }
  return 0;
}

int frame_parse_trailer(const uint8_t bytes[FRAME_TRAILER], struct frame_trailer *trailer,
                        const char **reason) {
  struct wire wire = wire_over(bytes, FRAME_TRAILER);
  trailer->checksum = wire_get64(&wire);
  trailer->status = (int32_t)wire_get32(&wire);
  if (wire_get32(&wire) != MAGIC_TRAILER)
    return malformed(reason, "a payload without its trailer");
  return is_status(trailer->status) ? 0 : malformed(reason, "a trailer with an invalid status");
}
