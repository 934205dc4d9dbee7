/* SPDX-License-Identifier: MIT */
#include "transfer/transfer.h"

#define LEAST (WORK_BYTES_MAX >> (TUNE_WAYS - 1))
#define FEW   ((uint64_t)8 * WORK_BYTES_MAX)

static bool matters(uint64_t bytes) {
  return bytes >= (uint64_t)2 * LEAST && bytes < FEW;
}

struct slice slice_choose(struct tune *tune, uint64_t bytes, bool tells) {
  struct slice slice = {.bytes = WORK_BYTES_MAX};
  if (!matters(bytes))
    return slice;
  slice.of = tells ? tune : NULL;
  slice.way = tells ? tune_next(tune) : tune_best(tune);
  slice.bytes = WORK_BYTES_MAX >> slice.way;
  return slice;
}

uint32_t slice_best(const struct tune *tune, uint64_t bytes) {
  return matters(bytes) ? WORK_BYTES_MAX >> tune_best(tune) : WORK_BYTES_MAX;
}
