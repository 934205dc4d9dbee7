/* SPDX-License-Identifier: MIT
 * A framework's allocator. PyTorch makes the device current before it calls; others may not. */
#include "haul-cudahook.h"
#include "serve.h"

static void *alloc_here(struct record *record, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  void *address = serve_alloc(record, stream);
  if (address)
    return address;
  cudaError_t result = calls->malloc ? calls->malloc(&address, record->bytes) : NO_RUNTIME;
  if (result != cudaSuccess)
    address = NULL;
  serve_passed_on(record, address, result);
  return address;
}

void *haul_cudahook_alloc(size_t size, int device, void *stream) {
  struct record record = {.call = "haul_cudahook_alloc", .bytes = size, .device = device};
  const struct runtime *calls = runtime();
  cudaError_t error = NO_RUNTIME;
  if (size == 0)
    return NULL;
  int before = calls->serves ? device_enter(calls, device, &error) : -1;
  if (error != cudaSuccess) {
    log_record(&record, "failed: error %d", error);
    return NULL;
  }
  void *address = alloc_here(&record, stream);
  device_leave(calls, before, device);
  return address;
}

static void free_here(struct record *record, void *address, cudaStream_t stream) {
  const struct runtime *calls = runtime();
  struct block *block = serve_take(record, address);
  if (block) {
    serve_free_async(record, block, stream);
    return;
  }
  log_record(record, "passed on: %s", record->why);
  if (calls->free)
    calls->free(address);
}

void haul_cudahook_free(void *address, size_t size, int device, void *stream) {
  struct record record = {.call = "haul_cudahook_free", .bytes = size, .device = device};
  const struct runtime *calls = runtime();
  cudaError_t error = NO_RUNTIME;
  int before = calls->serves && address ? device_enter(calls, device, &error) : -1;
  if (!address)
    return;
  free_here(&record, address, stream);
  if (error == cudaSuccess)
    device_leave(calls, before, device);
}
