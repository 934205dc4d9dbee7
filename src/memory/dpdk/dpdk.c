/* SPDX-License-Identifier: MIT
 * Host memory from DPDK: the provider table. */
#include "memory/dpdk/dpdk.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "core/error.h"
#include "memory/pages.h"

/* Result of the first devices() since start; 0: not yet. */
static _Atomic unsigned known;
#define ABSENT (DPDK_NODES + 1)

static int dpdk_start(void) {
  atomic_store(&known, 0);
  return 0;
}

static unsigned dpdk_devices(void) {
  unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == 0) {
    struct haul_error before;
    error_save(&before);
    found = dpdk_eal_open() ? dpdk_nodes() : ABSENT;
    error_restore(&before);
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return found == ABSENT ? 0 : found;
}

static int dpdk_why_none(void) {
  return dpdk_eal_open() ? 0 : HAUL_ENOTSUP;
}

static void dpdk_describe(unsigned device, struct haul_device *info) {
  struct dpdk_figures figures;
  char counts[48];
  info->numa = (int)device;
  info->memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
  snprintf(info->name, sizeof info->name, "DPDK memory");
  if (dpdk_pool_figures(device, &figures))
    snprintf(info->name, sizeof info->name, "DPDK memory, %s%s",
             dpdk_counts(figures.limit, counts, sizeof counts),
             dpdk_pool_is_cut(&figures) ? " (cut)" : "");
  snprintf(info->exports, sizeof info->exports, "cross-memory attach");
}

/* The sums over all nodes and classes. */
static void dpdk_counters(void (*each)(void *user, const char *name, uint64_t value), void *user) {
  struct dpdk_figures figures;
  uint64_t made = 0, unused = 0, cut = 0;
  for (unsigned node = 0; node < dpdk_devices(); node++)
    for (unsigned i = 0; dpdk_pool_figures(node, &figures) && i < DPDK_CLASSES; i++) {
      made += figures.made[i];
      unused += figures.unused[i];
      cut += figures.wanted[i] - figures.limit[i];
    }
  each(user, "dpdk.objects", made);
  each(user, "dpdk.objects_free", unused);
  each(user, "dpdk.objects_cut", cut);
  each(user, "dpdk.waits", dpdk_pool_waits());
}

static int dpdk_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  (void)flags;
  int status = dpdk_pool_get(device, length, memory->may_wait, memory);
  if (status != 0)
    return status;
  memory->length = length;
  memory->writable = true;
  return 0;
}

static void dpdk_free(struct memory *memory) {
  if (memory->state)
    dpdk_pool_put(memory);
}

/* EAL's own memory segment list at an address; NULL: none. */
static const struct rte_memseg_list *list_at(const struct dpdk_eal *eal, const void *address) {
  const struct rte_memseg_list *list = eal->list_of(address);
  return list && !list->external ? list : NULL;
}

static int dpdk_owns(const void *address, size_t length, struct haul_place *place) {
  const struct dpdk_eal *eal = library_loaded(&dpdk_library);
  if (!eal)
    return 0;
  const struct rte_memseg_list *first = list_at(eal, address);
  const struct rte_memseg_list *last = list_at(eal, (const char *)address + length - 1);
  if (!first && !last)
    return 0;
  if (first != last)
    return error_range(address, length, "check address and length",
                       "part of the range lies outside of DPDK's memory");
  /* EAL reserves more address space than it has memory. */
  if (provider_of(HAUL_HOST)->owns(address, length, place) < 0)
    return HAUL_EINVAL;
  unsigned node = first->socket_id < 0 ? 0 : (unsigned)first->socket_id;
  *place = (struct haul_place){HAUL_DPDK, (uint16_t)(node < dpdk_devices() ? node : 0)};
  return 1;
}

static int dpdk_wrap(void *address, size_t length, struct memory *memory) {
  memory->address = memory->view = address;
  memory->length = length;
  memory->wrapped = memory->writable = true;
  return 0;
}

/* Rounds up to whole pages: the rest of the last page of haul's own memory belongs to haul. */
static int whole_pages(const struct memory *memory, size_t *bytes) {
  size_t page = page_size();
  bool aligned = (uintptr_t)memory->view % page == 0 && page_round(memory->length, bytes);
  if (aligned && (!memory->wrapped || *bytes == memory->length))
    return 0;
  return error_set(
      HAUL_EINVAL, 0, error_object("%p+%zu", memory->view, memory->length),
      "wrap memory that begins and ends with a page, or take it from haul_region_alloc",
      "the range is not made of whole pages of %zu bytes", page);
}

static int known_already(int system) {
  return error_set(HAUL_EINVAL, system, "rte_extmem_register", "unregister it first",
                   "this memory, or a part of it, is registered with DPDK already");
}

static int refused(const char *call) {
  int system = dpdk_eal_errno();
  if (system == EEXIST)
    return known_already(system);
  if (system == ENOENT)
    return error_set(HAUL_EINVAL, system, call,
                     "do not call rte_extmem_unregister for regions of haul",
                     "this memory is no longer registered with DPDK");
  if (system == ENOSPC || system == ENOMEM)
    return error_set(HAUL_ELIMIT, system, call, "register fewer and larger regions",
                     "DPDK cannot register more external memory");
  return error_system(system, call, "it");
}

static int dpdk_enroll(const struct memory *memory) {
  size_t bytes = 0;
  const struct dpdk_eal *eal = dpdk_eal_start();
  if (!eal)
    return haul_error_last()->code;
  if (list_at(eal, memory->view))
    return error_set(HAUL_EINVAL, 0, "dpdk", "use it without registration",
                     "this memory is DPDK's own");
  int status = whole_pages(memory, &bytes);
  if (status != 0)
    return status;
  /* EAL only rejects the identical range. */
  if (eal->list_of(memory->view) || eal->list_of((char *)memory->view + bytes - 1))
    return known_already(0);
  if (eal->external_register(memory->view, bytes, NULL, 0, page_size()) != 0)
    return refused("rte_extmem_register");
  status = dpdk_gpus_enroll(memory->view, bytes);
  if (status != 0)
    eal->external_unregister(memory->view, bytes);
  return status;
}

static int dpdk_dismiss(const struct memory *memory) {
  size_t bytes = 0;
  int status = whole_pages(memory, &bytes);
  if (status != 0)
    return status;
  if (dpdk_eal_start()->external_unregister(memory->view, bytes) != 0)
    return refused("rte_extmem_unregister");
  dpdk_gpus_dismiss(memory->view);
  return 0;
}

const struct provider provider_dpdk = {
    .name = "dpdk",
    .kind = HAUL_DPDK,
    .numbered = true,
    .recycles = true,
    /* Similar to host memory, as the CPU copies. */
    .copy_bytes_per_ns = 10,
    .copy_latency_ns = 100,
    .unshareable = "DPDK's memory has no descriptor that another process could map",
    .start = dpdk_start,
    .devices = dpdk_devices,
    .why_none = dpdk_why_none,
    .describe = dpdk_describe,
    .checks = dpdk_checks,
    .counters = dpdk_counters,
    .alloc = dpdk_alloc,
    .free = dpdk_free,
    .owns = dpdk_owns,
    .wrap = dpdk_wrap,
    .enroll = dpdk_enroll,
    .dismiss = dpdk_dismiss,
};
