/* SPDX-License-Identifier: MIT
 * gaudi_dma: between this process's host memory and its device's by command submission, several
 * jobs at a time, each told of when it has ended. */
#include "module.h"

#include <stdlib.h>

static uct_iface_ops_t ops;

/* Between memories that no engine reaches both of, as host memory that may only be read. */
static int copy_by_buffers(const struct gaudi_part *to, const struct gaudi_part *from,
                           size_t length, haul_deadline until) {
  ucs_info("gaudi_dma: %zu bytes go by way of buffers, in the call: %s", length,
           haul_error_last()->text);
  return haul_region_copy(to->region, to->offset, from->region, from->offset, length, until);
}

static ucs_status_t start(gaudi_iface_t *iface, struct gaudi_job *job, bool put, size_t length,
                          uct_completion_t *completion) {
  const struct gaudi_part *to = put ? &job->device : &job->local;
  const struct gaudi_part *from = put ? &job->local : &job->device;
  int code =
      haul_copy_start(to->region, to->offset, from->region, from->offset, length, &job->copy);
  if (code == 0)
    return gaudi_job_started(iface, job, completion);
  if (code == HAUL_ENOTSUP)
    code = copy_by_buffers(to, from, length, gaudi_until(iface));
  ucs_status_t status =
      code ? gaudi_failed("a job cannot be started", UCS_LOG_LEVEL_ERROR) : UCS_OK;
  gaudi_job_free(job);
  return status;
}

static ucs_status_t zcopy(uct_ep_h ep, bool put, const uct_iov_t *iov, size_t count,
                          uint64_t address, uct_rkey_t rkey, uct_completion_t *completion) {
  gaudi_iface_t *iface = (gaudi_iface_t *)ep->iface;
  if (count > 1 || (count == 1 && iov->count > 1))
    return UCS_ERR_INVALID_PARAM;
  size_t length = count ? uct_iov_get_length(iov) : 0;
  ucs_status_t status = gaudi_check_length("zcopy", length, iface->max_zcopy);
  if (status != UCS_OK || length == 0)
    return status;
  struct gaudi_job *job = calloc(1, sizeof *job);
  if (!job)
    return UCS_ERR_NO_MEMORY;
  status = gaudi_target_take(address, rkey, length, &job->device);
  if (status == UCS_OK)
    status = gaudi_part_take(iov->buffer, length, iov->memh, &job->local);
  if (status == UCS_OK)
    return start(iface, job, put, length, completion);
  gaudi_job_free(job);
  return status;
}

static ucs_status_t put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t address,
                              uct_rkey_t rkey, uct_completion_t *completion) {
  return zcopy(ep, true, iov, count, address, rkey, completion);
}

static ucs_status_t get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t address,
                              uct_rkey_t rkey, uct_completion_t *completion) {
  return zcopy(ep, false, iov, count, address, rkey, completion);
}

static ucs_status_t open_iface(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                               const uct_iface_config_t *config, uct_iface_h *out) {
  return gaudi_jobs_iface_new(GAUDI_DMA, &ops, md, worker, params, config, out);
}

uct_tl_t gaudi_dma_tl = {.name = "gaudi_dma",
                         .query_devices = gaudi_query_devices,
                         .iface_open = open_iface,
                         .config = {.name = "gaudi_dma transport",
                                    .prefix = "GAUDI_DMA_",
                                    .table = gaudi_iface_config_table,
                                    .size = sizeof(struct gaudi_iface_config)}};

void gaudi_dma_init(void) {
  gaudi_jobs_lay(&ops);
  ops.ep_put_zcopy = put_zcopy;
  ops.ep_get_zcopy = get_zcopy;
  ops.iface_event_fd_get = gaudi_jobs_event_fd;
  ops.iface_event_arm = gaudi_jobs_arm;
}
