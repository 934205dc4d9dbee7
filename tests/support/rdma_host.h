/* SPDX-License-Identifier: MIT
 * A host for the tests of RDMA: the double of libibverbs, and a made-up /sys in a folder. */
#ifndef HAUL_TESTS_RDMA_HOST_H
#define HAUL_TESTS_RDMA_HOST_H

#include "doubles/ibverbs/double.h"

/* Makes the folder and points sysfs there; for a group's set-up. */
int rdma_host_open(void **state);
int rdma_host_close(void **state);

/* Begins anew: an empty tree, and libibverbs as the variant "current", without devices. */
int rdma_host_reset(void **state);
/* The same after a test, and fails when one of the double's objects is left. */
int rdma_host_check(void **state);

/* The loader finds this variant of the double: "current", "33" (without dma-bufs), "31" (too old).
 * NULL: none. */
void rdma_host_library(const char *variant);
/* The double that the loader finds. */
struct ibverbs_double *rdma_double(void);

/* Adds a device with one port to the double: hardware with all that can be wished, its link up, on
 * Ethernet with a GID of RoCE v2 for 10.0.0.N, or InfiniBand with the LID N; N counts devices. */
struct double_device *rdma_add_roce(const char *name);
struct double_device *rdma_add_infiniband(const char *name);
void rdma_gid(struct double_port *port, unsigned index, enum ibv_gid_type type, const char *address,
              unsigned interface);

/* Below the made-up root; folders on the way are made. */
void sys_file(const char *path, const char *text);
void sys_folder(const char *path);
/* A link to another path below the root. */
void sys_link(const char *path, const char *to);
/* A PCI device at "devices/…/BDF" with its entry in bus/pci/devices, and its NUMA node. */
void sys_pci(const char *path, int numa);
/* The NIC of this name is the PCI device at the path. */
void sys_nic(const char *name, const char *path);

#endif
