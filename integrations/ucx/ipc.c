/* SPDX-License-Identifier: MIT
 * gaudi_ipc: to and from device memory of another process of this host. A Gaudi device belongs to
 * one process, and neither another device nor a processor maps its dma-buf: the kernel's driver
 * exports and does not import. So bytes go between the two processes' nodes over haul's best path:
 * a NIC that both have registered the memory with, the owner by its dma-buf; else by the owner's
 * DMA and a socket. Nothing here depends on the processes' namespaces but the network's. */
#include "module.h"

#include <stdlib.h>

static uct_iface_ops_t ops;

static ucs_status_t start(gaudi_iface_t *iface, struct gaudi_job *job, bool put,
                          struct haul_piece piece, uct_completion_t *completion) {
  haul_remote *remote = job->import->value;
  int code;
  if (put)
    code = haul_write(remote, job->local.region, &piece, 1, NULL, &job->transfer);
  else
    code = haul_read(job->local.region, remote, &piece, 1, NULL, &job->transfer);
  if (code == 0)
    return gaudi_job_started(iface, job, completion);
  job->spoiled = code != HAUL_ELIMIT;
  ucs_status_t status = code == HAUL_ELIMIT
                            ? UCS_ERR_NO_RESOURCE
                            : gaudi_failed("a transfer cannot be started", UCS_LOG_LEVEL_ERROR);
  gaudi_job_free(job);
  return status;
}

static ucs_status_t check_key(const gaudi_ep_t *ep, const struct gaudi_key *key, uint64_t address,
                              size_t length) {
  const char *why = NULL;
  if (!key || (uct_rkey_t)key == UCT_INVALID_RKEY || key->id == 0)
    why = "there is no key of another process's device memory";
  else if (key->process != ep->process)
    why = "the key is of another process than the endpoint";
  else if (!gaudi_key_covers(key, address, length))
    why = "the range is not what the key is for";
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
  if (count > 1 || (count == 1 && iov->count > 1))
    return UCS_ERR_INVALID_PARAM;
  size_t length = count ? uct_iov_get_length(iov) : 0;
  ucs_status_t status = gaudi_check_length("zcopy", length, iface->max_zcopy);
  if (status != UCS_OK || length == 0)
    return status;
  status = check_key(ep, key, address, length);
  if (status != UCS_OK)
    return status;
  struct gaudi_job *job = calloc(1, sizeof *job);
  if (!job)
    return UCS_ERR_NO_MEMORY;
  status = gaudi_import(ep->peer, ep->connection, key, gaudi_until(iface), &job->import);
  if (status == UCS_OK)
    status = gaudi_part_take(iov->buffer, length, iov->memh, &job->local);
  if (status == UCS_OK)
    return start(iface, job, put,
                 (struct haul_piece){job->local.offset, address - key->start, length}, completion);
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
  return gaudi_jobs_iface_new(GAUDI_IPC, &ops, md, worker, params, config, out);
}

uct_tl_t gaudi_ipc_tl = {.name = "gaudi_ipc",
                         .query_devices = gaudi_query_devices,
                         .iface_open = open_iface,
                         .config = {.name = "gaudi_ipc transport",
                                    .prefix = "GAUDI_IPC_",
                                    .table = gaudi_iface_config_table,
                                    .size = sizeof(struct gaudi_iface_config)}};

void gaudi_ipc_init(void) {
  gaudi_jobs_lay(&ops);
  ops.ep_put_zcopy = put_zcopy;
  ops.ep_get_zcopy = get_zcopy;
}
