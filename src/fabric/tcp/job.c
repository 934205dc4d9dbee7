/* SPDX-License-Identifier: MIT
 * Frames that are to be sent, from their making to their end. */
#include <errno.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/tcp.h"
#include "memory/copy.h"

struct tcp_job *job_new(uint8_t type, uint32_t head, size_t extra) {
  struct tcp_job *job = alloc_zero(1, sizeof *job + head + extra);
  if (!job) {
    error_memory("frame");
    return NULL;
  }
  list_init(&job->link);
  job->type = type;
  job->head = head;
  return job;
}

int pieces_checksum(struct memory *memory, const struct haul_piece *pieces, uint32_t count,
                    uint64_t *sum) {
  *sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t piece;
    int code = memory_checksum(memory, pieces[i].local, pieces[i].length, &piece);
    if (code)
      return code;
    *sum = frame_checksum(*sum, piece);
  }
  return 0;
}

static int set_trailer(struct tcp_job *job, bool checksum) {
  struct frame_trailer trailer = {0, 0};
  int code = 0;
  if (checksum)
    code = pieces_checksum(&job->region->memory, job->pieces, job->count, &trailer.checksum);
  frame_pack_trailer(&trailer, job->trailer);
  return code;
}

struct tcp_job *job_request(const struct work *work, uint64_t request) {
  if (operation_is_atomic(work->operation))
    return job_atomic(work, request);
  bool write = work->operation == HAUL_OP_WRITE;
  uint32_t head = FRAME_HEADER + work->count * FRAME_PIECE;
  struct tcp_job *job = job_new(write ? FRAME_WRITE : FRAME_READ, head, 0);
  if (!job)
    return NULL;
  struct frame frame = {.type = job->type,
                        .flags = work->checksum ? FRAME_CHECKSUM : 0,
                        .count = (uint16_t)work->count,
                        .request = request,
                        .handle = work->key->handle,
                        .payload = work->bytes};
  frame_pack(&frame, job->bytes);
  for (uint32_t i = 0; i < work->count; i++) {
    struct frame_piece piece = {work->pieces[i].remote, work->pieces[i].length};
    frame_pack_piece(&piece, job->bytes + FRAME_HEADER + i * FRAME_PIECE);
  }
  if (!write)
    return job;
  job->region = work->region;
  job->pieces = work->pieces;
  job->count = work->count;
  job->payload = work->bytes;
  const struct tcp_endpoint *endpoint = (const struct tcp_endpoint *)work->endpoint;
  job->splice = tcp_lends(&work->region->memory) && work->bytes >= endpoint->splice_from &&
                work->bytes >= (uint64_t)work->count * SPLICE_PIECE;
  job->tallies = work->checksum && job->splice && !work->region->memory.provider->checksum;
  if (set_trailer(job, work->checksum && !job->tallies) != 0) {
    alloc_free(job);
    return NULL;
  }
  return job;
}

struct tcp_job *job_ack(uint64_t request, int32_t status) {
  struct tcp_job *job = job_new(FRAME_ACK, FRAME_HEADER, 0);
  if (!job)
    return NULL;
  struct frame frame = {.type = FRAME_ACK, .request = request, .status = status};
  frame_pack(&frame, job->bytes);
  return job;
}

struct tcp_job *job_data(const struct frame *request, const struct frame_piece *pieces,
                         struct haul_region *region) {
  struct tcp_job *job =
      job_new(FRAME_DATA, FRAME_HEADER, request->count * sizeof(struct haul_piece));
  if (!job)
    return NULL;
  struct frame frame = {.type = FRAME_DATA,
                        .flags = request->flags,
                        .request = request->request,
                        .payload = request->payload};
  frame_pack(&frame, job->bytes);
  struct haul_piece *copy = (struct haul_piece *)(void *)(job->bytes + FRAME_HEADER);
  for (uint16_t i = 0; i < request->count; i++)
    copy[i] = (struct haul_piece){.local = pieces[i].offset, .length = pieces[i].length};
  job->region = region;
  job->handle = request->handle;
  job->pieces = copy;
  job->count = request->count;
  job->payload = request->payload;
  if (set_trailer(job, request->flags & FRAME_CHECKSUM) != 0) {
    alloc_free(job);
    return NULL;
  }
  return job;
}

void job_free(struct tcp_job *job) {
  if (job->rail)
    stage_give(&job->rail->endpoint->tx, &job->stage);
  if (job->type == FRAME_DATA && job->region)
    region_put(job->region);
  alloc_free(job);
}

void job_enqueue(struct tcp_job *job) {
  struct tcp_rail *rail = job->rail;
  if (list_empty(&rail->queue))
    rail->tx_moved = clock_now();
  list_append(&rail->queue, &job->link);
  job->queued = true;
  rail->queued += job->payload;
  rail->fresh = true;
}

void job_submit(struct tcp_job *job) {
  struct tcp_endpoint *endpoint = job->rail->endpoint;
  if (job->region && !job->region->memory.view && !job->stage) {
    bool urgent;
    job->since = clock_now();
    list_append(&endpoint->staging, &job->link);
    stage_sources(endpoint, &urgent);
    loop_wake(endpoint->base.link->fabric->loop);
    return;
  }
  job_enqueue(job);
}

void job_unqueue(struct tcp_job *job) {
  list_remove(&job->link);
  if (job->queued)
    job->rail->queued -= job->payload;
  job->queued = false;
}

bool job_abandon(struct tcp_job *job, int32_t status) {
  if (job->slot)
    job->slot->job = NULL;
  job->slot = NULL;
  if (job->sent == 0) {
    devcopy_cancel(&job->copy);
    job_unqueue(job);
    job_free(job);
    return true;
  }
  struct frame_trailer trailer = {0, status};
  if (job->sent < job->head + job->payload)
    frame_pack_trailer(&trailer, job->trailer);
  job->filler = true;
  job->splice = false;
  stage_give(&job->rail->endpoint->tx, &job->stage);
  if (job->type == FRAME_DATA && job->region)
    region_put(job->region);
  job->region = NULL;
  job->pieces = NULL;
  return false;
}

void job_refuse(struct tcp_job *job, int32_t status) {
  struct tcp_rail *rail = job->rail;
  struct link *link = rail->endpoint->base.link;
  struct frame frame;
  const char *what;
  frame_parse(job->bytes, &frame, &what);
  if (!job_abandon(job, status))
    return;
  struct tcp_job *refusal = job_ack(frame.request, status);
  if (!refusal) {
    link->fail(link, HAUL_ENOMEM, "no memory for an answer");
    return;
  }
  refusal->rail = rail;
  job_enqueue(refusal);
}

void job_fail(struct tcp_job *job, int code) {
  if (job->type == FRAME_DATA) {
    job_refuse(job, code);
    return;
  }
  struct work *work = job->slot ? slot_abandon(job->rail->endpoint, job->slot, code) : NULL;
  if (work)
    work->done(work, code);
}
