/* SPDX-License-Identifier: MIT
 * Host memory from DPDK, whose libraries are opened at run time. eal.c starts EAL, once in a
 * process; pool.c allocates from it; dpdk.c is the provider table; gpu.c uses librte_gpudev. */
#ifndef HAUL_MEMORY_DPDK_H
#define HAUL_MEMORY_DPDK_H

#include "core/library.h"
#include "memory/dpdk/api.h"
#include "memory/provider.h"

extern const struct provider provider_dpdk, provider_gpudev;

#define DPDK_NODES 16u /* NUMA nodes with a place, at most */

struct dpdk_eal {
#define DPDK_SLOT(slot, symbol, result, arguments) result(*slot) arguments;
  DPDK_EAL_REQUIRED(DPDK_SLOT)
#undef DPDK_SLOT
};

/* EAL's table, as from library_open. Does not start EAL. */
const struct dpdk_eal *dpdk_eal_open(void);

enum dpdk_state {
  DPDK_IDLE,    /* not started yet */
  DPDK_OURS,    /* started by haul, with huge pages */
  DPDK_SMALL,   /* started by haul, without huge pages */
  DPDK_FOREIGN, /* started by the application */
  DPDK_FAILED   /* failed; EAL can be started once in a process */
};

/* EAL's table. The first call starts EAL, which takes tenths of a second plus the time in which the
 * kernel clears huge pages. NULL with the detail. */
const struct dpdk_eal *dpdk_eal_start(void);
/* The current state. */
enum dpdk_state dpdk_eal_state(void);
/* All of EAL's memory is at its node 0, and the host has more nodes. */
bool dpdk_eal_has_all_at_0(void);
/* Sets the detail of DPDK_FAILED. */
int dpdk_eal_why(void);
/* Bytes of huge pages that dpdk_hugepages requests, and that were free. True if EAL was started
 * with fewer. */
bool dpdk_eal_short(uint64_t *asked, uint64_t *got);
/* This thread's rte_errno. */
int dpdk_eal_errno(void);

/* NUMA nodes, at least 1 and at most DPDK_NODES. */
unsigned dpdk_nodes(void);
/* Bytes of free and of all 2 MiB huge pages, on a node or (-1) in total. */
uint64_t dpdk_huge_free(int node);
uint64_t dpdk_huge_all(void);

extern struct library dpdk_library; /* librte_eal */
extern const char *dpdk_sys;        /* "/sys"; another one in tests */

#define DPDK_CLASSES 4u

/* Object counts of a node; `wanted` is the setting, `limit` what fits the memory. */
struct dpdk_figures {
  uint32_t wanted[DPDK_CLASSES], limit[DPDK_CLASSES], made[DPDK_CLASSES], unused[DPDK_CLASSES];
};

/* Memory on a node, as the provider's alloc. `patient`: waits for a free, at most as long as
 * dpdk_wait. */
int dpdk_pool_get(unsigned node, size_t length, bool patient, struct memory *memory);
void dpdk_pool_put(struct memory *memory);
/* False if EAL was not started. */
bool dpdk_pool_figures(unsigned node, struct dpdk_figures *figures);
/* Number of allocations that waited. */
uint64_t dpdk_pool_waits(void);
bool dpdk_pool_is_cut(const struct dpdk_figures *figures);
/* "4096,1024,256,64" */
const char *dpdk_counts(const uint32_t counts[DPDK_CLASSES], char *text, size_t size);

/* Registers host memory with all of DPDK's GPUs, and unregisters it. */
int dpdk_gpus_enroll(void *address, size_t bytes);
void dpdk_gpus_dismiss(void *address);

size_t dpdk_checks(struct haul_check *checks, size_t room);

#endif
