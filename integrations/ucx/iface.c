/* SPDX-License-Identifier: MIT
 * Base of the three transports: interfaces, endpoints, estimates. */
#include "module.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ucs_config_field_t gaudi_iface_config_table[] = {
    {"", "", NULL, offsetof(struct gaudi_iface_config, super),
     UCS_CONFIG_TYPE_TABLE(uct_iface_config_table)},
    {"BW", "auto", "Estimated bandwidth. auto: the default of the transport, or as measured.",
     offsetof(struct gaudi_iface_config, bandwidth), UCS_CONFIG_TYPE_BW},
    {"LATENCY", "0", "Estimated latency. 0: the default of the transport, or as measured.",
     offsetof(struct gaudi_iface_config, latency), UCS_CONFIG_TYPE_TIME},
    {"MAX_ZCOPY", "1g", "The largest zero-copy operation.",
     offsetof(struct gaudi_iface_config, max_zcopy), UCS_CONFIG_TYPE_MEMUNITS},
    {.name = NULL}};

struct gaudi_md *gaudi_md_of(const gaudi_iface_t *iface) {
  return (struct gaudi_md *)iface->super.md;
}

haul_deadline gaudi_until(const gaudi_iface_t *iface) {
  return haul_deadline_in(gaudi_nanoseconds(gaudi_md_of(iface)->timeout));
}

static gaudi_iface_t *of(uct_iface_h iface) {
  return (gaudi_iface_t *)iface;
}

ucs_status_t gaudi_check_length(const char *what, size_t length, size_t most) {
  if (length <= most)
    return UCS_OK;
  ucs_error("gaudi: %s of %zu bytes exceeds the limit of %zu", what, length, most);
  return UCS_ERR_INVALID_PARAM;
}

ucs_status_t gaudi_check_iov(const gaudi_iface_t *iface, const uct_iov_t *iov, size_t count,
                             size_t *length) {
  if (count > 1 || (count == 1 && iov->count > 1))
    return UCS_ERR_INVALID_PARAM;
  *length = count ? uct_iov_get_length(iov) : 0;
  return gaudi_check_length("zcopy", *length, iface->max_zcopy);
}

void gaudi_trace(const char *what, const void *buffer, size_t length, uint64_t address) {
  ucs_trace_data("gaudi: %s [%p+%zu] at 0x%lx", what, buffer, length, (unsigned long)address);
}

ucs_status_t gaudi_query_devices(uct_md_h md, uct_tl_device_resource_t **devices, unsigned *count) {
  const struct gaudi_md *own = (const struct gaudi_md *)md;
  uct_tl_device_resource_t *device = calloc(1, sizeof *device); /* UCX frees it */
  *devices = device;
  *count = device != NULL;
  if (!device)
    return UCS_ERR_NO_MEMORY;
  snprintf(device->name, sizeof device->name, "gaudi");
  device->type = UCT_DEVICE_TYPE_ACC;
  device->sys_device = own->count == 1 ? own->devices[0].system : UCS_SYS_DEVICE_ID_UNKNOWN;
  return UCS_OK;
}

static const uint64_t flags[GAUDI_KINDS] = {
    [GAUDI_COPY] = UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_PUT_BCOPY | UCT_IFACE_FLAG_PUT_ZCOPY |
                   UCT_IFACE_FLAG_GET_SHORT | UCT_IFACE_FLAG_GET_BCOPY | UCT_IFACE_FLAG_GET_ZCOPY,
    /* Operations end with an error when the peer has ended: without the flag UCP uses no transport
     * for an endpoint with UCP_ERR_HANDLING_MODE_PEER. */
    [GAUDI_IPC] =
        UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_GET_ZCOPY | UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE,
    [GAUDI_DMA] = UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_GET_ZCOPY,
};

static ucs_status_t query(uct_iface_h base, uct_iface_attr_t *attributes) {
  const gaudi_iface_t *iface = of(base);
  uct_base_iface_query(&of(base)->super, attributes);
  attributes->iface_addr_len = sizeof(struct gaudi_iface_address);
  attributes->cap.flags =
      flags[iface->kind] | UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_PENDING;
  if (iface->kind == GAUDI_DMA)
    attributes->cap.event_flags = UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_FD;
  if (iface->kind == GAUDI_COPY) /* UCP uses short operations of any length, whatever the limit */
    attributes->cap.put.max_short = attributes->cap.get.max_short = UINT_MAX;
  attributes->cap.put.max_bcopy = attributes->cap.get.max_bcopy = iface->max_bcopy;
  attributes->cap.put.max_zcopy = attributes->cap.get.max_zcopy = iface->max_zcopy;
  attributes->cap.put.opt_zcopy_align = attributes->cap.get.opt_zcopy_align = 1;
  attributes->cap.put.align_mtu = attributes->cap.get.align_mtu = 1;
  attributes->cap.put.max_iov = attributes->cap.get.max_iov = 1;
  attributes->cap.am.opt_zcopy_align = attributes->cap.am.align_mtu = 1;
  attributes->cap.am.max_iov = 1;
  attributes->latency = ucs_linear_func_make(iface->performance.latency, 0);
  attributes->bandwidth.dedicated = 0;
  attributes->bandwidth.shared = iface->performance.bandwidth;
  attributes->overhead = 0;
  attributes->priority = 0;
  return UCS_OK;
}

static ucs_status_t estimate(uct_iface_h base, uct_perf_attr_t *attributes) {
  const gaudi_iface_t *iface = of(base);
  const uint64_t asked = attributes->field_mask;
  const uct_ppn_bandwidth_t bandwidth = {.dedicated = 0, .shared = iface->performance.bandwidth};
  if (asked & UCT_PERF_ATTR_FIELD_BANDWIDTH)
    attributes->bandwidth = bandwidth;
#if UCX_HAS_GAUDI
  if (asked & UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH)
    attributes->path_bandwidth = bandwidth;
  if (asked & UCT_PERF_ATTR_FIELD_FLAGS)
    attributes->flags = 0;
#endif
  if (asked & UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD)
    attributes->send_pre_overhead = 0;
  if (asked & UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD)
    attributes->send_post_overhead = 0;
  if (asked & UCT_PERF_ATTR_FIELD_RECV_OVERHEAD)
    attributes->recv_overhead = 0;
  if (asked & UCT_PERF_ATTR_FIELD_LATENCY)
    attributes->latency = ucs_linear_func_make(iface->performance.latency, 0);
  if (asked & UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS)
    attributes->max_inflight_eps = SIZE_MAX;
  return UCS_OK;
}

static ucs_status_t get_address(uct_iface_h base, uct_iface_addr_t *out) {
  const struct gaudi_iface_address address = {gaudi_host(), gaudi_process(), of(base)->number};
  ucs_status_t status = UCS_OK;
  if (of(base)->kind == GAUDI_IPC)
    status = gaudi_node_listen();
  memcpy(out, &address, sizeof address);
  return status;
}

/* gaudi_copy and gaudi_dma reach memory of this process, gaudi_ipc that of other processes. NULL if
 * the address is reachable, else why not. */
static const char *unreachable(const gaudi_iface_t *iface, const void *iface_address) {
  struct gaudi_iface_address address;
  if (!iface_address)
    return "no interface address";
  memcpy(&address, iface_address, sizeof address);
  if (address.host != gaudi_host())
    return "another host";
  if (address.process != gaudi_process())
    return iface->kind == GAUDI_IPC ? NULL : "another process";
  return iface->kind == GAUDI_IPC ? "same process" : NULL;
}

#if UCX_HAS_GAUDI

static int is_reachable(uct_iface_h iface, const uct_iface_is_reachable_params_t *params) {
  if (!uct_iface_is_reachable_params_addrs_valid(params))
    return 0;
  const char *why = unreachable(of(iface), params->iface_addr);
  if (!why)
    return uct_iface_scope_is_reachable(iface, params);
  uct_iface_fill_info_str_buf(params, "%s", why);
  return 0;
}

/* To the very interface, as UCX asks which of its endpoints leads there. */
static int is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *params) {
  const struct gaudi_iface_address *remote = &((const gaudi_ep_t *)ep)->remote;
  return (params->field_mask & UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR) &&
         memcmp(params->iface_addr, remote, sizeof *remote) == 0;
}

static uct_iface_internal_ops_t internal_ops = {
    .iface_query_v2 = uct_iface_base_query_v2,
    .iface_estimate_perf = estimate,
    .iface_vfs_refresh = (uct_iface_vfs_refresh_func_t)ucs_empty_function,
    .ep_query = (uct_ep_query_func_t)ucs_empty_function_return_unsupported,
    .ep_invalidate = (uct_ep_invalidate_func_t)ucs_empty_function_return_unsupported,
    .ep_connect_to_ep_v2 = (uct_ep_connect_to_ep_v2_func_t)ucs_empty_function_return_unsupported,
    .iface_is_reachable_v2 = is_reachable,
    .ep_is_connected = is_connected,
    .ep_get_device_ep = (uct_ep_get_device_ep_func_t)ucs_empty_function_return_unsupported,
    .ep_put_sgl_zcopy = (uct_ep_put_sgl_zcopy_func_t)ucs_empty_function_return_unsupported,
#if UCX_MINOR >= 23
    .ep_get_sgl_zcopy = (uct_ep_get_sgl_zcopy_func_t)ucs_empty_function_return_unsupported,
    .ep_outstanding_purge = (uct_ep_outstanding_purge_func_t)ucs_empty_function_return_unsupported,
#endif
};

#define IS_REACHABLE uct_base_iface_is_reachable

#else /* 1.13 */

static int is_reachable(const uct_iface_h iface, const uct_device_addr_t *device,
                        const uct_iface_addr_t *address) {
  (void)device;
  return unreachable(of(iface), address) == NULL;
}

static uct_iface_internal_ops_t internal_ops = {
    .iface_estimate_perf = estimate,
    .iface_vfs_refresh = (uct_iface_vfs_refresh_func_t)ucs_empty_function,
    .ep_query = (uct_ep_query_func_t)ucs_empty_function_return_unsupported,
    .ep_invalidate = (uct_ep_invalidate_func_t)ucs_empty_function_return_unsupported,
};

#define IS_REACHABLE is_reachable

#endif

#define REFUSE(slot, type) .slot = (type)ucs_empty_function_return_unsupported

/* UCX has no empty functions with this return type. */
static ssize_t no_put_bcopy(uct_ep_h ep, uct_pack_callback_t pack, void *argument, uint64_t address,
                            uct_rkey_t rkey) {
  (void)ep, (void)pack, (void)argument, (void)address, (void)rkey;
  return UCS_ERR_UNSUPPORTED;
}

static ssize_t no_am_bcopy(uct_ep_h ep, uint8_t id, uct_pack_callback_t pack, void *argument,
                           unsigned unused) {
  (void)ep, (void)id, (void)pack, (void)argument, (void)unused;
  return UCS_ERR_UNSUPPORTED;
}

const uct_iface_ops_t gaudi_iface_ops = {
    REFUSE(ep_put_short, uct_ep_put_short_func_t),
    .ep_put_bcopy = no_put_bcopy,
    REFUSE(ep_put_zcopy, uct_ep_put_zcopy_func_t),
    REFUSE(ep_get_short, uct_ep_get_short_func_t),
    REFUSE(ep_get_bcopy, uct_ep_get_bcopy_func_t),
    REFUSE(ep_get_zcopy, uct_ep_get_zcopy_func_t),
    REFUSE(ep_am_short, uct_ep_am_short_func_t),
    REFUSE(ep_am_short_iov, uct_ep_am_short_iov_func_t),
    .ep_am_bcopy = no_am_bcopy,
    REFUSE(ep_am_zcopy, uct_ep_am_zcopy_func_t),
    REFUSE(ep_atomic_cswap64, uct_ep_atomic_cswap64_func_t),
    REFUSE(ep_atomic_cswap32, uct_ep_atomic_cswap32_func_t),
    REFUSE(ep_atomic32_post, uct_ep_atomic32_post_func_t),
    REFUSE(ep_atomic64_post, uct_ep_atomic64_post_func_t),
    REFUSE(ep_atomic32_fetch, uct_ep_atomic32_fetch_func_t),
    REFUSE(ep_atomic64_fetch, uct_ep_atomic64_fetch_func_t),
    .ep_pending_add = (uct_ep_pending_add_func_t)ucs_empty_function_return_busy,
    .ep_pending_purge = (uct_ep_pending_purge_func_t)ucs_empty_function,
    .ep_flush = uct_base_ep_flush,
    .ep_fence = uct_base_ep_fence,
    .ep_check = (uct_ep_check_func_t)ucs_empty_function_return_success,
    .ep_create = gaudi_ep_new,
    .ep_destroy = gaudi_ep_delete,
    .iface_flush = uct_base_iface_flush,
    .iface_fence = uct_base_iface_fence,
    .iface_progress_enable = (uct_iface_progress_enable_func_t)ucs_empty_function,
    .iface_progress_disable = (uct_iface_progress_disable_func_t)ucs_empty_function,
    .iface_progress = (uct_iface_progress_func_t)ucs_empty_function_return_zero,
    REFUSE(iface_event_fd_get, uct_iface_event_fd_get_func_t),
    REFUSE(iface_event_arm, uct_iface_event_arm_func_t),
    .iface_close = gaudi_iface_delete,
    .iface_query = query,
    .iface_get_device_address =
        (uct_iface_get_device_address_func_t)ucs_empty_function_return_success,
    .iface_get_address = get_address,
    .iface_is_reachable = IS_REACHABLE,
};

/* From the published guide for Gaudi in UCX. */
static const struct gaudi_performance defaults[GAUDI_KINDS] = {
    [GAUDI_COPY] = {25.6e9, 5e-6},
    [GAUDI_IPC] = {12.8e9, 1e-6},
    [GAUDI_DMA] = {25.6e9, 1e-6},
};

/* The user's setting, else the measurement, else the default. */
static struct gaudi_performance performance_of(const gaudi_iface_t *iface,
                                               const struct gaudi_iface_config *config) {
  const struct gaudi_md *md = gaudi_md_of(iface);
  bool measured = md->measured.bandwidth > 0 && iface->kind != GAUDI_IPC;
  struct gaudi_performance found = measured ? md->measured : defaults[iface->kind];
  if (config->bandwidth > 0) /* auto is negative */
    found.bandwidth = config->bandwidth;
  if (config->latency > 0)
    found.latency = config->latency;
  return found;
}

static UCS_CLASS_INIT_FUNC(gaudi_iface_t, enum gaudi_kind kind, const uct_iface_ops_t *ops,
                           uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                           const struct gaudi_iface_config *config) {
  static _Atomic uint64_t interfaces;
  UCS_CLASS_CALL_SUPER_INIT(
      uct_base_iface_t, (uct_iface_ops_t *)ops, &internal_ops, md, worker, params,
      &config->super UCS_STATS_ARG(params->stats_root) UCS_STATS_ARG("gaudi"));
  self->kind = kind;
  self->performance = performance_of(self, config);
  self->max_zcopy = config->max_zcopy;
  self->number = ++interfaces;
  self->max_fast = self->max_bcopy = 0;
  self->bounce = NULL;
  self->timer = -1;
  ucs_queue_head_init(&self->queue);
  return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(gaudi_iface_t) {
  if (self->kind != GAUDI_COPY)
    uct_base_iface_progress_disable(&self->super.super, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
  gaudi_jobs_close(self);
  haul_region_release(self->bounce);
  if (self->timer >= 0)
    close(self->timer);
}

UCS_CLASS_DEFINE(gaudi_iface_t, uct_base_iface_t)

static UCS_CLASS_DEFINE_DELETE_FUNC(gaudi_iface_t, uct_iface_t)

    void gaudi_iface_delete(uct_iface_h iface) {
  UCS_CLASS_DELETE_FUNC_NAME(gaudi_iface_t)(iface);
}

ucs_status_t gaudi_iface_new(enum gaudi_kind kind, const uct_iface_ops_t *ops, uct_md_h md,
                             uct_worker_h worker, const uct_iface_params_t *params,
                             const uct_iface_config_t *config, uct_iface_h *out) {
  gaudi_iface_t *iface;
  ucs_status_t status = UCS_CLASS_NEW(gaudi_iface_t, &iface, kind, ops, md, worker, params,
                                      (const struct gaudi_iface_config *)config);
  if (status == UCS_OK)
    *out = &iface->super.super;
  return status;
}

static ucs_status_t connect_to(gaudi_ep_t *ep, const gaudi_iface_t *iface) {
  static _Atomic uint64_t connections;
  char name[GAUDI_ADDRESS_ROOM];
  gaudi_node_address(ep->remote.process, name);
  ep->connection = ++connections;
  if (haul_peer_connect(gaudi_node(), name, gaudi_until(iface), &ep->peer))
    return gaudi_failed("cannot connect to another process", UCS_LOG_LEVEL_ERROR);
  return UCS_OK;
}

static UCS_CLASS_INIT_FUNC(gaudi_ep_t, const uct_ep_params_t *params) {
  gaudi_iface_t *iface = of(params->iface);
  UCT_EP_PARAMS_CHECK_DEV_IFACE_ADDRS(params);
  UCS_CLASS_CALL_SUPER_INIT(uct_base_ep_t, &iface->super);
  self->peer = NULL;
  memcpy(&self->remote, params->iface_addr, sizeof self->remote);
  if (self->remote.host == gaudi_host() && self->remote.process == gaudi_process())
    return UCS_OK; /* of gaudi_ipc, too: it copies within the process, like cuda_ipc */
  if (unreachable(iface, params->iface_addr))
    return UCS_ERR_UNREACHABLE;
  return connect_to(self, iface);
}

static UCS_CLASS_CLEANUP_FUNC(gaudi_ep_t) {
  haul_peer_close(self->peer);
}

UCS_CLASS_DEFINE(gaudi_ep_t, uct_base_ep_t)

static UCS_CLASS_DEFINE_NEW_FUNC(
    gaudi_ep_t, uct_ep_t, const uct_ep_params_t *) static UCS_CLASS_DEFINE_DELETE_FUNC(gaudi_ep_t,
                                                                                       uct_ep_t)

    ucs_status_t gaudi_ep_new(const uct_ep_params_t *params, uct_ep_h *ep) {
  return UCS_CLASS_NEW_FUNC_NAME(gaudi_ep_t)(params, ep);
}

void gaudi_ep_delete(uct_ep_h ep) {
  UCS_CLASS_DELETE_FUNC_NAME(gaudi_ep_t)(ep);
}
