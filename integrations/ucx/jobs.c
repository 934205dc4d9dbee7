/* SPDX-License-Identifier: MIT
 * Jobs of gaudi_dma and gaudi_ipc: several under way, each told of when it has ended, in the order
 * in which they were started. One worker uses an interface, in one thread at a time, as UCX has it.
 */
#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOK_FIRST_NS 20000   /* a driver's shortest submission */
#define LOOK_LAST_NS  1000000 /* the longest between two looks */

#define LEAST_LOOKS 1000 /* what nobody asked for cannot have moved on */

/* Of one that is in no queue. */
void gaudi_job_free(struct gaudi_job *job) {
  haul_copy_release(job->copy);
  haul_transfer_release(job->transfer);
  if (job->import)
    gaudi_import_give(job->import, job->spoiled);
  gaudi_part_give(&job->local);
  gaudi_part_give(&job->device);
  free(job);
}

/* A flush has neither, and is over when it is the first. */
static int test(struct gaudi_job *job) {
  if (job->copy)
    return haul_copy_test(job->copy);
  return job->transfer ? haul_transfer_test(job->transfer) : 0;
}

/* Nobody is told before its memory is left alone: a transfer that is late is told to end, and is
 * waited for. A copy ends with its release. */
static bool is_under_way(struct gaudi_job *job) {
  if (job->looks < LEAST_LOOKS || haul_deadline_in(0) < job->until)
    return true;
  if (job->transfer && !job->late)
    haul_transfer_cancel(job->transfer);
  job->late = true;
  return job->transfer != NULL;
}

/* What it ended with, logged; UCS_INPROGRESS. */
static ucs_status_t look(struct gaudi_job *job) {
  int code = test(job);
  if (code == 1 && is_under_way(job))
    return UCS_INPROGRESS;
  job->spoiled = code != 0;
  if (job->late && code) {
    ucs_error("gaudi: an operation did not end within UCX_GAUDI_TIMEOUT");
    return UCS_ERR_TIMED_OUT;
  }
  return code ? gaudi_failed("an operation failed", UCS_LOG_LEVEL_ERROR) : UCS_OK;
}

ucs_status_t gaudi_job_started(gaudi_iface_t *iface, struct gaudi_job *job,
                               uct_completion_t *completion) {
  ucs_status_t status = look(job);
  if (status != UCS_INPROGRESS) { /* the caller is told by what is returned */
    gaudi_job_free(job);
    return status;
  }
  job->completion = completion;
  iface->look_ns = LOOK_FIRST_NS;
  ucs_queue_push(&iface->queue, &job->link);
  return UCS_INPROGRESS;
}

static struct gaudi_job *first(gaudi_iface_t *iface) {
  /* What is freed was pulled before, which the analyzer does not follow. */
  return ucs_queue_is_empty(&iface->queue) /* NOLINT(clang-analyzer-unix.Malloc) */
             ? NULL
             : ucs_queue_head_elem_non_empty(&iface->queue, struct gaudi_job, link);
}

/* The completion's function may start others. */
static void finish(gaudi_iface_t *iface, struct gaudi_job *job, ucs_status_t status) {
  uct_completion_t *completion = job->completion;
  ucs_queue_pull(&iface->queue);
  gaudi_job_free(job);
  if (completion)
    uct_invoke_completion(completion, status);
}

static unsigned progress(uct_iface_h base) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  struct gaudi_job *job;
  unsigned ended = 0;
  while ((job = first(iface))) {
    if (job->looks++ == 0) /* its turn: what it waited for others does not count */
      job->until = gaudi_until(iface);
    ucs_status_t status = look(job);
    if (status == UCS_INPROGRESS)
      break;
    finish(iface, job, status);
    ended++;
  }
  return ended;
}

static ucs_status_t flush(uct_iface_h base, unsigned flags, uct_completion_t *completion) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  (void)flags;
  if (completion)
    return UCS_ERR_UNSUPPORTED;
  progress(base);
  return first(iface) ? UCS_INPROGRESS : UCS_OK;
}

/* A flush that tells is a job of its own, behind all others. */
static ucs_status_t flush_ep(uct_ep_h ep, unsigned flags, uct_completion_t *completion) {
  gaudi_iface_t *iface = (gaudi_iface_t *)ep->iface;
  if (!completion)
    return flush(ep->iface, flags, NULL);
  progress(ep->iface);
  if (!first(iface))
    return UCS_OK;
  struct gaudi_job *job = calloc(1, sizeof *job);
  if (!job)
    return UCS_ERR_NO_MEMORY;
  job->completion = completion;
  ucs_queue_push(&iface->queue, &job->link);
  return UCS_INPROGRESS;
}

/* UCX closes an interface when it wants nothing more of it: nobody is told. */
void gaudi_jobs_end(gaudi_iface_t *iface) {
  struct gaudi_job *job;
  while ((job = first(iface))) {
    ucs_queue_pull(&iface->queue);
    if (job->transfer && haul_transfer_test(job->transfer) == 1) {
      haul_transfer_cancel(job->transfer);
      haul_transfer_wait(job->transfer, gaudi_until(iface));
    }
    gaudi_job_free(job);
  }
}

/* ---- The interface ---- */

void gaudi_jobs_lay(uct_iface_ops_t *ops) {
  *ops = gaudi_iface_ops;
  ops->ep_flush = flush_ep;
  ops->iface_flush = flush;
  ops->iface_progress = progress;
  ops->iface_progress_enable = uct_base_iface_progress_enable;
  ops->iface_progress_disable = uct_base_iface_progress_disable;
}

ucs_status_t gaudi_jobs_iface_new(enum gaudi_kind kind, const uct_iface_ops_t *ops, uct_md_h md,
                                  uct_worker_h worker, const uct_iface_params_t *params,
                                  const uct_iface_config_t *base, uct_iface_h *out) {
  gaudi_iface_t *iface;
  ucs_status_t status = gaudi_iface_new(kind, ops, md, worker, params, base, &iface);
  if (status != UCS_OK)
    return status;
  *out = &iface->super.super;
  return UCS_OK;
}

/* ---- Waking up ---- */

/* The driver tells nobody when a copy has ended. So the descriptor is a timer's: it becomes
 * readable when it is time to look, soon at first, and later and later while nothing has ended. */
ucs_status_t gaudi_jobs_event_fd(uct_iface_h base, int *fd) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  if (iface->timer < 0)
    iface->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  *fd = iface->timer;
  return iface->timer >= 0 ? UCS_OK : UCS_ERR_IO_ERROR;
}

ucs_status_t gaudi_jobs_arm(uct_iface_h base, unsigned events) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  struct itimerspec in = {{0, 0}, {0, 0}};
  struct gaudi_job *job = first(iface);
  uint64_t ticks;
  int unused;
  (void)events;
  if (job && test(job) != 1)
    return UCS_ERR_BUSY; /* there is something to progress */
  ucs_status_t status = gaudi_jobs_event_fd(base, &unused);
  if (status != UCS_OK)
    return status;
  if (read(iface->timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
    return UCS_ERR_IO_ERROR;
  if (job) {
    in.it_value.tv_nsec = iface->look_ns;
    iface->look_ns = iface->look_ns < LOOK_LAST_NS / 2 ? 2 * iface->look_ns : LOOK_LAST_NS - 1;
  }
  return timerfd_settime(iface->timer, 0, &in, NULL) == 0 ? UCS_OK : UCS_ERR_IO_ERROR;
}
