/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/payload.h"

#include "memory/copy.h"

bool payload_spans(const struct payload *payload, uint64_t left, struct iovec *spans, int *count,
                   int room) {
  uint64_t at = payload->at;
  for (const struct frame_segment *segment = payload->segment; left > 0 && *count < room;
       segment++) {
    spans[(*count)++] = (struct iovec){payload->view + segment->offset + at, segment->length - at};
    left -= segment->length - at;
    at = 0;
  }
  return left == 0;
}

void payload_advance(struct payload *payload, uint64_t bytes, struct running_checksum *checksum) {
  while (bytes > 0) {
    const struct frame_segment *segment = payload->segment;
    uint64_t left = segment->length - payload->at;
    uint64_t here = bytes < left ? bytes : left;
    if (checksum)
      XXH3_64bits_update(checksum->state, payload->view + segment->offset + payload->at, here);
    bytes -= here;
    payload->at += here;
    if (here < left)
      return;
    payload->segment++;
    payload->at = 0;
    if (checksum) {
      checksum->sum = frame_checksum(checksum->sum, XXH3_64bits_digest(checksum->state));
      XXH3_64bits_reset(checksum->state);
    }
  }
}

int payload_checksum(const struct payload *payload, uint64_t *sum) {
  *sum = 0;
  for (uint32_t i = 0; i < payload->count; i++) {
    const struct frame_segment *segment = &payload->segments[i];
    uint64_t one;
    int code = memory_checksum(&payload->region->memory, segment->offset, segment->length, &one);
    if (code)
      return code;
    *sum = frame_checksum(*sum, one);
  }
  return 0;
}

uint64_t spans_cut(struct iovec *spans, int *count, uint64_t most) {
  uint64_t bytes = 0;
  for (int i = 0; i < *count; i++) {
    if (spans[i].iov_len > most - bytes)
      spans[i].iov_len = most - bytes;
    bytes += spans[i].iov_len;
    if (bytes == most)
      *count = i + 1;
  }
  return bytes;
}
