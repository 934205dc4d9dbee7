/* SPDX-License-Identifier: MIT */
#include "core/shrinkable.h"
#include "transfer/transfer.h"

#define PIECES     shrinkable(WORK_PIECES_MAX, 8)
#define SLICE_MIN  (WORK_BYTES_MAX >> (TUNE_WAYS - 1))
#define FEW_SLICES ((uint64_t)8 * WORK_BYTES_MAX) /* bytes; more keep the pipeline full */

static bool is_slice_tuned(uint64_t bytes) {
  return bytes >= (uint64_t)2 * SLICE_MIN && bytes < FEW_SLICES;
}

struct slice slice_whole(void) {
  return (struct slice){.bytes = shrinkable(WORK_BYTES_MAX, 1024)};
}

struct slice slice_choose(struct tune *tune, uint64_t bytes, bool measures) {
  struct slice slice = slice_whole();
  if (!is_slice_tuned(bytes))
    return slice;
  slice.tune = measures ? tune : NULL;
  slice.way = measures ? tune_next(tune) : tune_best(tune);
  slice.bytes = WORK_BYTES_MAX >> slice.way;
  return slice;
}

uint32_t slice_best(const struct tune *tune, uint64_t bytes) {
  return is_slice_tuned(bytes) ? WORK_BYTES_MAX >> tune_best(tune) : WORK_BYTES_MAX;
}

/* A piece is cut where it fills a work. */
size_t plan_pieces(size_t count, uint64_t bytes, uint32_t slice) {
  return count + (size_t)((bytes - 1) / slice);
}

/* A work ends when its bytes or its pieces are full, or as the last one. */
size_t plan_works(size_t count, uint64_t bytes, uint32_t slice) {
  return plan_pieces(count, bytes, slice) / PIECES + (size_t)(bytes / slice) + 1;
}

/* Adds as much of the piece as fits, and returns the bytes added. */
static uint64_t add_piece(struct work *work, struct haul_piece *end, const struct haul_piece *piece,
                          uint32_t slice) {
  uint64_t room = slice - work->bytes;
  uint64_t length = piece->length < room ? piece->length : room;
  if (work->count > 0 && end[-1].local + end[-1].length == piece->local &&
      end[-1].remote + end[-1].length == piece->remote) {
    end[-1].length += length;
  } else {
    if (work->count == PIECES)
      return 0;
    *end = (struct haul_piece){piece->local, piece->remote, length};
    work->count++;
  }
  work->bytes += length;
  return length;
}

void plan_make(struct plan *plan, const struct haul_piece *pieces, size_t count, uint32_t slice) {
  struct haul_piece *end = plan->pieces;
  struct work *work = plan->works;
  *work = (struct work){.pieces = end};
  for (size_t i = 0; i < count; i++) {
    struct haul_piece left = pieces[i];
    while (left.length > 0) {
      uint64_t took = work->bytes < slice ? add_piece(work, end, &left, slice) : 0;
      end = (struct haul_piece *)(uintptr_t)work->pieces + work->count;
      if (took == 0) {
        *++work = (struct work){.pieces = end};
        continue;
      }
      left.local += took;
      left.remote += took;
      left.length -= took;
    }
  }
  plan->work_count = (uint32_t)(work - plan->works) + 1;
}
