/* SPDX-License-Identifier: MIT
 * The hooked calls of the runtime. cudaMallocManaged and cudaMallocHost are not hooked, as programs
 * call them for memory that the host accesses too. */
#include "hook.h"

/* Row alignment of cudaMallocPitch and cudaMalloc3D, like the runtime's on all GPUs with
 * virtual-memory calls; sufficient for textures. */
#define PITCH ((size_t)512)
/* cudaDeviceProp.memPitch: the longest row of a copy. */
#define PITCH_MAX ((size_t)INT32_MAX)

HAUL_API cudaError_t cudaMalloc(void **address, size_t bytes);
HAUL_API cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height);
HAUL_API cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent);
HAUL_API cudaError_t cudaFree(void *address);
HAUL_API cudaError_t cudaDeviceReset(void);
HAUL_API cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream);
HAUL_API cudaError_t cudaMallocAsync_ptsz(void **address, size_t bytes, cudaStream_t stream);
HAUL_API cudaError_t cudaFreeAsync(void *address, cudaStream_t stream);
HAUL_API cudaError_t cudaFreeAsync_ptsz(void *address, cudaStream_t stream);
HAUL_API cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool,
                                             cudaStream_t stream);
HAUL_API cudaError_t cudaMallocFromPoolAsync_ptsz(void **address, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream);
HAUL_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address);
HAUL_API cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle,
                                          unsigned flags);
HAUL_API cudaError_t cudaIpcCloseMemHandle(void *address);

static struct record record_of(const char *call, size_t bytes) {
  return (struct record){.call = call, .bytes = bytes, .device = -1};
}

static void *serve(struct record *record, bool has_place, cudaStream_t stream) {
  if (has_place)
    return serve_alloc(record, stream);
  pass_on(record, "a NULL pointer for the address");
  return NULL;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
  struct record record = record_of("cudaMalloc", bytes);
  void *served = serve(&record, address, cudaStreamLegacy);
  if (served) {
    *address = served;
    return cudaSuccess;
  }
  const struct runtime *calls = runtime();
  cudaError_t result;
  do
    result = calls->malloc ? calls->malloc(address, bytes) : NO_RUNTIME;
  while (serve_again(&record, result));
  return serve_passed_on(&record, address, result);
}

/* 0: invalid, passed on. */
static size_t pitch_of(size_t width) {
  return width > 0 && width <= PITCH_MAX - PITCH ? (width + PITCH - 1) / PITCH * PITCH : 0;
}

static size_t product(size_t one, size_t other) {
  size_t bytes;
  return __builtin_mul_overflow(one, other, &bytes) ? 0 : bytes;
}

cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  size_t row = pitch_of(width);
  struct record record = record_of("cudaMallocPitch", product(row, height));
  void *served = serve(&record, address && pitch, cudaStreamLegacy);
  if (served) {
    *address = served;
    *pitch = row;
    return cudaSuccess;
  }
  const struct runtime *calls = runtime();
  cudaError_t result;
  do
    result = calls->malloc_pitch ? calls->malloc_pitch(address, pitch, width, height) : NO_RUNTIME;
  while (serve_again(&record, result));
  return serve_passed_on(&record, address, result);
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent) {
  size_t row = pitch_of(extent.width);
  struct record record =
      record_of("cudaMalloc3D", product(product(row, extent.height), extent.depth));
  void *served = serve(&record, pitched, cudaStreamLegacy);
  if (served) {
    *pitched = (struct cudaPitchedPtr){served, row, extent.width, extent.height};
    return cudaSuccess;
  }
  const struct runtime *calls = runtime();
  cudaError_t result;
  do
    result = calls->malloc_3d ? calls->malloc_3d(pitched, extent) : NO_RUNTIME;
  while (serve_again(&record, result));
  return serve_passed_on(&record, pitched ? &pitched->ptr : NULL, result);
}

/* Passes NULL on, as programs use cudaFree(NULL) to initialize the device. */
cudaError_t cudaFree(void *address) {
  struct record record = record_of("cudaFree", 0);
  struct block *block = serve_remove(&record, address);
  if (block)
    return serve_free(&record, block);
  const struct runtime *calls = runtime();
  log_record(&record, "passed on: %s", record.why);
  return calls->free ? calls->free(address) : NO_RUNTIME;
}

/* The reset destroys the events of pending frees, and all memory. */
cudaError_t cudaDeviceReset(void) {
  struct record record = record_of("cudaDeviceReset", 0);
  const struct runtime *calls = runtime();
  serve_reset();
  log_record(&record, "passed on");
  return calls->device_reset ? calls->device_reset() : NO_RUNTIME;
}

/* Stream-ordered calls. Programs compiled with per-thread default streams call those with _ptsz:
 * there NULL is that stream. */

static cudaStream_t per_thread(cudaStream_t stream) {
  return stream ? stream : cudaStreamPerThread;
}

/* The runtime allocates in stream order; haul at once. `given` is the caller's argument. */
static cudaError_t malloc_async(const char *call, void **address, size_t bytes, cudaStream_t given,
                                cudaStream_t stream,
                                cudaError_t (*real)(void **, size_t, cudaStream_t)) {
  struct record record = record_of(call, bytes);
  void *served = serve(&record, address, stream);
  if (served) {
    *address = served;
    return cudaSuccess;
  }
  cudaError_t result;
  do
    result = real ? real(address, bytes, given) : NO_RUNTIME;
  while (serve_again(&record, result));
  return serve_passed_on(&record, address, result);
}

static cudaError_t free_async(const char *call, void *address, cudaStream_t given,
                              cudaStream_t stream, cudaError_t (*real)(void *, cudaStream_t)) {
  struct record record = record_of(call, 0);
  struct block *block = serve_remove(&record, address);
  if (block)
    return serve_free_async(&record, block, stream);
  log_record(&record, "passed on: %s", record.why);
  return real ? real(address, given) : NO_RUNTIME;
}

cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
  return malloc_async("cudaMallocAsync", address, bytes, stream, stream, runtime()->malloc_async);
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  return free_async("cudaFreeAsync", address, stream, stream, runtime()->free_async);
}

cudaError_t cudaMallocAsync_ptsz(void **address, size_t bytes, cudaStream_t stream) {
  return malloc_async("cudaMallocAsync_ptsz", address, bytes, stream, per_thread(stream),
                      runtime()->malloc_async_ptsz);
}

cudaError_t cudaFreeAsync_ptsz(void *address, cudaStream_t stream) {
  return free_async("cudaFreeAsync_ptsz", address, stream, per_thread(stream),
                    runtime()->free_async_ptsz);
}

/* Always passed on: the application chose the pool for its place, limits, counters or sharing. */
static cudaError_t malloc_from_pool(const char *call, void **address, size_t bytes,
                                    cudaMemPool_t pool, cudaStream_t stream,
                                    cudaError_t (*real)(void **, size_t, cudaMemPool_t,
                                                        cudaStream_t)) {
  struct record record = record_of(call, bytes);
  pass_on(&record, "the application has its own pool");
  cudaError_t result;
  do
    result = real ? real(address, bytes, pool, stream) : NO_RUNTIME;
  while (serve_again(&record, result));
  return serve_passed_on(&record, address, result);
}

cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return malloc_from_pool("cudaMallocFromPoolAsync", address, bytes, pool, stream,
                          runtime()->malloc_from_pool);
}

cudaError_t cudaMallocFromPoolAsync_ptsz(void **address, size_t bytes, cudaMemPool_t pool,
                                         cudaStream_t stream) {
  return malloc_from_pool("cudaMallocFromPoolAsync_ptsz", address, bytes, pool, stream,
                          runtime()->malloc_from_pool_ptsz);
}

/* Memory in other processes */

static cudaError_t log_passed_on(const struct record *record, cudaError_t result) {
  log_record(record, "passed on: %s; error %d", record->why, result);
  return result;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
  struct record record = record_of("cudaIpcGetMemHandle", 0);
  const struct runtime *calls = runtime();
  cudaError_t result;
  if (export_address(&record, address, handle, &result))
    return result;
  return log_passed_on(&record, calls->ipc_get ? calls->ipc_get(handle, address) : NO_RUNTIME);
}

cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags) {
  struct record record = record_of("cudaIpcOpenMemHandle", 0);
  const struct runtime *calls = runtime();
  cudaError_t result;
  if (import_open(&record, &handle, flags, address, &result))
    return result;
  result = calls->ipc_open ? calls->ipc_open(address, handle, flags) : NO_RUNTIME;
  return log_passed_on(&record, result);
}

cudaError_t cudaIpcCloseMemHandle(void *address) {
  struct record record = record_of("cudaIpcCloseMemHandle", 0);
  const struct runtime *calls = runtime();
  cudaError_t result;
  if (import_close(&record, address, &result))
    return result;
  return log_passed_on(&record, calls->ipc_close ? calls->ipc_close(address) : NO_RUNTIME);
}
