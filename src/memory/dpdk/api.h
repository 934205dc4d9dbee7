/* SPDX-License-Identifier: MIT
 * The part of DPDK that haul uses, so that no header of it is needed. Names, numbers and structures
 * are those of DPDK 22.11, ABI 23 (rte_eal.h, rte_log.h, rte_lcore.h, rte_malloc.h, rte_memory.h).
 */
#ifndef HAUL_MEMORY_DPDK_API_H
#define HAUL_MEMORY_DPDK_API_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* rte_malloc.h */
struct rte_malloc_socket_stats {
  size_t heap_totalsz_bytes;
  size_t heap_freesz_bytes;
  size_t greatest_free_size;
  unsigned free_count;
  unsigned alloc_count;
  size_t heap_allocsz_bytes;
};

/* rte_memory.h: the used part of a range of EAL's addresses. */
struct rte_memseg_list {
  void *base_va;
  uint64_t page_sz;
  int socket_id; /* NUMA node */
  volatile uint32_t version;
  size_t len;
  unsigned external; /* 1: memory that the application gave it */
};

/* X(slot, symbol, result, arguments) */
#define DPDK_EAL_REQUIRED(X)                                                                       \
  X(init, rte_eal_init, int, (int count, char **arguments))                                        \
  X(socket_count, rte_socket_count, unsigned, (void))                                              \
  X(open_log, rte_openlog_stream, int, (FILE * stream))                                            \
  X(alloc, rte_malloc_socket, void *,                                                              \
    (const char *type, size_t bytes, unsigned alignment, int socket))                              \
  X(free, rte_free, void, (void *address))                                                         \
  X(stats, rte_malloc_get_socket_stats, int, (int socket, struct rte_malloc_socket_stats *stats))  \
  X(list_of, rte_mem_virt2memseg_list, struct rte_memseg_list *, (const void *address))            \
  X(external_register, rte_extmem_register, int,                                                   \
    (void *address, size_t bytes, uint64_t *iova, unsigned pages, size_t page_bytes))              \
  X(external_unregister, rte_extmem_unregister, int, (void *address, size_t bytes))

/* rte_gpudev.h, an experimental API. */
struct rte_gpu_info {
  const char *name;
  uint64_t context;
  int16_t dev_id, parent;
  uint32_t processor_count;
  size_t total_memory, page_size;
  int16_t numa_node;
};

#define RTE_GPU_ID_NONE (-1) /* as parent for find_next: no part of another device */

#define DPDK_GPU_REQUIRED(X)                                                                       \
  X(count, rte_gpu_count_avail, uint16_t, (void))                                                  \
  X(next, rte_gpu_find_next, int16_t, (int16_t from, int16_t parent))                              \
  X(info, rte_gpu_info_get, int, (int16_t device, struct rte_gpu_info * info))                     \
  X(alloc, rte_gpu_mem_alloc, void *, (int16_t device, size_t bytes, unsigned alignment))          \
  X(free, rte_gpu_mem_free, int, (int16_t device, void *address))                                  \
  X(enroll, rte_gpu_mem_register, int, (int16_t device, size_t bytes, void *address))              \
  X(dismiss, rte_gpu_mem_unregister, int, (int16_t device, void *address))                         \
  X(map, rte_gpu_mem_cpu_map, void *, (int16_t device, size_t bytes, void *address))               \
  X(unmap, rte_gpu_mem_cpu_unmap, int, (int16_t device, void *address))                            \
  X(write_barrier, rte_gpu_wmb, int, (int16_t device))

#endif
