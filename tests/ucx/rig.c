/* SPDX-License-Identifier: MIT */
#include "rig.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <ucs/async/async.h>
#include <ucs/config/global_opts.h>
#pragma GCC diagnostic pop

/* Programs with a sanitizer cannot preload it. */
static void load_module(void) {
  if (getenv("HAUL_UCX_DLOPEN"))
    assert_non_null(dlopen(getenv("HAUL_UCX_MODULE"), RTLD_NOW));
}

uct_component_h rig_component(const char *name) {
  uct_component_h *all, found = NULL;
  unsigned count;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load_module);
  assert_ok(uct_query_components(&all, &count));
  for (unsigned i = 0; i < count && !found; i++) {
    uct_component_attr_t attributes = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
    assert_ok(uct_component_query(all[i], &attributes));
    if (strcmp(attributes.name, name) == 0)
      found = all[i];
  }
  uct_release_component_list(all);
  return found;
}

static void open_md(struct rig *rig, const char *name) {
  uct_md_config_t *config;
  rig->component = rig_component(name);
  assert_non_null(rig->component);
  assert_ok(uct_md_config_read(rig->component, NULL, NULL, &config));
  assert_ok(uct_md_open(rig->component, name, config, &rig->md));
  uct_config_release(config);
}

static void open_iface(struct rig *rig, const char *transport, const char *device) {
  uct_iface_config_t *config;
  const uct_iface_params_t params = {.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE |
                                                   UCT_IFACE_PARAM_FIELD_DEVICE,
                                     .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
                                     .mode.device = {.tl_name = transport, .dev_name = device}};
  assert_ok(uct_md_iface_config_read(rig->md, transport, NULL, NULL, &config));
  assert_ok(uct_iface_open(rig->md, rig->worker, &params, config, &rig->iface));
  uct_config_release(config);
  uct_iface_progress_enable(rig->iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
  assert_ok(uct_iface_query(rig->iface, &rig->attributes));
}

void rig_open(struct rig *rig, const char *transport, const char *device) {
  *rig = (struct rig){.transport = transport};
  open_md(rig, strcmp(transport, "gaudi_ipc") == 0 ? transport : "gaudi");
  assert_ok(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &rig->async));
  assert_ok(uct_worker_create(rig->async, UCS_THREAD_MODE_SINGLE, &rig->worker));
  open_iface(rig, transport, device);
}

ucs_status_t rig_connect(struct rig *rig, const void *iface_address) {
  uint8_t own[256];
  assert_true(rig->attributes.iface_addr_len <= sizeof own);
  if (!iface_address)
    assert_ok(uct_iface_get_address(rig->iface, (uct_iface_addr_t *)own));
  const uct_ep_params_t params = {.field_mask = UCT_EP_PARAM_FIELD_IFACE |
                                                UCT_EP_PARAM_FIELD_DEV_ADDR |
                                                UCT_EP_PARAM_FIELD_IFACE_ADDR,
                                  .iface = rig->iface,
                                  .dev_addr = (const uct_device_addr_t *)own, /* empty */
                                  .iface_addr = iface_address ? iface_address : (const void *)own};
  return uct_ep_create(&params, &rig->ep);
}

bool rig_is_connected(const struct rig *rig, const void *iface_address) {
#if UCX_HAS_GAUDI
  const uct_ep_is_connected_params_t params = {.field_mask = UCT_EP_IS_CONNECTED_FIELD_DEVICE_ADDR |
                                                             UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR,
                                               .device_addr = iface_address, /* empty */
                                               .iface_addr = iface_address};
  return uct_ep_is_connected(rig->ep, &params);
#else
  (void)rig, (void)iface_address;
  return false;
#endif
}

void rig_close(struct rig *rig) {
  if (rig->ep)
    uct_ep_destroy(rig->ep);
  uct_iface_close(rig->iface);
  uct_worker_destroy(rig->worker);
  ucs_async_context_destroy(rig->async);
  uct_md_close(rig->md);
}

/* By UCT, which does not check the type: 1.13 has none for Gaudi. */
void rig_alloc(struct rig *rig, size_t length, struct target *target) {
  uint8_t packed[256];
  target->length = length;
#if UCX_HAS_GAUDI
  assert_ok(uct_md_mem_alloc(rig->md, &target->length, &target->address, GAUDI_MEMORY_TYPE,
                             UCS_SYS_DEVICE_ID_UNKNOWN, UCT_MD_MEM_ACCESS_ALL, "test",
                             &target->memh));
#else
  assert_ok(uct_md_mem_alloc(rig->md, &target->length, &target->address, GAUDI_MEMORY_TYPE,
                             UCT_MD_MEM_ACCESS_ALL, "test", &target->memh));
#endif
  assert_true(target->length >= length);
  assert_ok(uct_md_mkey_pack(rig->md, target->memh, packed));
  assert_ok(uct_rkey_unpack(rig->component, packed, &target->key));
}

void rig_free(struct rig *rig, struct target *target) {
  uct_rkey_release(rig->component, &target->key);
  assert_ok(uct_md_mem_free(rig->md, target->memh));
}

static void complete(uct_completion_t *completion) {
  struct waiter *waiter = (struct waiter *)completion;
  waiter->calls++;
  waiter->status = completion->status;
}

void waiter_init(struct waiter *waiter) {
  *waiter = (struct waiter){.completion = {.func = complete, .count = 1, .status = UCS_OK}};
}

ucs_status_t rig_wait(struct rig *rig, ucs_status_t returned, struct waiter *waiter) {
  haul_deadline until = haul_deadline_in(INT64_C(20000000000));
  if (returned != UCS_INPROGRESS) {
    assert_int_equal(waiter->calls, 0);
    return returned;
  }
  while (waiter->calls == 0 && haul_deadline_in(0) < until)
    uct_worker_progress(rig->worker);
  assert_int_equal(waiter->calls, 1);
  return waiter->status;
}

ucs_status_t rig_put(struct rig *rig, const void *bytes, size_t length, uint64_t to,
                     uct_rkey_t rkey) {
  const uct_iov_t iov = {.buffer = (void *)(uintptr_t)bytes, .length = length, .count = 1};
  struct waiter waiter;
  waiter_init(&waiter);
  return rig_wait(rig, uct_ep_put_zcopy(rig->ep, &iov, 1, to, rkey, &waiter.completion), &waiter);
}

ucs_status_t rig_get(struct rig *rig, void *bytes, size_t length, uint64_t from, uct_rkey_t rkey) {
  const uct_iov_t iov = {.buffer = bytes, .length = length, .count = 1};
  struct waiter waiter;
  waiter_init(&waiter);
  return rig_wait(rig, uct_ep_get_zcopy(rig->ep, &iov, 1, from, rkey, &waiter.completion), &waiter);
}

void rig_log(ucs_log_level_t level) {
  ucs_global_opts.log_component.log_level = level;
}

void rig_quiet(bool quiet) {
  rig_log(quiet ? UCS_LOG_LEVEL_FATAL : UCS_LOG_LEVEL_WARN);
}
