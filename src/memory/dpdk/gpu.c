/* SPDX-License-Identifier: MIT
 * GPU memory through DPDK's librte_gpudev, for GPUs with a DPDK driver, which exist once EAL runs.
 * The CPU copies through the driver's mapping; memory without a mapping is not allocated. Debian's
 * DPDK has no GPU driver. */
#include <stdio.h>

#include "core/alloc.h"
#include "core/check.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/list.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"

static struct gpu_driver {
#define SLOT(slot, symbol, result, arguments) result(*slot) arguments;
  DPDK_GPU_REQUIRED(SLOT)
#undef SLOT
} table;

#define SYMBOL(slot, symbol, result, arguments) {#symbol, offsetof(struct gpu_driver, slot)},
static const struct library_symbol required[] = {DPDK_GPU_REQUIRED(SYMBOL)};
#undef SYMBOL

static struct library library = {
    .title = "DPDK's librte_gpudev",
    .names = {"librte_gpudev.so.23"},
    .since = "DPDK 22.11",
    .packages = "librte-gpudev23",
    LIBRARY_REQUIRED(required, table),
};

/* Restores the thread's detail. */
static bool is_there(void) {
  struct haul_error before;
  error_save(&before);
  bool there = library_open(&library);
  if (!there)
    error_restore(&before);
  return there;
}

/* The device after `id`, or after -1 the first; -1: there is none. */
static int16_t next_gpu(int16_t id) {
  return table.next((int16_t)(id + 1), RTE_GPU_ID_NONE);
}

static unsigned gpu_devices(void) {
  unsigned count = 0;
  if (!is_there() || table.count() == 0)
    return 0;
  for (int16_t id = -1; (id = next_gpu(id)) >= 0;)
    count++;
  return count;
}

/* DPDK's id of the n-th device; -1: gone. */
static int16_t id_of(unsigned device) {
  int16_t id = next_gpu(-1);
  while (id >= 0 && device-- > 0)
    id = next_gpu(id);
  return id;
}

static bool cuda_serves(void) {
  return provider_devices(provider_of(HAUL_CUDA)) > 0;
}

static int gpu_why_none(void) {
  if (!library_open(&library))
    return HAUL_ENOTSUP;
  return error_set(HAUL_ENOTSUP, 0, "librte_gpudev.so.23",
                   cuda_serves() ? "cuda:N serves this GPU, cuda:0 the first"
                                 : "cuda:N serves NVIDIA's GPUs (haul doctor cuda); DPDK's driver "
                                   "gpu_cuda is there once EAL runs with it (dpdk_eal)",
                   "DPDK has no driver for a GPU here");
}

static void gpu_describe(unsigned device, struct haul_device *info) {
  struct rte_gpu_info found = {.numa_node = -1};
  if (table.info(id_of(device), &found) != 0)
    return;
  info->numa = found.numa_node;
  info->memory = found.total_memory;
  snprintf(info->name, sizeof info->name, "%.40s, by DPDK", found.name ? found.name : "a GPU");
  snprintf(info->exports, sizeof info->exports, "nothing");
}

/* One check, never MISSING: only users of DPDK's GPU drivers need it. */
static void check_device(struct haul_check *check) {
  unsigned count = gpu_devices();
  if (count > 0) {
    check_set(check, HAUL_CHECK_OK, "%u GPU%s of DPDK's", count, count == 1 ? "" : "s");
    return;
  }
  gpu_why_none();
  check_set(check, HAUL_CHECK_OK, "not needed: %.90s%s", haul_error_last()->text,
            cuda_serves() ? "; cuda:N serves this GPU" : "; NVIDIA's are cuda:N");
}

static size_t gpu_checks(struct haul_check *checks, size_t room) {
  static const struct check_entry device = {"device", check_device};
  return check_run("gpudev", &device, 1, checks, room);
}

struct block {
  struct list link;
  char *address, *view;
  size_t bytes;
  int16_t id;
  unsigned device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `blocks` */
static struct list blocks = LIST_INIT(blocks);

static int no_memory(unsigned device, size_t length) {
  return error_set(HAUL_ENOMEM, 0, error_object("gpudev:%u", device),
                   "release some, or ask for less",
                   "DPDK's driver cannot allocate %zu bytes of the GPU", length);
}

static int gpu_get(struct block *block, size_t length, struct memory *memory) {
  block->id = id_of(block->device);
  if (block->id < 0 || !page_round(length, &block->bytes))
    return no_memory(block->device, length);
  size_t alignment = block->bytes >= HUGE_PAGE ? HUGE_PAGE : page_size();
  block->address = table.alloc(block->id, block->bytes, (unsigned)alignment);
  if (!block->address)
    return no_memory(block->device, length);
  memory->view = block->view = table.map(block->id, block->bytes, block->address);
  if (memory->view)
    return 0;
  table.free(block->id, block->address);
  return error_set(HAUL_ENOTSUP, 0, "rte_gpu_mem_cpu_map",
                   cuda_serves() ? "cuda:N serves this GPU" : "sudo modprobe gdrdrv (GDRCopy)",
                   "DPDK's driver cannot map this GPU's memory for the CPU");
}

static int gpu_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  (void)flags;
  if (fork_is_child())
    return error_set(HAUL_EFORK, 0, "gpudev", NULL, "the GPU is the parent's");
  struct block *block = alloc_zero(1, sizeof *block);
  if (!block)
    return error_memory("GPU memory");
  block->device = device;
  int status = gpu_get(block, length, memory);
  if (status != 0) {
    alloc_free(block);
    return status;
  }
  pthread_mutex_lock(&lock);
  list_append(&blocks, &block->link);
  pthread_mutex_unlock(&lock);
  memory->address = block->address;
  memory->length = length;
  memory->writable = true;
  memory->state = block;
  return 0;
}

static void gpu_free(struct memory *memory) {
  struct block *block = memory->state;
  if (!block || fork_is_child()) /* wrapped, or the parent's */
    return;
  pthread_mutex_lock(&lock);
  list_remove(&block->link);
  pthread_mutex_unlock(&lock);
  table.unmap(block->id, block->address);
  table.free(block->id, block->address);
  alloc_free(block);
}

/* With the lock: the block that contains the address. */
static struct block *block_at(const char *address) {
  list_each(item, &blocks) {
    struct block *block = list_entry(item, struct block, link);
    if (address >= block->address && address < block->address + block->bytes)
      return block;
  }
  return NULL;
}

static int gpu_owns(const void *address, size_t length, struct haul_place *place) {
  pthread_mutex_lock(&lock);
  struct block *first = block_at(address), *last = block_at((const char *)address + length - 1);
  if (first)
    *place = (struct haul_place){HAUL_GPUDEV, (uint16_t)first->device};
  pthread_mutex_unlock(&lock);
  if (first == last)
    return first != NULL;
  return error_set(HAUL_EINVAL, 0, "gpudev", "check address and length",
                   "part of the range lies outside of one allocation");
}

static int gpu_wrap(void *address, size_t length, struct memory *memory) {
  pthread_mutex_lock(&lock);
  struct block *block = block_at(address);
  if (block)
    memory->view = block->view + ((char *)address - block->address);
  pthread_mutex_unlock(&lock);
  if (!block)
    return error_set(HAUL_ESTALE, 0, "gpudev", NULL, "the memory was freed");
  memory->address = address;
  memory->length = length;
  memory->wrapped = memory->writable = true;
  return 0;
}

/* CPU writes must reach the GPU before its next kernel reads. */
static int gpu_fence(struct memory *memory, enum fence direction) {
  int16_t id = id_of(memory->place.device);
  if (direction == FENCE_AFTER_WRITE && (id < 0 || table.write_barrier(id) < 0))
    return error_set(HAUL_EPLACE, 0, "rte_gpu_wmb", NULL, "the GPU is gone");
  return 0;
}

int dpdk_gpus_enroll(void *address, size_t bytes) {
  int16_t id = library_loaded(&library) ? next_gpu(-1) : -1;
  while (id >= 0 && table.enroll(id, bytes, address) >= 0)
    id = next_gpu(id);
  if (id < 0)
    return 0;
  for (int16_t made = next_gpu(-1); made < id; made = next_gpu(made))
    table.dismiss(made, address);
  return error_set(HAUL_ELIMIT, 0, "rte_gpu_mem_register", "register fewer and larger regions",
                   "DPDK's driver does not take this memory for its GPU");
}

void dpdk_gpus_dismiss(void *address) {
  for (int16_t id = library_loaded(&library) ? next_gpu(-1) : -1; id >= 0; id = next_gpu(id))
    table.dismiss(id, address);
}

const struct provider provider_gpudev = {
    .name = "gpudev",
    .kind = HAUL_GPUDEV,
    .numbered = true,
    .recycles = true,
    /* CPU copies over PCIe: initial estimates, not measured. */
    .copy_bytes_per_ns = 2,
    .copy_latency_ns = 1000,
    .unshareable = "DPDK's memory of GPUs has no descriptor that another process could map",
    .devices = gpu_devices,
    .why_none = gpu_why_none,
    .describe = gpu_describe,
    .checks = gpu_checks,
    .alloc = gpu_alloc,
    .free = gpu_free,
    .owns = gpu_owns,
    .wrap = gpu_wrap,
    .fence = gpu_fence,
};
