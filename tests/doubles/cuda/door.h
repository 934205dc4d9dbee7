/* SPDX-License-Identifier: MIT
 * A double of libcuda.so.1: NVIDIA's driver without a GPU. It has some of the driver's calls, those
 * that haul uses, and refuses what the driver would refuse, with its codes; where the driver would
 * be undefined it ends the process with a word. All its names say that it is a double.
 *
 * Device memory lies at addresses that the CPU cannot touch; streams are threads that copy through
 * mappings of their own. What is shareable is a memfd. Memory that is not pinned is copied before
 * the call returns, as by the driver, also by the asynchronous ones.
 *
 * Settings are words in HAUL_CUDA_DOUBLE, read when the library is loaded; each has a default:
 *   devices=2         GPUs in the machine, of which CUDA_VISIBLE_DEVICES (numbers or UUIDs) leaves
 *                     those that it names, in its order
 *   memory=4294967296 bytes a GPU
 *   bandwidth=0       bytes a second of a copy, 0: what the processor manages
 *   latency=0         nanoseconds before each copy
 *   init=0            what cuInit returns
 *   create=0          the n-th allocation finds no memory
 *   pin=0             the n-th registration of the caller's pages finds no memory
 *   copy=0            the n-th copy breaks in the middle, and its context with it
 *   ordering=0        of GPUDirect writes: below 100 they need flushes
 *   vmm=1             0: no virtual-memory calls
 *   capture=0         1: a capture in the mode "global" is under way, which forbids threads that
 * are not "relaxed" most calls hold=0            1: nothing moves until it is 0 again */
#ifndef HAUL_TESTS_CUDA_DOOR_H
#define HAUL_TESTS_CUDA_DOOR_H

struct cuda_double {
  _Atomic unsigned long long devices, memory, bandwidth, latency, init, create, pin, copy, ordering,
      vmm, hold, capture;
  /* What there is now. */
  _Atomic unsigned allocations, mappings, reservations, pinned, streams, events, retains;
  _Atomic unsigned flushes; /* calls of cuFlushGPUDirectRDMAWrites */
};

/* The test's door: found by dlsym(3) under this name. */
extern struct cuda_double cuda_double;

#endif
