/* SPDX-License-Identifier: MIT
 * A frame of tcp: header, segments, trailer; or a record of the rdma channel. Whatever the parsers
 * accept the packers write in the same bytes. */
#include <string.h>

#include "fabric/rdma/frame.h"
#include "fabric/tcp/frame.h"
#include "rig.h"

static void try_trailer(const uint8_t *bytes) {
  struct frame_trailer trailer;
  uint8_t again[FRAME_TRAILER];
  const char *what = NULL;
  if (frame_parse_trailer(bytes, &trailer, &what) != 0) {
    RIG_ASSERT(what);
    return;
  }
  frame_pack_trailer(&trailer, again);
  RIG_ASSERT(memcmp(bytes, again, sizeof again) == 0);
}

static void try_segments(const uint8_t *bytes, size_t length, const struct frame *frame) {
  struct frame_segment segments[FRAME_SEGMENTS_MAX];
  const char *what = NULL;
  uint64_t total = 0;
  if (length < frame->count * FRAME_SEGMENT)
    return;
  if (frame_parse_segments(bytes, frame, segments, &what) != 0) {
    RIG_ASSERT(what);
    return;
  }
  uint16_t count = frame_is_atomic(frame) ? 1 : frame->count; /* any operands */
  for (uint16_t i = 0; i < count; i++) {
    RIG_ASSERT(segments[i].length > 0 &&
               segments[i].offset + segments[i].length > segments[i].offset);
    total += segments[i].length;
  }
  RIG_ASSERT(total == frame->payload);
}

/* The bytes behind a record's last field are arbitrary. */
static void try_record(const uint8_t *bytes) {
  struct rdma_record record, same;
  uint8_t packed[RDMA_RECORD], again[RDMA_RECORD];
  if (rdma_parse(bytes, &record) != 0)
    return;
  rdma_pack(&record, packed);
  RIG_ASSERT(rdma_parse(packed, &same) == 0);
  rdma_pack(&same, again);
  RIG_ASSERT(memcmp(packed, again, sizeof packed) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct frame frame;
  uint8_t again[FRAME_HEADER];
  const char *what = NULL;
  if (length >= RDMA_RECORD)
    try_record(bytes);
  if (length >= FRAME_TRAILER)
    try_trailer(bytes + length - FRAME_TRAILER);
  if (length < FRAME_HEADER)
    return 0;
  if (frame_parse(bytes, &frame, &what) != 0) {
    RIG_ASSERT(what);
    return 0;
  }
  frame_pack(&frame, again);
  RIG_ASSERT(memcmp(bytes, again, sizeof again) == 0);
  if (frame.count > 0)
    try_segments(bytes + FRAME_HEADER, length - FRAME_HEADER, &frame);
  return 0;
}
