/* SPDX-License-Identifier: MIT
 * Host memory that the driver knows: pinned, registered, or managed. */
#include <stdint.h>
#include <sys/mman.h>

#include "memory.h"

static struct range *add_pinned(void *address, size_t size, unsigned gpu) {
  struct range *range = add_range(PINNED, (uintptr_t)address, size);
  range->gpu = gpu;
  atomic_fetch_add(&cuda_double.pinned, 1);
  return range;
}

static CUresult take(void **address, size_t size, unsigned gpu, bool managed) {
  if (size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&memory_lock);
  struct range *range = add_pinned(*address, size, gpu);
  range->managed = range->synchronises = managed;
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  CUresult code;
  CUcontext context = current_to_begin(&code);
  if (!context)
    return code;
  return flags > 7 ? CUDA_ERROR_INVALID_VALUE : take(address, size, context->gpu, false);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags) {
  CUresult code;
  CUcontext context = current_to_begin(&code);
  void *got;
  if (!context)
    return code;
  code = flags == CU_MEM_ATTACH_GLOBAL ? take(&got, size, context->gpu, true)
                                       : CUDA_ERROR_INVALID_VALUE;
  if (code == CUDA_SUCCESS)
    *address = (uintptr_t)got;
  return code;
}

void end_pinned(struct range *range) {
  if (!range->theirs)
    munmap((void *)(uintptr_t)range->start, range->size);
  drop_range(range);
  atomic_fetch_sub(&cuda_double.pinned, 1);
}

static CUresult unpin(void *address, bool theirs, CUresult otherwise) {
  CUresult code;
  if (!current_to_end(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PINNED, (uintptr_t)address, 1);
  bool good =
      range && range->start == (uintptr_t)address && range->theirs == theirs && !range->managed;
  if (good)
    end_pinned(range);
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : otherwise;
}

CUresult cuMemFreeHost(void *address) {
  return unpin(address, false, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostUnregister(void *address) {
  return unpin(address, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
  CUresult code;
  CUcontext context = current_to_begin(&code);
  if (!context)
    return code;
  if (!address || size == 0 || flags > 15)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_due(&cuda_double.pin))
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&memory_lock);
  bool again = find_range(PINNED, (uintptr_t)address, 1);
  if (!again)
    add_pinned(address, size, context->gpu)->theirs = true;
  pthread_mutex_unlock(&memory_lock);
  return again ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

bool is_pinned(const void *address) {
  pthread_mutex_lock(&memory_lock);
  bool pinned = find_range(PINNED, (uintptr_t)address, 1);
  pthread_mutex_unlock(&memory_lock);
  return pinned;
}
