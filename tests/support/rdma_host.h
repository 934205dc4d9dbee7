/* SPDX-License-Identifier: MIT
 * A host for RDMA tests: the mock of libibverbs, and a made-up sysfs in a folder. */
#ifndef HAUL_TESTS_RDMA_HOST_H
#define HAUL_TESTS_RDMA_HOST_H

#include "doubles/ibverbs/double.h"

/* Set-up of a group: creates the folder and points sysfs to it. */
int rdma_host_open(void **state);
int rdma_host_close(void **state);

/* Set-up of a test: an empty tree, and libibverbs in variant "current" without devices. */
int rdma_host_reset(void **state);
/* Teardown of a test; fails if an object of the mock is left. */
int rdma_host_check(void **state);

/* Selects the variant of the mock: "current", "33" (without dma-bufs), "31" (too old). NULL: none.
 */
void rdma_host_library(const char *variant);
/* The loaded mock. */
struct ibverbs_double *rdma_double(void);

/* Adds a device with one port to the mock: full-featured hardware, link up, either Ethernet with a
 * RoCE v2 GID for 10.0.0.N or InfiniBand with LID N; N counts devices. */
struct double_device *rdma_add_roce(const char *name);
struct double_device *rdma_add_infiniband(const char *name);
void rdma_gid(struct double_port *port, unsigned index, enum ibv_gid_type type, const char *address,
              unsigned interface);

/* Create below the made-up root, with parent folders. */
void sys_file(const char *path, const char *text);
void sys_folder(const char *path);
/* A link to another path below the root. */
void sys_link(const char *path, const char *to);
/* A PCI device at "devices/…/BDF" with its entry in bus/pci/devices, and its NUMA node. */
void sys_pci(const char *path, int numa);
/* Makes the NIC of this name the PCI device at the path. */
void sys_nic(const char *name, const char *path);

#endif
