/* SPDX-License-Identifier: MIT
 * An application's use of a GPU, through the libcuda that the loader finds, in tests the emulated
 * one. Aborts when the driver fails. */
#ifndef HAUL_TESTS_GPU_H
#define HAUL_TESTS_GPU_H

#include <stdbool.h>
#include <stddef.h>

/* Does haul find a GPU? If not, prints that the program is skipped. */
bool gpu_is_there(void);

/* Memory of the first GPU, which gpu_free frees: as of cudaMalloc; of cudaMallocAsync; and of
 * mappings side by side, GPU_MAPPING bytes each, as of PyTorch's expandable segments. Every second
 * mapping is not GPUDirect-RDMA capable. */
void *gpu_alloc(size_t length);
void *gpu_alloc_of_pool(size_t length);
void *gpu_alloc_mapped(size_t length);
void gpu_free(void *address);

#define GPU_MAPPING ((size_t)2 << 20)

/* The emulated driver's settings; NULL: the driver is real. */
struct cuda_double *gpu_double(void);

#endif
