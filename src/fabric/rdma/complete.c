/* SPDX-License-Identifier: MIT
 * Completions, which keep a rail's posting order, and works that end early: a work is canceled, a
 * region is revoked, a rail breaks, the peer leaves. */
#include "core/error.h"
#include "core/sys.h"
#include "fabric/devcopy.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/endpoint.h"

/* With the lock: all jobs up to this one are complete. */
static void complete_up_to(struct rdma_rail *rail, struct rdma_job *last, int code,
                           struct list *ended) {
  bool more = true;
  while (more && !list_empty(&rail->posted)) {
    struct rdma_job *job = list_entry(rail->posted.next, struct rdma_job, link);
    more = job != last;
    int outcome = more || code == 0 ? job->cancel_code : code;
    if (outcome == 0 && step_after_nic(job)) {
      job_leave_rail(job);
      list_append(&rail->endpoint->stepping, &job->link);
    } else {
      job_retire(job, outcome, ended);
    }
  }
}

/* With the lock. An error completion is for the first work request that failed, signaled or not;
 * those behind it are flushed. A flush without an earlier failure means that the queue pair went to
 * the error state for another reason: a request of the peer, or the end of the device. */
static void handle_completion(struct rdma_rail *rail, const struct ibv_wc *completion,
                              struct list *ended) {
  bool message = completion->wr_id & (WR_ID_RECEIVE | WR_ID_SEND);
  struct rdma_job *job = message ? NULL : (struct rdma_job *)(uintptr_t)completion->wr_id;
  if (completion->status != IBV_WC_SUCCESS) {
    rdma_rail_drop_receive(rail, completion);
    if (rail->broken)
      return;                         /* its job ends with the rail, and may have ended already */
    if (!rdma_rail_is_usable(rail)) { /* it has no jobs, and is closed alone */
      rail->messages.completed = rail->messages.sent;
      return;
    }
  }
  if (completion->status == IBV_WC_WR_FLUSH_ERR && completion->wr_id & WR_ID_RECEIVE) {
    rail->flushed = true; /* a completion that names the cause may follow */
  } else if (completion->status == IBV_WC_SUCCESS && message) {
    rdma_rail_complete_message(rail, completion);
  } else if (completion->status == IBV_WC_SUCCESS) {
    complete_up_to(rail, job, 0, ended);
  } else {
    int code = rdma_rail_set_error(rail, completion->status, completion->vendor_err);
    if (code != HAUL_EPATH && job)
      complete_up_to(rail, job, code, ended);
    rdma_rail_mark_broken(rail);
  }
}

static bool poll_rail(struct rdma_rail *rail, struct list *ended) {
  struct ibv_wc completions[16];
  bool any = false, progress = false;
  int count;
  do {
    count = ibv_poll_cq(rail->cq, 16, completions);
    for (int i = 0; i < count; i++) {
      progress |= !(completions[i].wr_id & WR_ID_RECEIVE); /* receives are the peer's progress */
      handle_completion(rail, &completions[i], ended);
    }
    any |= count > 0;
  } while (count == 16);
  if (progress)
    rail->progress_at = clock_now();
  if (rail->flushed && !rail->broken && rdma_rail_is_usable(rail)) {
    rdma_rail_set_error(rail, IBV_WC_WR_FLUSH_ERR, 0);
    rdma_rail_mark_broken(rail);
  }
  if (count < 0) {
    error_set(HAUL_EPATH, 0, rail->device->nic->name, NULL, "its completion queue cannot be read");
    rdma_rail_mark_broken(rail);
  }
  rdma_rail_post_waiting(rail);
  return any;
}

/* Polls once more after arming: completions that came before raise no event. */
bool rdma_arm(struct poller *poller) {
  struct rdma_endpoint *endpoint = list_entry(poller, struct rdma_endpoint, poller);
  bool again = false;
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count && !endpoint->broken; i++) {
    struct rdma_rail *rail = endpoint->rails[i];
    again |= rail->broken; /* the next turn breaks the path */
    if (rail->armed || rail->broken)
      continue;
    int system = ibv_req_notify_cq(rail->cq, 0);
    if (system) {
      error_set(HAUL_EPATH, system, rail->device->nic->name, NULL,
                "its completion queue gives no events");
      rdma_rail_mark_broken(rail);
    }
    rail->armed = true;
    again = true;
  }
  combiner_unlock(&endpoint->combiner);
  return again;
}

static void start_timer(struct rdma_endpoint *endpoint) {
  loop_timer_start(endpoint->base.link->fabric->loop, &endpoint->timer,
                   clock_after(clock_now(), RDMA_CANCEL_NS));
}

bool rdma_poll(struct rdma_endpoint *endpoint) {
  struct list ended = LIST_INIT(ended);
  const struct rdma_rail *broken = NULL; /* its reason is constant from now on */
  bool any = false, urgent = false;
  bool posted = false, fences = false, messages = false; /* work to run without the lock */
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count && !endpoint->broken; i++) {
    struct rdma_rail *rail = endpoint->rails[i];
    any |= poll_rail(rail, &ended);
    posted |= rdma_rail_is_busy(rail);
    fences |= rail->pending_fence_count > 0;
    messages |= rail->messages.received != rail->messages.handled;
    if (rail->broken && !broken)
      broken = rail;
  }
  bool steps = !list_empty(&endpoint->stepping) || !list_empty(&endpoint->acquiring);
  combiner_unlock(&endpoint->combiner);
  jobs_end(&ended);
  rdma_end_rejected(endpoint);
  if (posted && !timer_runs(&endpoint->timer))
    start_timer(endpoint);
  if (fences)
    rdma_fence_writes(endpoint);
  if (messages)
    any |= rdma_handle_messages(endpoint);
  if (steps)
    any |= steps_poll(endpoint, &urgent);
  any |= staged_copies_poll(endpoint, &urgent);
  endpoint->poller.urgent = urgent;
  if (broken)
    rdma_break(endpoint, broken->broken_reason);
  else if (endpoint->restore.probing)
    rdma_restore_poll(endpoint);
  return any;
}

__attribute__((cold)) void rdma_cancel(struct endpoint *base, struct work *work, int code) {
  struct rdma_endpoint *endpoint = (struct rdma_endpoint *)base;
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  struct rdma_job *job = work->state;
  bool ours = job && job->requests == 0;
  if (job && !ours) /* posted work requests cannot be withdrawn: it ends when they complete */
    job->cancel_code = code;
  if (ours)
    job_leave_rail(job); /* or another thread would post it now */
  combiner_unlock(&endpoint->combiner);
  rdma_end_rejected(endpoint);
  if (!ours)
    return;
  step_cancel(job);
  combiner_lock(&endpoint->combiner);
  job_retire(job, code, &ended);
  combiner_unlock(&endpoint->combiner);
  jobs_end(&ended);
}

/* With the lock. */
__attribute__((cold)) static void retire_revoked(struct list *jobs, struct list *ended) {
  list_each_safe(item, jobs) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (((const struct rdma_binding *)job->work->binding)->revoked)
      job_retire(job, HAUL_ESTALE, ended);
  }
}

/* A job on a revoked region whose bytes are between this side's device and a bounce buffer. */
__attribute__((cold)) static struct rdma_job *find_revoked_copy(struct rdma_endpoint *endpoint) {
  struct rdma_job *found = NULL;
  combiner_lock(&endpoint->combiner);
  list_each(item, &endpoint->stepping) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->copy && (job->step == STEP_FILL || job->step == STEP_DRAIN) &&
        ((const struct rdma_binding *)job->work->binding)->revoked)
      found = job;
  }
  combiner_unlock(&endpoint->combiner);
  return found;
}

__attribute__((cold)) void rdma_end_revoked(struct rdma_endpoint *endpoint) {
  struct list ended = LIST_INIT(ended);
  /* The owner waits for the region's last job for at most its liveness timeout, and a slow device
   * may copy for longer. */
  for (struct rdma_job *job; (job = find_revoked_copy(endpoint));) {
    devcopy_cancel(job->copy);
    combiner_lock(&endpoint->combiner);
    job_retire(job, HAUL_ESTALE, &ended);
    combiner_unlock(&endpoint->combiner);
  }
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
      retire_revoked(&endpoint->rails[i]->waiting.queues[rank], &ended);
  retire_revoked(&endpoint->acquiring, &ended);
  combiner_unlock(&endpoint->combiner);
  error_set(HAUL_ESTALE, 0, NULL, NULL, "the peer withdrew the region");
  jobs_end(&ended);
}

/* Atomics count: they write as well. */
static bool has_write(const struct list *jobs) {
  list_each(item, jobs) if (list_entry(item, struct rdma_job, link)->work->operation !=
                            HAUL_OP_READ) return true;
  return false;
}

bool rdma_has_writes(struct rdma_endpoint *endpoint) {
  combiner_lock(&endpoint->combiner);
  bool writes = has_write(&endpoint->stepping) || has_write(&endpoint->stranded) ||
                endpoint->slots_in_copy > 0;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    writes |= has_write(&endpoint->rails[i]->posted);
  combiner_unlock(&endpoint->combiner);
  return writes;
}

static bool any_canceled(const struct list *jobs) {
  list_each(item, jobs) if (list_entry(item, struct rdma_job, link)->cancel_code) return true;
  return false;
}

/* The peer did not send BROKEN_ACK in time. */
__attribute__((cold)) static void end_canceled(struct rdma_endpoint *endpoint) {
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  list_each_safe(item, &endpoint->stranded) {
    struct rdma_job *job = list_entry(item, struct rdma_job, link);
    if (job->cancel_code)
      job_retire(job, job->cancel_code, &ended);
  }
  combiner_unlock(&endpoint->combiner);
  jobs_end(&ended);
}

/* What all retries take: by the InfiniBand specification a time-out may last four times its nominal
 * value, 4.096 us times a power of 2. */
static int64_t stall_ns(const struct nic *nic) {
  int64_t tries = nic->settings[RDMA_RETRY_COUNT] + 1;
  int64_t bound = (4 * INT64_C(4096) * tries) << nic->settings[RDMA_TIMEOUT];
  return bound > RDMA_STALL_NS ? bound : RDMA_STALL_NS;
}

/* A working NIC completes every work request, or fails it once the retries are exhausted. One that
 * exceeds that time loses its queue pair, and with it all access. */
__attribute__((cold)) void rdma_check_stuck(struct timer *timer) {
  struct rdma_endpoint *endpoint = list_entry(timer, struct rdma_endpoint, timer);
  struct rdma_rail *stuck = NULL;
  if (endpoint->broken) {
    end_canceled(endpoint);
    return;
  }
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct rdma_rail *rail = endpoint->rails[i];
    int64_t bound = any_canceled(&rail->posted) ? RDMA_CANCEL_NS : stall_ns(rail->device->nic);
    if (rdma_rail_is_busy(rail) && clock_now() - rail->progress_at >= bound)
      stuck = rail;
  }
  combiner_unlock(&endpoint->combiner);
  endpoint->restore.late = true;
  if (!stuck)
    return;
  const char *nic = stuck->device->nic->name;
  error_set(HAUL_EPATH, 0, nic, NULL, "%s holds work requests and completes none", nic);
  rdma_break(endpoint, haul_error_last()->text);
}

/* With the lock. */
__attribute__((cold)) static void strand(struct list *jobs, struct list *stranded) {
  while (!list_empty(jobs)) {
    struct rdma_job *job = list_entry(jobs->next, struct rdma_job, link);
    job_leave_rail(job);
    job->needs_fence = false;
    list_append(stranded, &job->link);
  }
}

__attribute__((cold)) static void strand_all(struct rdma_endpoint *endpoint) {
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct rdma_rail *rail = endpoint->rails[i];
    rdma_rail_destroy_qp(rail);
    strand(&rail->posted, &endpoint->stranded);
    for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
      strand(&rail->waiting.queues[rank], &endpoint->stranded);
  }
  strand(&endpoint->stepping, &endpoint->stranded);
  strand(&endpoint->acquiring, &endpoint->stranded);
}

/* Closes or interrupts the endpoint first: a thread that finds it broken reads the reason. */
__attribute__((cold)) void rdma_break(struct rdma_endpoint *endpoint, const char *reason) {
  if (endpoint->restore.possible)
    endpoint_interrupt(&endpoint->base, reason);
  else
    endpoint_close(&endpoint->base, "%s", reason);
  combiner_lock(&endpoint->combiner);
  bool first = !endpoint->broken;
  endpoint->broken = true;
  if (first)
    strand_all(endpoint);
  combiner_unlock(&endpoint->combiner);
  if (!first)
    return;
  endpoint->restore.probing = false;
  list_each(item, &endpoint->stranded) step_cancel(list_entry(item, struct rdma_job, link));
  if (any_canceled(&endpoint->stranded))
    start_timer(endpoint);
  staged_copies_cancel(endpoint);
  rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_BROKEN});
}

__attribute__((cold)) void rdma_end_stranded(struct rdma_endpoint *endpoint, int code) {
  struct list ended = LIST_INIT(ended);
  combiner_lock(&endpoint->combiner);
  while (!list_empty(&endpoint->stranded))
    job_retire(list_entry(endpoint->stranded.next, struct rdma_job, link), code, &ended);
  slots_end_copies(endpoint);
  combiner_unlock(&endpoint->combiner);
  if (code == HAUL_EPATH)
    error_set(code, 0, NULL, NULL, "%s", endpoint_reason(&endpoint->base));
  jobs_end(&ended);
}
