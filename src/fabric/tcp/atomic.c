/* SPDX-License-Identifier: MIT
 * Atomic operations: the asker's frame, and the owner's processor, which does them when the frame
 * arrives. The answer is the DATA of a read of 8 bytes, which the job carries itself: the region's
 * own bytes may be others by the time it is sent. */
#include <string.h>

#include "core/error.h"
#include "core/wire.h"
#include "fabric/tcp/tcp.h"

struct tcp_job *job_atomic(const struct work *work, uint64_t request) {
  bool add = work->operation == HAUL_OP_FETCH_ADD;
  struct tcp_job *job =
      job_new(add ? FRAME_FETCH_ADD : FRAME_COMPARE_SWAP, FRAME_HEADER + 2 * FRAME_PIECE, 0);
  if (!job)
    return NULL;
  const struct frame frame = {
      .type = job->type, .count = 2, .request = request, .handle = work->key->handle, .payload = 8};
  const struct frame_piece piece = {work->pieces->remote, 8};
  const struct frame_piece operands = {work->operands.value, work->operands.desired};
  frame_pack(&frame, job->bytes);
  frame_pack_piece(&piece, job->bytes + FRAME_HEADER);
  frame_pack_piece(&operands, job->bytes + FRAME_HEADER + FRAME_PIECE);
  return job;
}

/* ---- The owner ---- */

#define ANSWER (FRAME_HEADER + 8 + FRAME_TRAILER)

/* Whole but for the old value. */
static struct tcp_job *make_answer(struct tcp_rail *rail) {
  struct tcp_job *job = job_new(FRAME_DATA, ANSWER, 0);
  if (!job)
    return NULL;
  const struct frame frame = {.type = FRAME_DATA, .request = rail->frame.request, .payload = 8};
  frame_pack(&frame, job->bytes);
  frame_pack_trailer(&(struct frame_trailer){0, 0}, job->bytes + FRAME_HEADER + 8);
  job->rail = rail;
  return job;
}

/* Where the processor finds the 8 bytes; or why it does not. */
static int locate(const struct tcp_rail *rail, const struct memory *memory, void **place) {
  if (!memory->view)
    return HAUL_ENOTSUP;
  *place = (char *)memory->view + rail->pieces[0].offset;
  if (!memory->writable)
    return HAUL_EACCESS;
  return (uintptr_t)*place % 8 ? HAUL_EINVAL : 0;
}

int rail_operate(struct tcp_rail *rail, struct haul_region *region) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  bool add = rail->frame.type == FRAME_FETCH_ADD;
  const struct operands operands = {rail->pieces[1].offset, rail->pieces[1].length};
  void *place = NULL;
  int code = locate(rail, &region->memory, &place);
  if (code)
    return code;
  struct tcp_job *job = make_answer(rail); /* first: what took place has to be told */
  if (!job)
    return HAUL_ENOMEM;
  uint64_t old = operate(place, add ? HAUL_OP_FETCH_ADD : HAUL_OP_COMPARE_SWAP, &operands);
  memcpy(job->bytes + FRAME_HEADER, &old, sizeof old);
  combiner_lock(&endpoint->combiner);
  job_enqueue(job);
  atomic_store_explicit(&rail->unsent, true, memory_order_relaxed);
  combiner_unlock(&endpoint->combiner);
  return 0;
}
