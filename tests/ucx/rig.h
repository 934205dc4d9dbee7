/* SPDX-License-Identifier: MIT
 * A test rig for UCT with the module, which is preloaded (1.13) or in UCX_PLUGIN_PATH (1.22), over
 * mocked Gaudi devices. */
#ifndef HAUL_TESTS_UCX_RIG_H
#define HAUL_TESTS_UCX_RIG_H

#include "support/check.h"

#include "../../integrations/ucx/version.h"

#include <stdbool.h>
#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

#define assert_ok(call) assert_int_equal(call, UCS_OK)

/* An interface of one transport with an endpoint to itself, or to another process. */
struct rig {
  const char *transport;
  uct_component_h component;
  uct_md_h md;
  ucs_async_context_t *async;
  uct_worker_h worker;
  uct_iface_h iface;
  uct_iface_attr_t attributes;
  uct_ep_h ep;
};

/* Device memory, and its unpacked key. */
struct target {
  void *address;
  size_t length;
  uct_mem_h memh;
  uct_rkey_bundle_t key;
};

void rig_open(struct rig *rig, const char *transport, const char *device);
/* NULL: to itself. */
ucs_status_t rig_connect(struct rig *rig, const void *iface_address);
/* Whether the endpoint says that it leads to the interface with this address. 1.13: false. */
bool rig_is_connected(const struct rig *rig, const void *iface_address);
void rig_close(struct rig *rig);

void rig_alloc(struct rig *rig, size_t length, struct target *target);
void rig_free(struct rig *rig, struct target *target);
/* NULL if there is none. */
uct_component_h rig_component(const char *name);

/* A completion. */
struct waiter {
  uct_completion_t completion;
  volatile unsigned calls;
  volatile ucs_status_t status;
};
void waiter_init(struct waiter *waiter);
/* Waits up to 20 s for an operation that returned `returned`; its final status. */
ucs_status_t rig_wait(struct rig *rig, ucs_status_t returned, struct waiter *waiter);

ucs_status_t rig_put(struct rig *rig, const void *bytes, size_t length, uint64_t to,
                     uct_rkey_t rkey);
ucs_status_t rig_get(struct rig *rig, void *bytes, size_t length, uint64_t from, uct_rkey_t rkey);

void rig_log(ucs_log_level_t level);
/* Silences UCX's error log in tests of failures. */
void rig_quiet(bool quiet);

#endif
