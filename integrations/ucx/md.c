/* SPDX-License-Identifier: MIT
 * Two components with a memory domain each. gaudi_ipc needs remote keys; in a shared domain all
 * transports would need them, even for host memory. */
#include "module.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ucs_config_field_t config_table[] = {
    {"", "", NULL, offsetof(struct gaudi_md_config, super),
     UCS_CONFIG_TYPE_TABLE(uct_md_config_table)},
    {"TIMEOUT", "30s", "Time limit of an operation, and of a connection to another process.",
     offsetof(struct gaudi_md_config, timeout), UCS_CONFIG_TYPE_TIME},
    {"IMPORT_CACHE_MAX", UCS_PP_MAKE_STRING(GAUDI_IMPORTS),
     "Size of the cache of other processes' memory. The first open domain sets it.",
     offsetof(struct gaudi_md_config, imports), UCS_CONFIG_TYPE_UINT},
    {"DEVICE", "auto", "Number of the device to allocate on. auto: the first available one.",
     offsetof(struct gaudi_md_config, device), UCS_CONFIG_TYPE_ULUNITS},
    {"MEASURE", "n",
     "Measure copies at the open of the domain, for some milliseconds, as the default of\n"
     "the transports' BW and LATENCY. This opens the device.",
     offsetof(struct gaudi_md_config, measure), UCS_CONFIG_TYPE_BOOL},
    {.name = NULL}};

int64_t gaudi_nanoseconds(double seconds) {
  return seconds < 9e9 ? (int64_t)(seconds * 1e9) : INT64_MAX;
}

static struct gaudi_md *of(uct_md_h md) {
  return (struct gaudi_md *)md;
}

static ucs_status_t query_resources(uct_component_t *component, uct_md_resource_desc_t **resources,
                                    unsigned *count) {
  struct haul_device devices[GAUDI_DEVICES_MAX];
  size_t there = GAUDI_DEVICES_MAX;
  bool opened = gaudi_open(GAUDI_IMPORTS); /* logs its failure */
  if (opened) {
    gaudi_devices(devices, &there);
    gaudi_close();
  }
  if (opened && there > 0)
    return uct_md_query_single_md_resource(component, resources, count);
  *resources = NULL;
  *count = 0;
  return UCS_OK;
}

/* Allocates on the chosen device, or on the first available one. */
static ucs_status_t alloc_any(struct gaudi_md *md, size_t *length, void **address,
                              struct gaudi_memh **memh) {
  size_t chosen = atomic_load(&md->chosen);
  if (chosen < md->count)
    return gaudi_memory_alloc(md->devices[chosen].number, length, address, memh);
  ucs_status_t status = UCS_ERR_NO_DEVICE;
  for (size_t i = 0; i < md->count && status != UCS_OK; i++) {
    status = gaudi_memory_alloc(md->devices[i].number, length, address, memh);
    if (status == UCS_OK)
      atomic_store(&md->chosen, i);
    else if (status != UCS_ERR_BUSY) /* in use by another process */
      break;
  }
  return status;
}

static ucs_status_t md_alloc(uct_md_h md, size_t *length, void **address, ucs_memory_type_t type,
                             ucs_sys_device_t system, unsigned flags, uct_mem_h *memh) {
  struct gaudi_md *own = of(md);
  if (own->ipc || type != GAUDI_MEMORY_TYPE || (flags & UCT_MD_MEM_FLAG_FIXED))
    return UCS_ERR_UNSUPPORTED;
  if (system == UCS_SYS_DEVICE_ID_UNKNOWN)
    return alloc_any(own, length, address, (struct gaudi_memh **)memh);
  for (size_t i = 0; i < own->count; i++)
    if (own->devices[i].system == system)
      return gaudi_memory_alloc(own->devices[i].number, length, address,
                                (struct gaudi_memh **)memh);
  return UCS_ERR_UNSUPPORTED;
}

static ucs_status_t md_free(uct_md_h md, uct_mem_h memh) {
  (void)md;
  gaudi_memory_free(memh);
  return UCS_OK;
}

static ucs_status_t md_register(void *address, size_t length, uint64_t flags, uct_mem_h *memh) {
  ucs_log_level_t level =
      flags & UCT_MD_MEM_FLAG_HIDE_ERRORS ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR;
  return gaudi_memory_register(address, length, level, (struct gaudi_memh **)memh);
}

/* A key ends with its registration, so an invalidation, which only gaudi_ipc offers, does no more.
 */
static ucs_status_t md_deregister(uct_md_h md, const uct_md_mem_dereg_params_t *params) {
  const uint64_t given = params->field_mask;
  bool invalidates = (given & UCT_MD_MEM_DEREG_FIELD_FLAGS) && params->flags;
  if (!(given & UCT_MD_MEM_DEREG_FIELD_MEMH) || !params->memh)
    return UCS_ERR_INVALID_PARAM;
  if (invalidates && !of(md)->ipc)
    return UCS_ERR_UNSUPPORTED;
  if (invalidates && !((given & UCT_MD_MEM_DEREG_FIELD_COMPLETION) && params->comp))
    return UCS_ERR_INVALID_PARAM;
  gaudi_memory_free(params->memh);
  if (invalidates)
    uct_invoke_completion(params->comp, UCS_OK);
  return UCS_OK;
}

static ucs_sys_device_t system_of(uct_md_h md, uint16_t number) {
  for (size_t i = 0; i < of(md)->count; i++)
    if (of(md)->devices[i].number == number)
      return of(md)->devices[i].system;
  return UCS_SYS_DEVICE_ID_UNKNOWN;
}

static ucs_status_t md_detect(uct_md_h md, const void *address, size_t length,
                              ucs_memory_type_t *type) {
  struct gaudi_block block;
  ucs_status_t status = gaudi_memory_find(address, length, &block);
  (void)md;
  if (status == UCS_OK)
    *type = GAUDI_MEMORY_TYPE;
  return status;
}

static void close_md(uct_md_h md) {
  free(md);
  gaudi_close();
}

#if UCX_HAS_GAUDI

static ucs_status_t md_query(uct_md_h md, uct_md_attr_v2_t *attributes) {
  uct_md_base_md_query(attributes);
  attributes->rkey_packed_size = sizeof(struct gaudi_key);
  attributes->reg_mem_types = attributes->access_mem_types = GAUDI_MEMORY_TYPES;
  attributes->flags = UCT_MD_FLAG_REG;
  if (of(md)->ipc) { /* UCP requires invalidation for UCP_ERR_HANDLING_MODE_PEER */
    attributes->flags |= UCT_MD_FLAG_NEED_RKEY | UCT_MD_FLAG_INVALIDATE |
                         UCT_MD_FLAG_INVALIDATE_RMA | UCT_MD_FLAG_INVALIDATE_AMO;
  } else {
    attributes->flags |= UCT_MD_FLAG_ALLOC;
    attributes->alloc_mem_types = attributes->detect_mem_types = attributes->dmabuf_mem_types =
        GAUDI_MEMORY_TYPES;
    attributes->reg_mem_types |= UCS_BIT(UCS_MEMORY_TYPE_HOST);
    attributes->access_mem_types |= UCS_BIT(UCS_MEMORY_TYPE_HOST);
    attributes->max_alloc = of(md)->memory;
  }
  attributes->cache_mem_types = attributes->reg_mem_types;
  return UCS_OK;
}

static ucs_status_t alloc_22(uct_md_h md, size_t *length, void **address, ucs_memory_type_t type,
                             ucs_sys_device_t device, unsigned flags, const char *name,
                             uct_mem_h *memh) {
  (void)name;
  return md_alloc(md, length, address, type, device, flags, memh);
}

static ucs_status_t register_22(uct_md_h md, void *address, size_t length,
                                const uct_md_mem_reg_params_t *params, uct_mem_h *memh) {
  (void)md;
  return md_register(address, length,
                     params->field_mask & UCT_MD_MEM_REG_FIELD_FLAGS ? params->flags : 0, memh);
}

/* The dma-buf of the whole block; importers such as UCX's InfiniBand transport add the offset. */
static ucs_status_t export_dmabuf(const struct gaudi_block *block, const void *address,
                                  uct_md_mem_attr_v2_t *attributes) {
  struct gaudi_part part;
  uint64_t offset;
  int descriptor;
  ucs_status_t status = gaudi_part_acquire((void *)(uintptr_t)block->start,
                                           (size_t)(block->end - block->start), NULL, &part);
  if (status != UCS_OK)
    return status;
  if (haul_region_dmabuf(part.region, &descriptor, &offset))
    status = gaudi_failed("cannot export a dma-buf", UCS_LOG_LEVEL_DIAG);
  gaudi_part_release(&part);
  if (status != UCS_OK)
    return status;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET)
    attributes->dmabuf_offset = offset + ((uintptr_t)address - block->start);
  attributes->dmabuf_fd = descriptor;
  return UCS_OK;
}

static ucs_status_t mem_query(uct_md_h md, const void *address, size_t length,
                              uct_md_mem_attr_v2_t *attributes) {
  struct gaudi_block block;
  ucs_status_t status = gaudi_memory_find(address, length, &block);
  if (status != UCS_OK)
    return status;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE)
    attributes->mem_type = GAUDI_MEMORY_TYPE;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV)
    attributes->sys_dev = system_of(md, block.device);
  if (attributes->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS)
    attributes->base_address = (void *)(uintptr_t)block.start;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH)
    attributes->alloc_length = (size_t)(block.end - block.start);
  if (attributes->field_mask & UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD)
    status = export_dmabuf(&block, address, attributes);
  return status;
}

static ucs_status_t pack_22(uct_md_h md, uct_mem_h memh, void *address, size_t length,
                            const uct_md_mkey_pack_params_t *params, void *buffer) {
  (void)md, (void)address, (void)length, (void)params; /* each key can be invalidated */
  return gaudi_key_pack(memh, buffer);
}

static ucs_status_t unpack_22(uct_component_t *component, const void *buffer,
                              const uct_rkey_unpack_params_t *params, uct_rkey_t *rkey,
                              void **handle) {
  struct gaudi_key *key;
  ucs_status_t status = gaudi_key_unpack(buffer, &key);
  (void)component, (void)params;
  *handle = NULL;
  if (status == UCS_OK)
    *rkey = (uct_rkey_t)key;
  return status;
}

static uct_md_ops_t md_ops = {
    .close = close_md,
    .query = md_query,
    .mem_alloc = alloc_22,
    .mem_free = md_free,
    .mem_advise = (uct_md_mem_advise_func_t)ucs_empty_function_return_unsupported,
    .mem_reg = register_22,
    .mem_dereg = md_deregister,
    .mem_query = mem_query,
    .mkey_pack = pack_22,
    .mem_attach = (uct_md_mem_attach_func_t)ucs_empty_function_return_unsupported,
    .detect_memory_type = md_detect,
    .mem_elem_pack = (uct_md_mem_elem_pack_func_t)ucs_empty_function_return_unsupported,
#if UCX_MINOR >= 23
    .mem_elem_release = (uct_md_mem_elem_release_func_t)ucs_empty_function,
#endif
};

#else /* 1.13 */

static ucs_status_t md_query(uct_md_h md, uct_md_attr_t *attributes) {
  memset(&attributes->cap, 0, sizeof attributes->cap);
  attributes->cap.flags =
      UCT_MD_FLAG_REG | (of(md)->ipc ? UCT_MD_FLAG_NEED_RKEY : UCT_MD_FLAG_ALLOC);
  attributes->cap.reg_mem_types = of(md)->ipc ? 0 : UCS_BIT(UCS_MEMORY_TYPE_HOST);
  attributes->cap.max_alloc = of(md)->ipc ? 0 : of(md)->memory;
  attributes->cap.max_reg = SIZE_MAX;
  attributes->reg_cost = ucs_linear_func_make(0, 0);
  attributes->rkey_packed_size = sizeof(struct gaudi_key);
  memset(&attributes->local_cpus, 0xff, sizeof attributes->local_cpus);
  return UCS_OK;
}

static ucs_status_t alloc_13(uct_md_h md, size_t *length, void **address, ucs_memory_type_t type,
                             unsigned flags, const char *name, uct_mem_h *memh) {
  (void)name;
  return md_alloc(md, length, address, type, UCS_SYS_DEVICE_ID_UNKNOWN, flags, memh);
}

static ucs_status_t register_13(uct_md_h md, void *address, size_t length, unsigned flags,
                                uct_mem_h *memh) {
  (void)md;
  return md_register(address, length, flags, memh);
}

static ucs_status_t mem_query(uct_md_h md, const void *address, size_t length,
                              uct_md_mem_attr_t *attributes) {
  struct gaudi_block block;
  ucs_status_t status = gaudi_memory_find(address, length, &block);
  if (status != UCS_OK)
    return status;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_FIELD_MEM_TYPE)
    attributes->mem_type = GAUDI_MEMORY_TYPE;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_FIELD_SYS_DEV)
    attributes->sys_dev = system_of(md, block.device);
  if (attributes->field_mask & UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS)
    attributes->base_address = (void *)(uintptr_t)block.start;
  if (attributes->field_mask & UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH)
    attributes->alloc_length = (size_t)(block.end - block.start);
  return UCS_OK;
}

static ucs_status_t pack_13(uct_md_h md, uct_mem_h memh, const uct_md_mkey_pack_params_t *params,
                            void *buffer) {
  (void)md, (void)params;
  return gaudi_key_pack(memh, buffer);
}

static ucs_status_t unpack_13(uct_component_t *component, const void *buffer, uct_rkey_t *rkey,
                              void **handle) {
  struct gaudi_key *key;
  ucs_status_t status = gaudi_key_unpack(buffer, &key);
  (void)component;
  *handle = NULL;
  if (status == UCS_OK)
    *rkey = (uct_rkey_t)key;
  return status;
}

static uct_md_ops_t md_ops = {
    .close = close_md,
    .query = md_query,
    .mem_alloc = alloc_13,
    .mem_free = md_free,
    .mem_advise = (uct_md_mem_advise_func_t)ucs_empty_function_return_unsupported,
    .mem_reg = register_13,
    .mem_dereg = md_deregister,
    .mem_query = mem_query,
    .mkey_pack = pack_13,
    .is_sockaddr_accessible = (uct_md_is_sockaddr_accessible_func_t)ucs_empty_function_return_zero,
    .detect_memory_type = md_detect,
};

#endif

static ucs_status_t release_key(uct_component_t *component, uct_rkey_t rkey, void *handle) {
  (void)component, (void)handle;
  free((void *)rkey);
  return UCS_OK;
}

#define LARGE  ((size_t)16 << 20)
#define ROUNDS 9

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median in seconds; 0 after a failure. */
static double time_of(haul_region *device, haul_region *host, size_t length, haul_deadline until) {
  double took[ROUNDS];
  for (unsigned i = 0; i < ROUNDS; i++) {
    haul_deadline began = haul_deadline_in(0);
    if (haul_region_copy(i % 2 ? host : device, 0, i % 2 ? device : host, 0, length, until))
      return 0;
    took[i] = (double)(haul_deadline_in(0) - began) * 1e-9;
  }
  qsort(took, ROUNDS, sizeof took[0], ascending);
  return took[ROUNDS / 2];
}

static void measure_copies(struct gaudi_md *md, haul_region *device, haul_region *host) {
  haul_deadline until = haul_deadline_in(gaudi_nanoseconds(md->timeout));
  double small = time_of(device, host, 64, until), large = time_of(device, host, LARGE, until);
  if (small <= 0 || large <= small) {
    gaudi_failed("cannot measure copies, using estimates", UCS_LOG_LEVEL_WARN);
    return;
  }
  md->measured = (struct gaudi_performance){(double)LARGE / (large - small), small};
  ucs_info("gaudi: measured: %.1f GB/s, %.1f us; gaudi_ipc uses its default, as it needs a second "
           "process",
           md->measured.bandwidth * 1e-9, small * 1e6);
}

static void md_measure(struct gaudi_md *md) {
  const struct haul_place at_host = {HAUL_HOST, 0};
  struct gaudi_memh *memh = NULL;
  haul_region *host = NULL;
  size_t length = LARGE;
  void *address;
  if (alloc_any(md, &length, &address, &memh) != UCS_OK ||
      haul_region_alloc(gaudi_node(), at_host, LARGE, HAUL_REGION_PINNED, &host))
    ucs_warn("gaudi: cannot measure copies, using estimates: out of memory");
  else
    measure_copies(md, memh->region, host);
  haul_region_release(host);
  if (memh)
    gaudi_memory_free(memh);
}

static ucs_sys_device_t system_device_of(const char *pci) {
  unsigned domain, bus, slot, function;
  ucs_sys_device_t device;
  if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
    return UCS_SYS_DEVICE_ID_UNKNOWN;
  const ucs_sys_bus_id_t id = {.domain = (uint16_t)domain,
                               .bus = (uint8_t)bus,
                               .slot = (uint8_t)slot,
                               .function = (uint8_t)function};
  return ucs_topo_find_device_by_bus_id(&id, &device) == UCS_OK ? device
                                                                : UCS_SYS_DEVICE_ID_UNKNOWN;
}

static void init_devices(struct gaudi_md *md, size_t wanted) {
  struct haul_device devices[GAUDI_DEVICES_MAX];
  md->count = GAUDI_DEVICES_MAX;
  gaudi_devices(devices, &md->count);
  atomic_store(&md->chosen, md->count);
  for (size_t i = 0; i < md->count; i++) {
    uint64_t memory = devices[i].memory ? devices[i].memory : SIZE_MAX;
    md->memory = memory > md->memory ? memory : md->memory;
    md->devices[i].number = devices[i].place.device;
    md->devices[i].system = system_device_of(devices[i].pci);
    if (wanted != UCS_ULUNITS_AUTO && wanted == devices[i].place.device)
      atomic_store(&md->chosen, i);
  }
}

static ucs_status_t open_md(uct_component_t *component, const char *name,
                            const uct_md_config_t *base, uct_md_h *out) {
  const struct gaudi_md_config *config = (const struct gaudi_md_config *)base;
  struct gaudi_md *md = calloc(1, sizeof *md);
  (void)name; /* there is only one */
  if (!md)
    return UCS_ERR_NO_MEMORY;
  if (!gaudi_open(config->imports)) {
    free(md);
    return UCS_ERR_IO_ERROR;
  }
  md->super.ops = &md_ops;
  md->super.component = component;
  md->ipc = component == &gaudi_ipc_component;
  md->timeout = config->timeout;
  init_devices(md, config->device);
  if (md->count == 0 || (config->device != UCS_ULUNITS_AUTO && md->chosen == md->count)) {
    close_md(&md->super);
    ucs_error("gaudi: UCX_GAUDI_DEVICE=%zu: no such device", config->device);
    return UCS_ERR_NO_DEVICE;
  }
  if (config->measure && !md->ipc)
    md_measure(md);
  *out = &md->super;
  return UCS_OK;
}

#if UCX_HAS_GAUDI
#define KEYS .rkey_unpack = unpack_22, .rkey_compare = uct_base_rkey_compare
#else
#define KEYS .rkey_unpack = unpack_13
#endif

#define COMPONENT(component, called)                                                               \
  {                                                                                                \
    .name = called, .query_md_resources = query_resources, .md_open = open_md,                     \
    .cm_open = (uct_component_cm_open_func_t)ucs_empty_function_return_unsupported, KEYS,          \
    .rkey_ptr = (uct_component_rkey_ptr_func_t)ucs_empty_function_return_unsupported,              \
    .rkey_release = release_key,                                                                   \
    .md_config = {.name = "Gaudi memory domain (" called ")",                                      \
                  .prefix = "GAUDI_",                                                              \
                  .table = config_table,                                                           \
                  .size = sizeof(struct gaudi_md_config)},                                         \
    .cm_config = UCS_CONFIG_EMPTY_GLOBAL_LIST_ENTRY,                                               \
    .tl_list = UCT_COMPONENT_TL_LIST_INITIALIZER(&(component)), .flags = 0,                        \
    .md_vfs_init = (uct_component_md_vfs_init_func_t)ucs_empty_function,                           \
  }

uct_component_t gaudi_component = COMPONENT(gaudi_component, "gaudi");
uct_component_t gaudi_ipc_component = COMPONENT(gaudi_ipc_component, "gaudi_ipc");
