/* SPDX-License-Identifier: MIT
 * What the driver tells of an address. */
#include <time.h>

#include "memory.h"

/* RANGE_… of a mapping are its reservation's (cuda.h). */
static const struct range *whole_of(const struct range *range) {
  return range->kind == MAPPED ? find_range(RESERVED, range->start, range->size) : range;
}

/* A mapping has a number of its own, and a strict driver numbers reservations alone. */
static unsigned long long number_of(const struct range *range) {
  return cuda_double.strict ? whole_of(range)->buffer : range->buffer;
}

static unsigned type_of(const struct range *range) {
  return range->kind == PINNED && !range->managed ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

/* `range` is NULL where there is no memory; `whole` also has the reservation of such an address. */
static void write_attribute(int attribute, const struct range *range, const struct range *whole,
                            void *value) {
  bool device = range && range->kind & DEVICE_KINDS;
  size_t bytes;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)value = range ? type_of(range) : 0;
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)value = range ? number_of(range) : 0;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)value = range && range->managed;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)value = range ? (int)range->gpu : -2; /* the driver's value for no device */
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)value = whole ? whole->start : 0;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)value = whole ? whole->size : 0;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    *(CUdeviceptr *)value = device ? pages_of(range, &bytes) : 0; /* of all that shares the pages */
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    *(size_t *)value = device && pages_of(range, &bytes) ? bytes : 0;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    *(unsigned long long *)value = device ? range->allocation->id : 0;
    break;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned *)value = device && range->kind == PLAIN && !range->allocation->borrowed;
    break;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(unsigned long long *)value = device ? (unsigned)range->allocation->types : 0;
    break;
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    *(unsigned *)value = device && (range->kind == PLAIN || range->allocation->rdma);
    break;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    *(unsigned *)value = range && range->synchronises;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned *)value = range != NULL;
    break;
  default:
    double_broken("cuPointerGetAttributes", "an attribute that the double does not know");
  }
}

/* Takes its time as a call does: on the processor. */
static void ask(void) {
  struct timespec now;
  if (cuda_double.ask == 0)
    return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t until = now.tv_sec * 1000000000 + now.tv_nsec + (int64_t)cuda_double.ask;
  while (now.tv_sec * 1000000000 + now.tv_nsec < until)
    clock_gettime(CLOCK_MONOTONIC, &now);
}

/* Unlike the call for one attribute, it succeeds for unknown addresses, too. */
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values,
                                CUdeviceptr address) {
  if (!initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  for (unsigned i = 0; i < count; i++)
    if (attributes[i] > (int)cuda_double.attributes)
      return CUDA_ERROR_INVALID_VALUE;
  atomic_fetch_add(&cuda_double.questions, count > 1);
  ask();
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(KNOWN_KINDS, address, 1);
  const struct range *whole = range ? whole_of(range) : find_range(RESERVED, address, 1);
  for (unsigned i = 0; i < count; i++)
    write_attribute(attributes[i], range, whole, values[i]);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  if (!initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  ask();
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(KNOWN_KINDS, address, 1);
  bool good = range && attribute <= (int)cuda_double.attributes;
  if (good)
    write_attribute(attribute, range, whole_of(range), value);
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A mapping, an allocation, or registered pages. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address) {
  if (!initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(KNOWN_KINDS, address, 1);
  if (range) {
    *start = range->start;
    *bytes = range->size;
  }
  pthread_mutex_unlock(&memory_lock);
  return range ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
  unsigned wanted = *(const unsigned *)value;
  CUresult code;
  if (!current(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(KNOWN_KINDS, address, 1);
  if (!range || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || wanted > 1)
    code = CUDA_ERROR_INVALID_VALUE;
  else if (range->kind == MAPPED)
    code = CUDA_ERROR_NOT_SUPPORTED;
  else
    range->synchronises = wanted;
  pthread_mutex_unlock(&memory_lock);
  return code;
}
