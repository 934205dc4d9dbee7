/* SPDX-License-Identifier: MIT
 * What a block of GPU memory keeps of its driver's: memory->state. */
#ifndef HAUL_MEMORY_CUDA_BLOCK_H
#define HAUL_MEMORY_CUDA_BLOCK_H

#include "memory/cuda/cuda.h"

struct block {
  unsigned device, generation;
  CUdeviceptr base;
  size_t length; /* from the base on, as the driver has it */
  CUmemGenericAllocationHandle handle;
  bool mapped;   /* by the virtual-memory calls; `handle` is ours */
  bool borrowed; /* another process's cudaMalloc's, by legacy IPC */
};

/* NULL with the detail. */
struct block *block_new(unsigned device);
/* As memory->address and what goes with it; cuda_free ends it from now on. */
void block_show(struct block *block, void *address, size_t length, struct memory *memory);

#endif
