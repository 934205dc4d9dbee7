/* SPDX-License-Identifier: MIT
 * Host memory from DPDK, whose libraries are opened at run time: eal.c has EAL, DPDK's ground,
 * which is started once in a process; pool.c what is allocated from it; dpdk.c the table. */
#ifndef HAUL_MEMORY_DPDK_H
#define HAUL_MEMORY_DPDK_H

#include "core/library.h"
#include "memory/dpdk/api.h"
#include "memory/provider.h"

extern const struct provider provider_dpdk, provider_gpudev;

/* ---- eal.c ---- */

#define DPDK_NODES 16u /* of memory; what is beyond has no places */

struct dpdk_eal {
#define DPDK_SLOT(slot, symbol, result, arguments) result(*slot) arguments;
  DPDK_EAL_REQUIRED(DPDK_SLOT)
#undef DPDK_SLOT
};

/* EAL's calls, as library_open gives them. Starts nothing. */
const struct dpdk_eal *dpdk_eal_open(void);
/* The same where somebody in this process has loaded it already, else NULL; sets no detail. */
const struct dpdk_eal *dpdk_eal_loaded(void);

enum dpdk_state {
  DPDK_IDLE,    /* not started yet */
  DPDK_OURS,    /* started here, with memory in huge pages */
  DPDK_SMALL,   /* started here, without huge pages */
  DPDK_FOREIGN, /* the application had started it */
  DPDK_FAILED   /* for good: EAL is started once in a process */
};

/* EAL's calls once it runs; the first call starts it, which takes some tenths of a second, and as
 * long as the kernel takes to clear what huge pages it gets. NULL with the detail. */
const struct dpdk_eal *dpdk_eal_start(void);
/* What became of it so far. */
enum dpdk_state dpdk_eal_state(void);
/* Its memory is all at its node 0, and the host has more nodes. */
bool dpdk_eal_has_all_at_0(void);
/* The detail of the failure for good. */
int dpdk_eal_why(void);
/* The huge pages that the setting dpdk_hugepages asked for, and those that were free, in bytes.
 * True where EAL was started with fewer. */
bool dpdk_eal_short(uint64_t *asked, uint64_t *got);
/* What rte_errno is in this thread. */
int dpdk_eal_errno(void);

/* Nodes of memory, up to DPDK_NODES; at least 1. */
unsigned dpdk_nodes(void);
/* Bytes in free and in all huge pages of 2 MiB, at a node or (-1) at all. */
uint64_t dpdk_huge_free(int node);
uint64_t dpdk_huge_all(void);

extern struct library dpdk_library; /* for tests */
extern const char *dpdk_sys;        /* "/sys"; another one in tests */

/* ---- pool.c ---- */

#define DPDK_CLASSES 4u

/* What there is at a node, and what there would be with memory enough. */
struct dpdk_figures {
  uint32_t wanted[DPDK_CLASSES], limit[DPDK_CLASSES], made[DPDK_CLASSES], unused[DPDK_CLASSES];
};

/* Memory at a node, as the table's alloc gives it. `patient`: waits until something comes back, at
 * most as long as the setting says. */
int dpdk_pool_get(unsigned node, size_t length, bool patient, struct memory *memory);
void dpdk_pool_put(struct memory *memory);
/* False where EAL was not started. */
bool dpdk_pool_figures(unsigned node, struct dpdk_figures *figures);
/* Allocations that waited, so far. */
uint64_t dpdk_pool_waits(void);
bool dpdk_pool_is_cut(const struct dpdk_figures *figures);
/* "4096,1024,256,64" */
const char *dpdk_counts(const uint32_t counts[DPDK_CLASSES], char *text, size_t size);

/* ---- gpu.c ---- */

/* Host memory that is EAL's from now on is that of all of DPDK's GPUs too, and no longer. */
int dpdk_gpus_enroll(void *address, size_t bytes);
void dpdk_gpus_dismiss(void *address);

/* ---- checks.c ---- */

size_t dpdk_checks(struct haul_check *checks, size_t room);

#endif
