/* SPDX-License-Identifier: MIT
 * A double of libcudart.so.12: the CUDA runtime over whatever libcuda.so.1 the loader finds, which
 * is to be the other double. It has the calls that the hook and its tests use, under the version
 * that they have in the real one, and refuses what the real one refuses, with its codes. Kernels
 * there are none: work is copies. Captured work goes nowhere. The per-thread default stream is one
 * for all threads.
 *
 * As in the real one, memory can be allocated and events asked for in a capture by a thread alone
 * that has set its mode to "relaxed"; who does it otherwise ends the capture. */
#ifndef HAUL_TESTS_CUDART_DOOR_H
#define HAUL_TESTS_CUDART_DOOR_H

struct cudart_double {
  /* Calls that came here and were served; the hook's own calls of events and streams too. */
  _Atomic unsigned allocations, frees, async_allocations, async_frees;
  _Atomic unsigned events;     /* that there are now */
  _Atomic unsigned captured;   /* copies and allocations that became part of a graph */
  _Atomic unsigned out_memory; /* the next that many allocations find none */
};

/* The test's door: found by dlsym(3) under this name. */
extern struct cudart_double cudart_double;

#endif
