/* SPDX-License-Identifier: MIT
 * A librte_gpudev.so.23 with two GPUs of host memory, numbered 0 and 2 as after a device went.
 * Their addresses are without access; a mapping for the processor lies elsewhere. What a driver
 * would refuse ends the program. HAUL_DOUBLE_GPUDEV: "none" (no driver, as Debian's) or "unmapped"
 * (no memory for processors). */
#ifndef HAUL_TESTS_GPUDEV_DOOR_H
#define HAUL_TESTS_GPUDEV_DOOR_H

struct gpudev_double {
  /* Calls that were served, of all GPUs. */
  _Atomic unsigned registrations, unregistrations, allocations, frees;
  _Atomic unsigned barriers[3]; /* rte_gpu_wmb, by the GPU's number */
  _Atomic unsigned full;        /* the number of a GPU that registers nothing; 0: none */
};

/* The test's door: found by dlsym(3) under this name. */
extern struct gpudev_double gpudev_double;

#endif
