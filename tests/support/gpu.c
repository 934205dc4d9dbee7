/* SPDX-License-Identifier: MIT */
#include "support/gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/cuda/driver.h"
#include "memory/provider.h"

bool gpu_is_there(void) {
  if (providers_start() != 0)
    abort();
  bool there = provider_devices(provider_of(HAUL_CUDA)) > 0;
  providers_stop();
  if (!there)
    printf("skipped all: no GPU; tests/doubles/cuda/with runs this program with one\n");
  return there;
}

static const struct cuda_driver *driver;

static void must(CUresult result, const char *call) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %d\n", call, (int)result);
  abort();
}

/* The primary context is retained for good, as the CUDA runtime does. */
static void enter(void) {
  static CUcontext context;
  CUdevice device;
  driver = cuda_driver_open();
  if (!driver)
    abort();
  if (!context) {
    must(driver->init(0), "cuInit");
    must(driver->device_get(&device, 0), "cuDeviceGet");
    must(driver->primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
  }
  must(driver->context_push(context), "cuCtxPushCurrent");
}

static void leave(void) {
  CUcontext was;
  must(driver->context_pop(&was), "cuCtxPopCurrent");
}

void *gpu_alloc(size_t length) {
  CUdeviceptr address;
  enter();
  must(driver->alloc(&address, length), "cuMemAlloc");
  leave();
  return (void *)(uintptr_t)address;
}

/* haul does not use the call. */
void *gpu_alloc_of_pool(size_t length) {
  CUresult (*alloc)(CUdeviceptr * address, size_t bytes, CUstream stream);
  CUdeviceptr address;
  CUstream stream;
  enter();
  void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuMemAllocAsync");
  memcpy(&alloc, &found, sizeof alloc);
  must(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(alloc(&address, length, stream), "cuMemAllocAsync");
  must(driver->stream_wait(stream), "cuStreamSynchronize");
  must(driver->stream_destroy(stream), "cuStreamDestroy");
  leave();
  return (void *)(uintptr_t)address;
}

/* What gpu_free unmaps. */
static struct mapped {
  CUdeviceptr address;
  size_t length;
} mapped[8];

static struct mapped *find_mapped(CUdeviceptr address) {
  for (size_t i = 0; i < sizeof mapped / sizeof mapped[0]; i++)
    if (mapped[i].address == address)
      return &mapped[i];
  return NULL;
}

static void map_at(CUdeviceptr at, bool rdma) {
  const CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                   .allocFlags = {.gpuDirectRDMACapable = rdma}};
  const CUmemAccessDesc access = {how.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  must(driver->create(&handle, GPU_MAPPING, &how, 0), "cuMemCreate");
  must(driver->map(at, GPU_MAPPING, 0, handle, 0), "cuMemMap");
  must(driver->release(handle), "cuMemRelease"); /* the mapping keeps it */
  must(driver->set_access(at, GPU_MAPPING, &access, 1), "cuMemSetAccess");
}

void *gpu_alloc_mapped(size_t length) {
  struct mapped *entry = find_mapped(0);
  size_t whole = (length + GPU_MAPPING - 1) / GPU_MAPPING * GPU_MAPPING;
  if (!entry)
    abort();
  enter();
  must(driver->reserve(&entry->address, whole, 0, 0, 0), "cuMemAddressReserve");
  for (size_t at = 0; at < whole; at += GPU_MAPPING)
    map_at(entry->address + at, at / GPU_MAPPING % 2 == 0);
  leave();
  entry->length = whole;
  return (void *)(uintptr_t)entry->address;
}

struct cuda_double *gpu_double(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library ? dlsym(library, "cuda_double") : NULL;
}

static void unmap(struct mapped *entry) {
  for (size_t at = 0; at < entry->length; at += GPU_MAPPING)
    must(driver->unmap(entry->address + at, GPU_MAPPING), "cuMemUnmap");
  must(driver->unreserve(entry->address, entry->length), "cuMemAddressFree");
  entry->address = 0;
}

void gpu_free(void *address) {
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
  struct mapped *entry = find_mapped(at);
  enter();
  if (entry)
    unmap(entry);
  else
    must(driver->free(at), "cuMemFree");
  leave();
}
