/* SPDX-License-Identifier: MIT
 * The asynchronous transports.
 *
 * gaudi_dma: between host and device memory of this process, by command submission.
 *
 * gaudi_ipc: to and from device memory of another process of this host. Only one process can open a
 * Gaudi device, and no other device or CPU can map its dma-buf: the kernel driver exports but does
 * not import. So the nodes of both processes transfer the bytes over haul's best path: a NIC with
 * which both have registered the memory, the owner by its dma-buf; else the owner's DMA and a
 * socket. Of the processes' namespaces only the network's matters.
 *
 * Jobs complete in order of their start. UCX uses an interface from one thread at a time. */
#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define POLL_FIRST_NS 20000   /* the shortest submission of the driver */
#define POLL_LAST_NS  1000000 /* upper bound of the delay */

#define POLLS_MIN 1000 /* before a timeout, as progress happens only in polls */

/* A copy, a transfer or a flush. */
struct gaudi_job {
  ucs_queue_elem_t link;
  uct_completion_t *completion; /* or NULL */
  struct gaudi_part local, device;
  haul_copy *copy;
  haul_transfer *transfer;
  struct cache_entry *import;
  bool invalid;   /* the import */
  bool timed_out; /* and canceled */
  unsigned polls;
  haul_deadline until; /* 0: it is not the first yet */
};

/* Not in a queue. */
static void job_free(struct gaudi_job *job) {
  haul_copy_release(job->copy);
  haul_transfer_release(job->transfer);
  if (job->import)
    gaudi_import_release(job->import, job->invalid);
  gaudi_part_release(&job->local);
  gaudi_part_release(&job->device);
  free(job);
}

/* A flush has neither, and is complete when it is the first. */
static int job_test(struct gaudi_job *job) {
  if (job->copy)
    return haul_copy_test(job->copy);
  return job->transfer ? haul_transfer_test(job->transfer) : 0;
}

/* A completion needs memory that nothing accesses: a transfer is canceled after the timeout, and
 * has then to end. A copy ends with its release. */
static bool is_in_flight(struct gaudi_job *job) {
  if (job->polls < POLLS_MIN || haul_deadline_in(0) < job->until)
    return true;
  if (job->transfer && !job->timed_out)
    haul_transfer_cancel(job->transfer);
  job->timed_out = true;
  return job->transfer != NULL;
}

/* Its result, with a log line for errors, or UCS_INPROGRESS. */
static ucs_status_t job_poll(struct gaudi_job *job) {
  int code = job_test(job);
  if (code == 1 && is_in_flight(job))
    return UCS_INPROGRESS;
  job->invalid = code != 0;
  if (job->timed_out && code) {
    ucs_error("gaudi: an operation exceeded UCX_GAUDI_TIMEOUT");
    return UCS_ERR_TIMED_OUT;
  }
  return code ? gaudi_failed("an operation failed", UCS_LOG_LEVEL_ERROR) : UCS_OK;
}

/* After the start of its copy or transfer: queues it, or completes it now. Returns the status of
 * the operation. */
static ucs_status_t job_started(gaudi_iface_t *iface, struct gaudi_job *job,
                                uct_completion_t *completion) {
  ucs_status_t status = job_poll(job);
  if (status != UCS_INPROGRESS) { /* without a call of the completion */
    job_free(job);
    return status;
  }
  job->completion = completion;
  iface->poll_ns = POLL_FIRST_NS;
  ucs_queue_push(&iface->queue, &job->link);
  return UCS_INPROGRESS;
}

static struct gaudi_job *first_job(gaudi_iface_t *iface) {
  /* Freed jobs were removed from the queue before, which the analyzer does not see. */
  return ucs_queue_is_empty(&iface->queue) /* NOLINT(clang-analyzer-unix.Malloc) */
             ? NULL
             : ucs_queue_head_elem_non_empty(&iface->queue, struct gaudi_job, link);
}

static unsigned progress(uct_iface_h base) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  struct gaudi_job *job;
  unsigned ended = 0;
  while ((job = first_job(iface))) {
    if (job->polls++ == 0) /* the timeout begins when it is the first */
      job->until = gaudi_until(iface);
    ucs_status_t status = job_poll(job);
    if (status == UCS_INPROGRESS)
      break;
    uct_completion_t *completion = job->completion;
    ucs_queue_pull(&iface->queue);
    job_free(job);
    if (completion)
      uct_invoke_completion(completion, status); /* may start other jobs */
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
  return first_job(iface) ? UCS_INPROGRESS : UCS_OK;
}

/* A flush with a completion is a job after all others. */
static ucs_status_t flush_ep(uct_ep_h ep, unsigned flags, uct_completion_t *completion) {
  gaudi_iface_t *iface = (gaudi_iface_t *)ep->iface;
  if (!completion)
    return flush(ep->iface, flags, NULL);
  progress(ep->iface);
  if (!first_job(iface))
    return UCS_OK;
  struct gaudi_job *job = calloc(1, sizeof *job);
  if (!job)
    return UCS_ERR_NO_MEMORY;
  job->completion = completion;
  ucs_queue_push(&iface->queue, &job->link);
  return UCS_INPROGRESS;
}

void gaudi_jobs_close(gaudi_iface_t *iface) {
  struct gaudi_job *job;
  while ((job = first_job(iface))) {
    ucs_queue_pull(&iface->queue);
    if (job->transfer && haul_transfer_test(job->transfer) == 1) {
      haul_transfer_cancel(job->transfer);
      haul_transfer_wait(job->transfer, gaudi_until(iface));
    }
    job_free(job);
  }
}

/* The driver has no event for the end of a copy. So the descriptor is a timer, which expires when
 * the next poll is due, with a growing delay. */
static ucs_status_t jobs_event_fd(uct_iface_h base, int *fd) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  if (iface->timer < 0)
    iface->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  *fd = iface->timer;
  return iface->timer >= 0 ? UCS_OK : UCS_ERR_IO_ERROR;
}

static ucs_status_t jobs_arm(uct_iface_h base, unsigned events) {
  gaudi_iface_t *iface = (gaudi_iface_t *)base;
  struct itimerspec in = {{0, 0}, {0, 0}};
  struct gaudi_job *job = first_job(iface);
  uint64_t ticks;
  int unused;
  (void)events;
  if (job && job_test(job) != 1)
    return UCS_ERR_BUSY; /* progress is possible */
  ucs_status_t status = jobs_event_fd(base, &unused);
  if (status != UCS_OK)
    return status;
  if (read(iface->timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
    return UCS_ERR_IO_ERROR;
  if (job) {
    in.it_value.tv_nsec = iface->poll_ns;
    iface->poll_ns = iface->poll_ns < POLL_LAST_NS / 2 ? 2 * iface->poll_ns : POLL_LAST_NS - 1;
  }
  return timerfd_settime(iface->timer, 0, &in, NULL) == 0 ? UCS_OK : UCS_ERR_IO_ERROR;
}

/* Between memories without a common engine, such as read-only host memory. */
static int copy_staged(const struct gaudi_part *to, const struct gaudi_part *from, size_t length,
                       haul_deadline until) {
  ucs_info("gaudi_dma: %zu bytes use bounce buffers, synchronously: %s", length,
           haul_error_last()->text);
  return haul_region_copy(to->region, to->offset, from->region, from->offset, length, until);
}

static ucs_status_t dma_start(gaudi_iface_t *iface, struct gaudi_job *job, bool put, size_t length,
                              uct_completion_t *completion) {
  const struct gaudi_part *to = put ? &job->device : &job->local;
  const struct gaudi_part *from = put ? &job->local : &job->device;
  int code =
      haul_copy_start(to->region, to->offset, from->region, from->offset, length, &job->copy);
  if (code == 0)
    return job_started(iface, job, completion);
  if (code == HAUL_ENOTSUP)
    code = copy_staged(to, from, length, gaudi_until(iface));
  ucs_status_t status = code ? gaudi_failed("cannot start a copy", UCS_LOG_LEVEL_ERROR) : UCS_OK;
  job_free(job);
  return status;
}

static ucs_status_t ipc_start(gaudi_iface_t *iface, struct gaudi_job *job, bool put,
                              struct haul_piece piece, uct_completion_t *completion) {
  haul_remote *remote = job->import->value;
  int code;
  if (put)
    code = haul_write(remote, job->local.region, &piece, 1, NULL, &job->transfer);
  else
    code = haul_read(job->local.region, remote, &piece, 1, NULL, &job->transfer);
  if (code == 0)
    return job_started(iface, job, completion);
  job->invalid = code != HAUL_ELIMIT;
  ucs_status_t status = code == HAUL_ELIMIT
                            ? UCS_ERR_NO_RESOURCE
                            : gaudi_failed("cannot start a transfer", UCS_LOG_LEVEL_ERROR);
  job_free(job);
  return status;
}

static ucs_status_t check_key(const gaudi_ep_t *ep, const struct gaudi_key *key, uint64_t address,
                              size_t length) {
  const char *why = NULL;
  if (!key || (uct_rkey_t)key == UCT_INVALID_RKEY || key->id == 0)
    why = "no key of another process's device memory";
  else if (key->process != ep->remote.process)
    why = "the key is of another process";
  else if (!gaudi_key_covers(key, address, length))
    why = "the key does not cover the range";
  if (!why)
    return UCS_OK;
  ucs_error("gaudi_ipc: 0x%lx+%zu: %s", (unsigned long)address, length, why);
  return UCS_ERR_INVALID_ADDR;
}

static ucs_status_t zcopy(uct_ep_h base, bool put, const uct_iov_t *iov, size_t count,
                          uint64_t address, uct_rkey_t rkey, uct_completion_t *completion) {
  const gaudi_ep_t *ep = (const gaudi_ep_t *)base;
  const struct gaudi_key *key = (const struct gaudi_key *)rkey;
  gaudi_iface_t *iface = (gaudi_iface_t *)base->iface;
  bool ipc = ep->peer != NULL;
  size_t length;
  ucs_status_t status = gaudi_check_iov(iface, iov, count, &length);
  if (status == UCS_OK && length > 0 && ipc)
    status = check_key(ep, key, address, length);
  if (status != UCS_OK)
    return status;
  gaudi_trace(put ? "put_zcopy" : "get_zcopy", count ? iov->buffer : NULL, length, address);
  if (length == 0)
    return UCS_OK;
  struct gaudi_job *job = calloc(1, sizeof *job);
  if (!job)
    return UCS_ERR_NO_MEMORY;
  status = ipc ? gaudi_import(ep->peer, ep->connection, key, gaudi_until(iface), &job->import)
               : gaudi_target_acquire(address, rkey, length, &job->device);
  if (status == UCS_OK)
    status = gaudi_part_acquire(iov->buffer, length, iov->memh, &job->local);
  if (status != UCS_OK) {
    job_free(job);
    return status;
  }
  if (!ipc)
    return dma_start(iface, job, put, length, completion);
  const struct haul_piece piece = {job->local.offset, address - key->start, length};
  return ipc_start(iface, job, put, piece, completion);
}

static ucs_status_t put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t address,
                              uct_rkey_t rkey, uct_completion_t *completion) {
  return zcopy(ep, true, iov, count, address, rkey, completion);
}

static ucs_status_t get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t address,
                              uct_rkey_t rkey, uct_completion_t *completion) {
  return zcopy(ep, false, iov, count, address, rkey, completion);
}

static uct_iface_ops_t dma_ops, ipc_ops;

static ucs_status_t dma_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                             const uct_iface_config_t *config, uct_iface_h *out) {
  return gaudi_iface_new(GAUDI_DMA, &dma_ops, md, worker, params, config, out);
}

static ucs_status_t ipc_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                             const uct_iface_config_t *config, uct_iface_h *out) {
  return gaudi_iface_new(GAUDI_IPC, &ipc_ops, md, worker, params, config, out);
}

#define TRANSPORT(title, setting, open)                                                            \
  {                                                                                                \
    .name = title, .query_devices = gaudi_query_devices, .iface_open = open,                       \
    .config = {.name = title " transport",                                                         \
               .prefix = setting,                                                                  \
               .table = gaudi_iface_config_table,                                                  \
               .size = sizeof(struct gaudi_iface_config)},                                         \
  }

uct_tl_t gaudi_dma_tl = TRANSPORT("gaudi_dma", "GAUDI_DMA_", dma_open);
uct_tl_t gaudi_ipc_tl = TRANSPORT("gaudi_ipc", "GAUDI_IPC_", ipc_open);

void gaudi_jobs_init(void) {
  ipc_ops = gaudi_iface_ops;
  ipc_ops.ep_put_zcopy = put_zcopy;
  ipc_ops.ep_get_zcopy = get_zcopy;
  ipc_ops.ep_flush = flush_ep;
  ipc_ops.iface_flush = flush;
  ipc_ops.iface_progress = progress;
  ipc_ops.iface_progress_enable = uct_base_iface_progress_enable;
  ipc_ops.iface_progress_disable = uct_base_iface_progress_disable;
  dma_ops = ipc_ops;
  dma_ops.iface_event_fd_get = jobs_event_fd;
  dma_ops.iface_event_arm = jobs_arm;
}
