/* SPDX-License-Identifier: MIT
 * Calls and numbers of cuda.h 13.0 that the mock has for applications and tests, and haul does not
 * use. */
#ifndef HAUL_TESTS_CUDA_CALLS_H
#define HAUL_TESTS_CUDA_CALLS_H

#include "memory/cuda/api.h"

enum { CUDA_ERROR_NOT_FOUND = 500 };
enum {
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,      /* unsigned long long */
  CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15 /* unsigned */
};
enum { CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE = 1 };
enum { CU_MEM_ATTACH_GLOBAL = 1 };

/* X(slot, symbol, arguments), as in api.h */
#define CUDA_APPLICATION(X)                                                                        \
  X(primary_reset, cuDevicePrimaryCtxReset_v2, (CUdevice device))                                  \
  X(memory_info, cuMemGetInfo_v2, (size_t * left, size_t * all))                                   \
  X(address_range, cuMemGetAddressRange_v2,                                                        \
    (CUdeviceptr * start, size_t * bytes, CUdeviceptr address))                                    \
  X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr address))   \
  X(alloc_managed, cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned flags))       \
  X(alloc_async, cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))          \
  X(free_async, cuMemFreeAsync, (CUdeviceptr address, CUstream stream))

#endif
