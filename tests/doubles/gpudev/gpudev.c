/* SPDX-License-Identifier: MIT */
#include "door.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/dpdk/api.h"

#define PROTOTYPE(slot, symbol, result, arguments) result symbol arguments;
DPDK_GPU_REQUIRED(PROTOTYPE)
#undef PROTOTYPE

#define BLOCKS ((size_t)256)
#define MEMORY ((size_t)1 << 30)

struct block {
  char *address, *view;
  size_t bytes;
  int16_t device;
  bool registered; /* host memory */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[BLOCKS];

struct gpudev_double gpudev_double;

static bool mode_is(const char *what) {
  const char *set = getenv("HAUL_DOUBLE_GPUDEV");
  return set && strcmp(set, what) == 0;
}

static bool exists(int16_t device) {
  return !mode_is("none") && (device == 0 || device == 2);
}

static void violated(const char *what) {
  fprintf(stderr, "mock of librte_gpudev: contract violated: %s\n", what);
  abort();
}

static struct block *find(int16_t device, const void *address, bool registered) {
  for (size_t i = 0; i < BLOCKS; i++)
    if (blocks[i].address == address && blocks[i].device == device &&
        blocks[i].registered == registered)
      return &blocks[i];
  return NULL;
}

static struct block *unused(void) {
  for (size_t i = 0; i < BLOCKS; i++)
    if (!blocks[i].address)
      return &blocks[i];
  return NULL;
}

uint16_t rte_gpu_count_avail(void) {
  return mode_is("none") ? 0 : 2;
}

int16_t rte_gpu_find_next(int16_t from, int16_t parent) {
  (void)parent;
  for (int16_t id = from < 0 ? 0 : from; id <= 2; id++)
    if (exists(id))
      return id;
  return -1;
}

int rte_gpu_info_get(int16_t device, struct rte_gpu_info *info) {
  if (!exists(device) || !info)
    return -19;
  *info = (struct rte_gpu_info){.name = "a double",
                                .dev_id = device,
                                .parent = -1,
                                .total_memory = MEMORY,
                                .page_size = 65536,
                                .numa_node = -1};
  return 0;
}

void *rte_gpu_mem_alloc(int16_t device, size_t bytes, unsigned alignment) {
  if (!exists(device))
    return NULL;
  if (bytes == 0 || (alignment & (alignment - 1)) != 0)
    violated("an allocation of 0 bytes, or an alignment that is not a power of two");
  if (bytes > MEMORY)
    return NULL;
  char *base = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    return NULL;
  char *address = base + (alignment - (uintptr_t)base % alignment) % alignment;
  if (address > base)
    munmap(base, (size_t)(address - base));
  munmap(address + bytes, (size_t)(base + alignment - address));
  pthread_mutex_lock(&lock);
  struct block *block = unused();
  if (block)
    *block = (struct block){.address = address, .bytes = bytes, .device = device};
  else
    munmap(address, bytes);
  pthread_mutex_unlock(&lock);
  gpudev_double.allocations += block != NULL;
  return block ? address : NULL;
}

int rte_gpu_mem_free(int16_t device, void *address) {
  pthread_mutex_lock(&lock);
  struct block *block = find(device, address, false);
  if (!block)
    violated("free of unallocated memory");
  if (block->view)
    violated("free of mapped memory");
  munmap(block->address, block->bytes);
  *block = (struct block){.address = NULL};
  pthread_mutex_unlock(&lock);
  gpudev_double.frees++;
  return 0;
}

int rte_gpu_mem_register(int16_t device, size_t bytes, void *address) {
  if (device > 0 && (unsigned)device == gpudev_double.full)
    return -12;
  pthread_mutex_lock(&lock);
  if (find(device, address, true))
    violated("memory registered twice");
  struct block *block = unused();
  if (block)
    *block =
        (struct block){.address = address, .bytes = bytes, .device = device, .registered = true};
  pthread_mutex_unlock(&lock);
  gpudev_double.registrations += block != NULL;
  return block ? 0 : -12;
}

int rte_gpu_mem_unregister(int16_t device, void *address) {
  pthread_mutex_lock(&lock);
  struct block *block = find(device, address, true);
  if (!block)
    violated("unregistration of unregistered memory");
  *block = (struct block){.address = NULL};
  pthread_mutex_unlock(&lock);
  gpudev_double.unregistrations++;
  return 0;
}

void *rte_gpu_mem_cpu_map(int16_t device, size_t bytes, void *address) {
  if (mode_is("unmapped"))
    return NULL;
  pthread_mutex_lock(&lock);
  struct block *block = find(device, address, false);
  if (!block || bytes > block->bytes)
    violated("mapping of unallocated memory");
  if (!block->view) {
    char *view = mmap(NULL, block->bytes + (2u << 20), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block->view = view == MAP_FAILED ? NULL : view;
  }
  char *view = block->view;
  pthread_mutex_unlock(&lock);
  return view ? view + ((2u << 20) - (uintptr_t)view % (2u << 20)) % (2u << 20) : NULL;
}

int rte_gpu_mem_cpu_unmap(int16_t device, void *address) {
  pthread_mutex_lock(&lock);
  struct block *block = find(device, address, false);
  if (!block || !block->view)
    violated("unmapping of unmapped memory");
  munmap(block->view, block->bytes + (2u << 20));
  block->view = NULL;
  pthread_mutex_unlock(&lock);
  return 0;
}

int rte_gpu_wmb(int16_t device) {
  if (!exists(device))
    return -19;
  gpudev_double.barriers[device]++;
  return 0;
}
