/* SPDX-License-Identifier: MIT
 * A mock of librte_gpudev.so.23 with two GPUs in host memory, numbered 0 and 2, as if 1 was
 * removed. Their addresses are inaccessible; CPU mappings are elsewhere. Contract violations abort.
 * HAUL_DOUBLE_GPUDEV: "none" (no driver, as in Debian) or "unmapped" (no CPU mappings). */
#ifndef HAUL_TESTS_GPUDEV_DOOR_H
#define HAUL_TESTS_GPUDEV_DOOR_H

struct gpudev_double {
  /* Successful calls, of all GPUs. */
  _Atomic unsigned registrations, unregistrations, allocations, frees;
  _Atomic unsigned barriers[3]; /* rte_gpu_wmb, by GPU number */
  _Atomic unsigned full;        /* number of a GPU whose registrations fail; 0: none */
};

/* Tests find it by dlsym(3). */
extern struct gpudev_double gpudev_double;

#endif
