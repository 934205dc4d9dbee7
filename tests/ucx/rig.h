/* SPDX-License-Identifier: MIT
 * UCT as a program of UCX's uses it, over the module that was preloaded (1.13) or that
 * UCX_PLUGIN_PATH names (1.22), and over Gaudi devices that are doubles. */
#ifndef HAUL_TESTS_UCX_RIG_H
#define HAUL_TESTS_UCX_RIG_H

#include "support/check.h"

#include "../../integrations/ucx/version.h"

#include <stdbool.h>
#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* An interface of one transport with an endpoint to itself, or to another process. */
struct rig {
  uct_component_h component;
  uct_md_h md;
  ucs_async_context_t *async;
  uct_worker_h worker;
  uct_iface_h iface;
  uct_iface_attr_t attributes;
  uct_ep_h ep;
};

/* Memory of a device, and its key as a peer has it. */
struct target {
  void *address;
  size_t length;
  uct_mem_h memh;
  uct_rkey_bundle_t key;
};

/* "gaudi_cpy" on "gaudi0". */
void rig_open(struct rig *rig, const char *transport, const char *device);
/* To the interface of this address; NULL: to itself. */
ucs_status_t rig_connect(struct rig *rig, const void *iface_address);
void rig_close(struct rig *rig);

void rig_alloc(struct rig *rig, size_t length, struct target *target);
void rig_free(struct rig *rig, struct target *target);
/* NULL: nowhere. */
uct_component_h rig_component(const char *name);

/* Progresses until the completion was told, or 20 s have passed. */
struct told {
  uct_completion_t completion;
  volatile unsigned times;
  volatile ucs_status_t status;
};
void told_init(struct told *told);
/* What a zero-copy operation ended with: what it returned, or what was told. */
ucs_status_t rig_end(struct rig *rig, ucs_status_t returned, struct told *told);

ucs_status_t rig_put(struct rig *rig, const void *bytes, size_t length, uint64_t to,
                     uct_rkey_t rkey);
ucs_status_t rig_get(struct rig *rig, void *bytes, size_t length, uint64_t from, uct_rkey_t rkey);

/* Without UCX's error lines, where a failure is what is tested. */
void rig_quiet(bool quiet);

#endif
