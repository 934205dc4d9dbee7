/* SPDX-License-Identifier: MIT
 * Memory without a view goes through host buffers. Each direction of an endpoint has its own few,
 * so that a peer that does not read can never keep this side from receiving: buffers of the
 * receiving side wait for the device alone. */
#include <string.h>

#include "core/error.h"
#include "fabric/tcp/tcp.h"

struct stage *stage_take(struct tcp_endpoint *endpoint, struct stage *stages) {
  for (unsigned i = 0; i < TCP_STAGES; i++) {
    struct stage *stage = &stages[i];
    if (stage->busy)
      continue;
    if (!stage->region && heap_alloc(endpoint->base.link->fabric->heap,
                                     (struct haul_place){HAUL_HOST, 0}, FRAME_PAYLOAD_MAX,
                                     HAUL_REGION_PRIVATE | HAUL_REGION_PINNED, &stage->region) != 0)
      return NULL;
    stage->busy = true;
    return stage;
  }
  return NULL;
}

bool stages_busy(const struct stage *stages) {
  for (unsigned i = 0; i < TCP_STAGES; i++)
    if (stages[i].busy)
      return true;
  return false;
}

void stages_release(struct stage *stages) {
  for (unsigned i = 0; i < TCP_STAGES; i++) {
    if (stages[i].region)
      region_put(stages[i].region);
    stages[i] = (struct stage){NULL, false};
  }
}

static int start(struct tcp_endpoint *endpoint, const struct provider *engine, struct copy *copy,
                 struct memory *to, uint64_t to_offset, struct memory *from, uint64_t from_offset,
                 uint64_t length) {
  memset(copy, 0, sizeof *copy);
  copy->to = to;
  copy->to_offset = to_offset;
  copy->from = from;
  copy->from_offset = from_offset;
  copy->length = length;
  copy->wake = loop_wake_as;
  copy->user = endpoint->base.link->fabric->loop;
  int code = engine->copy_start(copy);
  if (code)
    copy->to = NULL; /* there is nothing to cancel */
  return code;
}

/* ---- Sources ---- */

static int start_source(struct tcp_job *job) {
  const struct haul_piece *piece = &job->pieces[job->staged_pieces];
  struct memory *from = &job->region->memory;
  return start(job->rail->endpoint, from->provider, &job->copy, &job->stage->region->memory,
               job->staged_bytes, from, piece->local, piece->length);
}

/* 1: under way, 0: the payload lies in the stage, else a code. */
static int advance_source(struct tcp_job *job) {
  const struct provider *engine = job->region->memory.provider;
  for (;;) {
    int status = engine->copy_poll(&job->copy);
    if (status != 0)
      return status;
    job->staged_bytes += job->pieces[job->staged_pieces++].length;
    if (job->staged_pieces == job->count)
      return 0;
    status = start_source(job);
    if (status)
      return status;
  }
}

void job_end_copy(struct tcp_job *job) {
  if (job->copy.to)
    job->region->memory.provider->copy_cancel(&job->copy);
  job->copy.to = NULL;
}

/* A source that lies in its stage pumps its rail, which starts others: not before all were seen. */
bool stage_sources(struct tcp_endpoint *endpoint, bool *urgent) {
  bool moved = false, settling = endpoint->settling;
  *urgent = false;
  endpoint->settling = true;
  list_each_safe(item, &endpoint->staging) {
    struct tcp_job *job = list_entry(item, struct tcp_job, link);
    int status = 1;
    if (!job->stage) {
      job->stage = stage_take(endpoint, endpoint->tx_stages);
      if (!job->stage && stages_busy(endpoint->tx_stages))
        break; /* those behind wait too */
      status = job->stage ? start_source(job) : error_memory("buffer for a device");
      status = status ? status : 1;
    }
    if (status > 0)
      status = advance_source(job);
    *urgent |= status > 0 && !job->region->memory.provider->wakes;
    if (status > 0)
      continue;
    moved = true;
    job_end_copy(job);
    if (status < 0) {
      struct tcp_rail *rail = job->rail;
      job_fail(job, status);
      rail_pump(rail);
      continue;
    }
    list_remove(&job->link);
    job_submit(job);
  }
  endpoint->settling = settling;
  tcp_settled(endpoint);
  return moved;
}

/* ---- Landings ---- */

static int start_landing(struct landing *landing) {
  const struct frame_piece *piece = &landing->pieces[landing->piece];
  struct memory *to = &landing->region->memory;
  return start(landing->rail->endpoint, to->provider, &landing->copy, to, piece->offset,
               &landing->stage->region->memory, landing->staged, piece->length);
}

static int advance_landing(struct landing *landing) {
  const struct provider *engine = landing->region->memory.provider;
  for (;;) {
    int status = landing->copy.to ? engine->copy_poll(&landing->copy) : start_landing(landing);
    if (status != 0)
      return status;
    if (atomic_load(&landing->copy.status) > 0)
      continue;
    landing->staged += landing->pieces[landing->piece++].length;
    if (landing->piece == landing->count)
      return 0;
    landing->copy.to = NULL;
  }
}

bool stage_landings(struct tcp_endpoint *endpoint, bool *urgent) {
  bool moved = false;
  *urgent = false;
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    int status = advance_landing(landing);
    if (status > 0) {
      *urgent |= !landing->region->memory.provider->wakes;
      continue;
    }
    landing_finish(landing, status);
    moved = true;
  }
  return moved;
}
