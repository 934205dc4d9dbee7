/* SPDX-License-Identifier: MIT
 * A mock of libcudart.so.12: the CUDA runtime over the libcuda.so.1 that the loader finds, normally
 * the other mock. It has the calls of the hook and its tests, with the real symbol versions, and
 * rejects what the real one rejects, with its codes. There are no kernels; work is copies. Captured
 * work is discarded. All threads share one per-thread default stream.
 *
 * Like in the real one, during a capture only threads in mode "relaxed" may allocate memory and
 * query events; other threads invalidate the capture. */
#ifndef HAUL_TESTS_CUDART_DOOR_H
#define HAUL_TESTS_CUDART_DOOR_H

struct cudart_double {
  /* Successful calls, including the hook's own. */
  _Atomic unsigned allocations, frees, async_allocations, async_frees;
  _Atomic unsigned events;     /* existing */
  _Atomic unsigned captured;   /* captured copies and allocations */
  _Atomic unsigned out_memory; /* number of next allocations that fail without memory */
};

/* Tests find it by dlsym(3). */
extern struct cudart_double cudart_double;

#endif
