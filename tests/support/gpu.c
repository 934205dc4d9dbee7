/* SPDX-License-Identifier: MIT */
#include "support/gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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

struct cuda_double *gpu_double(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library ? dlsym(library, "cuda_double") : NULL;
}

void gpu_free(void *address) {
  enter();
  must(driver->free((CUdeviceptr)(uintptr_t)address), "cuMemFree");
  leave();
}
