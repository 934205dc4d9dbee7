/* SPDX-License-Identifier: MIT
 * Works that end before they are done: one is canceled, a region is withdrawn, a rail breaks, the
 * peer leaves. */
#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/rdma.h"

/* Or an atomic: it writes too. */
static bool has_write(const struct list *jobs) {
  list_each(item, jobs) if (list_entry(item, struct rdma_job, link)->work->operation !=
                            HAUL_OP_READ) return true;
  return false;
}

bool rdma_is_writing(struct rdma_endpoint *endpoint) {
  combiner_lock(&endpoint->combiner);
  bool writing = has_write(&endpoint->stepping) || has_write(&endpoint->stranded) ||
                 endpoint->landing_slots > 0;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    writing |= has_write(&endpoint->rails[i].posted);
  combiner_unlock(&endpoint->combiner);
  return writing;
}

static bool any_wanted(const struct list *jobs) {
  list_each(item, jobs) if (list_entry(item, struct rdma_job, link)->wanted) return true;
  return false;
}

/* With the lock: a NIC ends what it has by itself, within the retries' time. One that ends nothing
 * for longer loses its queue pair, and with it all that it could still touch. */
static bool is_stuck(const struct rdma_rail *rail) {
  int64_t patience = any_wanted(&rail->posted) ? RDMA_STUCK : RDMA_SILENCE;
  return rail->posted_count > 0 && clock_now() - rail->moved_at >= patience;
}

/* Those that would end with the peer's word, which it does not give. */
static void end_wanted(struct rdma_endpoint *endpoint) {
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  list_each_safe(item, &endpoint->stranded) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->wanted)
      job_retire(job, job->wanted, &ended);
  }
  combiner_unlock(&endpoint->combiner);
  jobs_end(&ended);
}

void rdma_look_for_stuck(struct rdma_endpoint *endpoint) {
  struct rdma_rail *stuck = NULL;
  if (endpoint->broken) {
    end_wanted(endpoint);
    return;
  }
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    if (is_stuck(&endpoint->rails[i]))
      stuck = &endpoint->rails[i];
  combiner_unlock(&endpoint->combiner);
  if (!stuck)
    return;
  error_set(HAUL_EPATH, 0, stuck->card->nic->name, NULL, "%s holds requests and ends none",
            stuck->card->nic->name);
  rdma_break(endpoint, haul_error_last()->text);
}

void rdma_watch_posted(struct rdma_endpoint *endpoint) {
  if (list_empty(&endpoint->timer.link))
    loop_timer_start(endpoint->base.link->fabric->loop, &endpoint->timer,
                     clock_after(clock_now(), RDMA_STUCK));
}

void rdma_cancel(struct rdma_endpoint *endpoint, struct work *work, int code) {
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  struct rdma_job *job = work->state;
  bool mine = job && job->requests == 0;
  if (job && !mine) /* what the NIC has cannot be taken back */
    job->wanted = code;
  if (mine)
    job_leave_rail(job); /* or another thread would post it now */
  combiner_unlock(&endpoint->combiner);
  rdma_end_refused(endpoint);
  if (!mine)
    return;
  step_cancel(job);
  combiner_lock(&endpoint->combiner);
  job_retire(job, code, &ended);
  combiner_unlock(&endpoint->combiner);
  jobs_end(&ended);
}

/* With the lock: those on withdrawn regions. */
static void retire_revoked(struct list *jobs, struct list *ended) {
  list_each_safe(item, jobs) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (((const struct rdma_binding *)job->work->binding)->revoked)
      job_retire(job, HAUL_ESTALE, ended);
  }
}

void rdma_end_revoked(struct rdma_endpoint *endpoint) {
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
      retire_revoked(&endpoint->rails[i].waiting.queues[rank], &ended);
  retire_revoked(&endpoint->entering, &ended);
  combiner_unlock(&endpoint->combiner);
  error_set(HAUL_ESTALE, 0, NULL, "look it up again", "the peer withdrew the region");
  jobs_end(&ended);
}

/* With the lock. */
static void strand(struct list *jobs, struct list *stranded) {
  while (!list_empty(jobs)) {
    struct rdma_job *job = list_entry(jobs->next, struct rdma_job, link);
    job_leave_rail(job);
    job->fencing = false;
    list_append(stranded, &job->link);
  }
}

static void strand_all(struct rdma_endpoint *endpoint) {
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct rdma_rail *rail = &endpoint->rails[i];
    queue_break(rail);
    strand(&rail->posted, &endpoint->stranded);
    for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
      strand(&rail->waiting.queues[rank], &endpoint->stranded);
  }
  strand(&endpoint->stepping, &endpoint->stranded);
  strand(&endpoint->entering, &endpoint->stranded);
}

/* Shut first: who finds it broken reads why. */
void rdma_break(struct rdma_endpoint *endpoint, const char *reason) {
  endpoint_close(&endpoint->base, "%s", reason);
  combiner_lock(&endpoint->combiner);
  bool first = !endpoint->broken;
  endpoint->broken = true;
  if (first)
    strand_all(endpoint);
  combiner_unlock(&endpoint->combiner);
  if (!first)
    return;
  list_each(item, &endpoint->stranded) step_cancel(list_entry(item, struct rdma_job, link));
  if (any_wanted(&endpoint->stranded))
    loop_timer_start(endpoint->base.link->fabric->loop, &endpoint->timer,
                     clock_after(clock_now(), RDMA_STUCK));
  landings_cancel(endpoint);
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_BROKEN});
}

void rdma_end_stranded(struct rdma_endpoint *endpoint, int code) {
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  while (!list_empty(&endpoint->stranded))
    job_retire(list_entry(endpoint->stranded.next, struct rdma_job, link), code, &ended);
  steps_landed(endpoint);
  combiner_unlock(&endpoint->combiner);
  if (code == HAUL_EPATH)
    error_set(code, 0, NULL, NULL, "%s", endpoint_reason(&endpoint->base));
  jobs_end(&ended);
}

/* The peer is gone, or the node closes. The NIC lets go of everything first. */
void rdma_drain(struct rdma_endpoint *endpoint, int code) {
  rdma_break(endpoint, "the peer left");
  rdma_end_stranded(endpoint, code);
}
