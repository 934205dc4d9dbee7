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
  devcopy_cancel(&job->copy);
  job_unqueue(job);
  stage_give(&endpoint->tx, &job->stage);
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
  tcp_advance(endpoint, NULL);
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

/* ---- Sources ---- */

static struct devcopy_segment source_segment(const struct devcopy *copy, uint32_t index) {
  const struct tcp_job *job = copy->owner;
  return (struct devcopy_segment){.to_offset = copy->copied,
                                  .from_offset = job->pieces[index].local,
                                  .length = job->pieces[index].length};
}

/* 0, 1 (later), or a code. */
static int take_source_stage(struct tcp_endpoint *endpoint, struct tcp_job *job) {
  struct memory *device = &job->region->memory;
  int status = stage_take(&endpoint->tx, device, &job->stage);
  if (status)
    return status;
  job->since = clock_now();
  job->copy = (struct devcopy){.engine = device->provider,
                               .to = bounce_memory(job->stage),
                               .from = device,
                               .loop = endpoint->base.link->fabric->loop,
                               .count = job->count,
                               .segment = source_segment,
                               .owner = job};
  return 0;
}

bool stage_sources(struct tcp_endpoint *endpoint, bool *urgent) {
  bool moved = false;
  *urgent = false;
  list_each_safe(item, &endpoint->staging) {
    struct tcp_job *job = list_entry(item, struct tcp_job, link);
    int status = job->stage ? 0 : take_source_stage(endpoint, job);
    if (status > 0)
      break; /* those behind wait too */
    if (status == 0)
      status = devcopy_poll(&job->copy);
    *urgent |= status > 0 && devcopy_is_polled(&job->copy);
    if (status > 0)
      continue;
    moved = true;
    if (status < 0) {
      job_fail(job, status);
      continue;
    }
    list_remove(&job->link);
    job_submit(job);
  }
  return moved;
}

/* ---- Landings ---- */

static struct devcopy_segment landing_segment(const struct devcopy *copy, uint32_t index) {
  const struct landing *landing = copy->owner;
  return (struct devcopy_segment){.to_offset = landing->pieces[index].offset,
                                  .from_offset = copy->copied,
                                  .length = landing->pieces[index].length};
}

void landing_prepare(struct landing *landing) {
  landing->copy = (struct devcopy){.engine = landing->region->memory.provider,
                                   .to = &landing->region->memory,
                                   .from = bounce_memory(landing->stage),
                                   .loop = landing->rail->endpoint->base.link->fabric->loop,
                                   .count = landing->count,
                                   .segment = landing_segment,
                                   .owner = landing};
}

bool stage_landings(struct tcp_endpoint *endpoint, bool *urgent) {
  bool moved = false;
  *urgent = false;
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    int status = devcopy_poll(&landing->copy);
    if (status > 0) {
      *urgent |= devcopy_is_polled(&landing->copy);
      continue;
    }
    landing_finish(landing, status);
    moved = true;
  }
  return moved;
}
