/* SPDX-License-Identifier: MIT
 * gaudi_copy: synchronous copies between host and device memory of this process. Short and buffered
 * operations use a bounce buffer of the interface, so that no page of the caller is pinned. */
#include "module.h"

#include <sched.h>
#include <string.h>

static ucs_config_field_t config_table[] = {
    {"", "", NULL, offsetof(struct gaudi_copy_config, super),
     UCS_CONFIG_TYPE_TABLE(gaudi_iface_config_table)},
    {"MAX_FAST", "64", "The largest operation that is polled for, without sleeping.",
     offsetof(struct gaudi_copy_config, max_fast), UCS_CONFIG_TYPE_MEMUNITS},
    {"MAX_BCOPY", "32k", "The largest buffered operation.",
     offsetof(struct gaudi_copy_config, max_bcopy), UCS_CONFIG_TYPE_MEMUNITS},
    {.name = NULL}};

static gaudi_iface_t *iface_of(uct_ep_h ep) {
  return (gaudi_iface_t *)ep->iface;
}

/* Polls, as a sleep takes longer than such a short copy. */
static int copy_fast(haul_region *to, uint64_t to_offset, haul_region *from, uint64_t from_offset,
                     size_t length, haul_deadline until) {
  haul_copy *copy;
  int code = haul_copy_start(to, to_offset, from, from_offset, length, &copy);
  if (code)
    return code;
  while ((code = haul_copy_test(copy)) == 1 && haul_deadline_in(0) < until)
    sched_yield();
  haul_copy_release(copy);
  return code == 1 ? HAUL_ETIMEDOUT : code;
}

static ucs_status_t copy(const gaudi_iface_t *iface, const struct gaudi_part *to,
                         const struct gaudi_part *from, size_t length) {
  haul_deadline until = gaudi_until(iface);
  int code;
  if (length <= iface->max_fast)
    code = copy_fast(to->region, to->offset, from->region, from->offset, length, until);
  else
    code = haul_region_copy(to->region, to->offset, from->region, from->offset, length, until);
  return code ? gaudi_failed("cannot copy", UCS_LOG_LEVEL_ERROR) : UCS_OK;
}

/* Between the bounce buffer and the device. */
static ucs_status_t bounce(const gaudi_iface_t *iface, bool put, uint64_t address, uct_rkey_t rkey,
                           size_t length) {
  const struct gaudi_part buffer = {.region = iface->bounce};
  struct gaudi_part device;
  ucs_status_t status = gaudi_target_acquire(address, rkey, length, &device);
  if (status != UCS_OK)
    return status;
  status = put ? copy(iface, &device, &buffer, length) : copy(iface, &buffer, &device, length);
  gaudi_part_release(&device);
  return status;
}

/* Directly between memory and the device. */
static ucs_status_t copy_direct(const gaudi_iface_t *iface, bool put, const void *buffer,
                                const struct gaudi_memh *memh, size_t length, uint64_t address,
                                uct_rkey_t rkey) {
  struct gaudi_part local, device;
  ucs_status_t status = gaudi_target_acquire(address, rkey, length, &device);
  if (status != UCS_OK)
    return status;
  status = gaudi_part_acquire(buffer, length, memh, &local);
  if (status == UCS_OK) {
    status = put ? copy(iface, &device, &local, length) : copy(iface, &local, &device, length);
    gaudi_part_release(&local);
  }
  gaudi_part_release(&device);
  return status;
}

/* Short operations that are larger than the bounce buffer are direct copies. */
static ucs_status_t put_short(uct_ep_h ep, const void *buffer, unsigned length, uint64_t address,
                              uct_rkey_t rkey) {
  const gaudi_iface_t *iface = iface_of(ep);
  gaudi_trace("put_short", buffer, length, address);
  if (length == 0)
    return UCS_OK;
  if (length > iface->max_bcopy)
    return copy_direct(iface, true, buffer, NULL, length, address, rkey);
  memcpy(haul_region_address(iface->bounce), buffer, length);
  return bounce(iface, true, address, rkey, length);
}

static ucs_status_t get_short(uct_ep_h ep, void *buffer, unsigned length, uint64_t address,
                              uct_rkey_t rkey) {
  const gaudi_iface_t *iface = iface_of(ep);
  gaudi_trace("get_short", buffer, length, address);
  if (length == 0)
    return UCS_OK;
  if (length > iface->max_bcopy)
    return copy_direct(iface, false, buffer, NULL, length, address, rkey);
  ucs_status_t status = bounce(iface, false, address, rkey, length);
  if (status == UCS_OK)
    memcpy(buffer, haul_region_address(iface->bounce), length);
  return status;
}

/* Only the packer knows the length, which UCX's contract bounds by the advertised limit. Nothing is
 * sent for a packer that exceeds it. */
static ssize_t put_bcopy(uct_ep_h ep, uct_pack_callback_t pack, void *argument, uint64_t address,
                         uct_rkey_t rkey) {
  const gaudi_iface_t *iface = iface_of(ep);
  size_t length = pack(haul_region_address(iface->bounce), argument);
  ucs_status_t status = gaudi_check_length("put_bcopy", length, iface->max_bcopy);
  gaudi_trace("put_bcopy", argument, length, address);
  if (status == UCS_OK && length > 0)
    status = bounce(iface, true, address, rkey, length);
  return status == UCS_OK ? (ssize_t)length : status;
}

static ucs_status_t get_bcopy(uct_ep_h ep, uct_unpack_callback_t unpack, void *argument,
                              size_t length, uint64_t address, uct_rkey_t rkey,
                              uct_completion_t *completion) {
  const gaudi_iface_t *iface = iface_of(ep);
  ucs_status_t status = gaudi_check_length("get_bcopy", length, iface->max_bcopy);
  (void)completion; /* the operation is synchronous */
  gaudi_trace("get_bcopy", argument, length, address);
  if (status == UCS_OK && length > 0)
    status = bounce(iface, false, address, rkey, length);
  if (status == UCS_OK)
    unpack(argument, haul_region_address(iface->bounce), length);
  return status;
}

static ucs_status_t zcopy(uct_ep_h ep, bool put, const uct_iov_t *iov, size_t count,
                          uint64_t address, uct_rkey_t rkey) {
  const gaudi_iface_t *iface = iface_of(ep);
  size_t length;
  ucs_status_t status = gaudi_check_iov(iface, iov, count, &length);
  if (status != UCS_OK)
    return status;
  gaudi_trace(put ? "put_zcopy" : "get_zcopy", count ? iov->buffer : NULL, length, address);
  if (length == 0)
    return UCS_OK;
  return copy_direct(iface, put, iov->buffer, iov->memh, length, address, rkey);
}

static ucs_status_t put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t address,
                              uct_rkey_t rkey, uct_completion_t *completion) {
  (void)completion;
  return zcopy(ep, true, iov, count, address, rkey);
}

static ucs_status_t get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t address,
                              uct_rkey_t rkey, uct_completion_t *completion) {
  (void)completion;
  return zcopy(ep, false, iov, count, address, rkey);
}

static uct_iface_ops_t ops;

static ucs_status_t alloc_bounce(gaudi_iface_t *iface) {
  const struct haul_place host = {HAUL_HOST, 0};
  size_t most = iface->max_bcopy ? iface->max_bcopy : 1;
  if (haul_region_alloc(gaudi_node(), host, most, HAUL_REGION_PINNED, &iface->bounce) == 0)
    return UCS_OK;
  return gaudi_failed("cannot allocate the bounce buffer", UCS_LOG_LEVEL_ERROR);
}

static ucs_status_t open_iface(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                               const uct_iface_config_t *base, uct_iface_h *out) {
  const struct gaudi_copy_config *config = (const struct gaudi_copy_config *)base;
  ucs_status_t status = gaudi_iface_new(GAUDI_COPY, &ops, md, worker, params, base, out);
  if (status != UCS_OK)
    return status;
  gaudi_iface_t *iface = (gaudi_iface_t *)*out;
  iface->max_fast = config->max_fast;
  iface->max_bcopy = config->max_bcopy;
  status = alloc_bounce(iface);
  if (status != UCS_OK)
    gaudi_iface_delete(*out);
  return status;
}

uct_tl_t gaudi_copy_tl = {.name = "gaudi_cpy", /* at most nine characters */
                          .query_devices = gaudi_query_devices,
                          .iface_open = open_iface,
                          .config = {.name = "gaudi_copy transport",
                                     .prefix = "GAUDI_COPY_",
                                     .table = config_table,
                                     .size = sizeof(struct gaudi_copy_config)}};

void gaudi_copy_init(void) {
  ops = gaudi_iface_ops;
  ops.ep_put_short = put_short;
  ops.ep_get_short = get_short;
  ops.ep_put_bcopy = put_bcopy;
  ops.ep_get_bcopy = get_bcopy;
  ops.ep_put_zcopy = put_zcopy;
  ops.ep_get_zcopy = get_zcopy;
}
