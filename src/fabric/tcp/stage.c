/* SPDX-License-Identifier: MIT
 * Memory without a view goes through the node's staging buffers. What is received takes them as
 * STAGING_RECEIVE: the peer has begun to send, and the device does the rest. What is sent takes
 * them as STAGING_SEND, so that a peer that does not read can never keep this side from receiving.
 */
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/tcp.h"

_Static_assert(WORK_BYTES_MAX <= BOUNCE_BYTES, "a work fits a buffer");

void stages_open(struct tcp_endpoint *endpoint) {
  struct fabric *fabric = endpoint->base.link->fabric;
  struct staging *staging = heap_staging(fabric->heap);
  staging_user_init(staging, &endpoint->tx, STAGING_SEND, TCP_STAGES, loop_wake_callback,
                    fabric->loop);
  staging_user_init(staging, &endpoint->rx, STAGING_RECEIVE, TCP_STAGES, loop_wake_callback,
                    fabric->loop);
}

void stages_close(struct tcp_endpoint *endpoint) {
  staging_cancel_wait(&endpoint->tx);
  staging_cancel_wait(&endpoint->rx);
}

int stage_take(struct staging_user *user, const struct memory *device, struct bounce **stage) {
  return staging_get(user, 1, staging_numa(user->staging, device->place), stage);
}

void stage_give(struct staging_user *user, struct bounce **stage) {
  if (*stage)
    staging_put(user, *stage);
  *stage = NULL;
}

void stages_tend(struct tcp_endpoint *endpoint) {
  if (atomic_load_explicit(&endpoint->tx.waits_since, memory_order_relaxed)) {
    combiner_lock(&endpoint->combiner);
    if (list_empty(&endpoint->staging))
      staging_cancel_wait(&endpoint->tx);
    combiner_unlock(&endpoint->combiner);
  }
  if (!atomic_load_explicit(&endpoint->rx.waits_since, memory_order_relaxed))
    return;
  bool waits = false;
  each_rail(rail, endpoint) waits |= rail_waits_for_stage(rail);
  if (!waits)
    staging_cancel_wait(&endpoint->rx);
}

/* With the lock: the first job on that list that had its buffer, or waits for one, since before
 * `bound`. */
static struct tcp_job *find_overdue(struct list *jobs, bool has_stage, int64_t bound) {
  list_each(item, jobs) {
    struct tcp_job *job = list_entry(item, struct tcp_job, link);
    if ((job->stage != NULL) == has_stage && job->since < bound &&
        (has_stage || job->type == FRAME_DATA))
      return job;
  }
  return NULL;
}

/* With the lock: others have its buffer first. */
static void put_back(struct tcp_job *job, int64_t now) {
  struct tcp_endpoint *endpoint = job->rail->endpoint;
  job_end_copy(job);
  job_unqueue(job);
  stage_give(&endpoint->tx, &job->stage);
  job->staged_pieces = 0;
  job->staged_bytes = 0;
  job->since = now;
  list_append(&endpoint->staging, &job->link);
}

/* With the lock: what has not begun waits again, what is being sent is given up. */
static void expire_queue(struct tcp_rail *rail, int64_t bound, int64_t now) {
  for (struct tcp_job *job; (job = find_overdue(&rail->queue, true, bound));) {
    if (job->sent == 0)
      put_back(job, now);
    else
      job_fail(job, staging_full());
  }
  rail_pump(rail);
}

/* An answer waits no longer than any transfer does: whoever asked is gone. */
static void expire_sources(struct tcp_endpoint *endpoint, int64_t now) {
  const struct haul_node_config *config = endpoint->base.link->fabric->config;
  bool is_short = staging_is_short(endpoint->tx.staging, STAGING_SEND);
  combiner_lock(&endpoint->combiner);
  if (is_short)
    each_rail(rail, endpoint) expire_queue(rail, now - config->liveness_ns, now);
  for (struct tcp_job *job;
       (job = find_overdue(&endpoint->staging, false, now - config->transfer_ns));)
    job_fail(job, staging_full());
  combiner_unlock(&endpoint->combiner);
}

/* A peer that sends takes one that does not read for gone: it is read before that. */
static void expire_payloads(struct tcp_endpoint *endpoint, int64_t now) {
  int64_t bound = endpoint->base.link->fabric->config->liveness_ns;
  int64_t waits_since = atomic_load(&endpoint->rx.waits_since);
  bool is_short = staging_is_short(endpoint->rx.staging, STAGING_RECEIVE);
  each_rail(rail, endpoint) {
    bool waited = waits_since != 0 && now - waits_since > bound / 4 && rail_waits_for_stage(rail);
    bool had = is_short && rail->stage && now - rail->staged_at > bound;
    if (waited || had)
      rail_throw_away(rail, HAUL_ELIMIT);
  }
}

void stages_expire(struct tcp_endpoint *endpoint, int64_t now) {
  expire_payloads(endpoint, now);
  expire_sources(endpoint, now);
  stages_tend(endpoint);
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
  copy->wake = loop_wake_callback;
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
      status = stage_take(&endpoint->tx, &job->region->memory, &job->stage);
      if (status > 0)
        break; /* those behind wait too */
      job->since = clock_now();
      status = status ? status : start_source(job);
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
