/* SPDX-License-Identifier: MIT
 * Memory and copies. */
#include <string.h>

#include "inside.h"

#define PITCH ((size_t)512)

static bool is_out(void) {
  unsigned left = atomic_load(&cudart_double.out_memory);
  while (left > 0 && !atomic_compare_exchange_weak(&cudart_double.out_memory, &left, left - 1))
    ;
  return left > 0;
}

static cudaError_t take(void **address, size_t bytes, bool of_pool, _Atomic unsigned *counter) {
  CUdeviceptr got = 0;
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return error;
  if (bytes > 0 && is_out())
    error = cudaErrorMemoryAllocation;
  else if (bytes > 0)
    error = of_pool ? driver.alloc_async(&got, bytes, NULL) : driver.alloc(&got, bytes);
  leave();
  if (error != cudaSuccess)
    return error;
  *address = (void *)(uintptr_t)got;
  atomic_fetch_add(counter, bytes > 0);
  return cudaSuccess;
}

static cudaError_t take_now(void **address, size_t bytes) {
  if (!address)
    return cudaErrorInvalidValue;
  cudaError_t error = refuse_unsafe();
  return error == cudaSuccess ? take(address, bytes, false, &cudart_double.allocations) : error;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
  return done(take_now(address, bytes));
}

cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  if (!pitch)
    return done(cudaErrorInvalidValue);
  *pitch = (width + PITCH - 1) / PITCH * PITCH;
  return done(take_now(address, *pitch * height));
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent) {
  if (!pitched)
    return done(cudaErrorInvalidValue);
  pitched->pitch = (extent.width + PITCH - 1) / PITCH * PITCH;
  pitched->xsize = extent.width;
  pitched->ysize = extent.height;
  return done(take_now(&pitched->ptr, pitched->pitch * extent.height * extent.depth));
}

/* Fails for memory of the driver's virtual-memory calls. */
static cudaError_t free_counted(void *address, _Atomic unsigned *counter) {
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return error;
  error = driver.free((CUdeviceptr)(uintptr_t)address);
  leave();
  atomic_fetch_add(counter, error == cudaSuccess);
  return error;
}

cudaError_t cudaFree(void *address) {
  cudaError_t error = refuse_unsafe();
  if (error == cudaSuccess)
    error = cudaDeviceSynchronize();
  if (error != cudaSuccess || !address)
    return done(error);
  return done(free_counted(address, &cudart_double.frees));
}

cudaError_t cudaMallocHost(void **address, size_t bytes) {
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  error = driver.host_alloc(address, bytes, CU_MEMHOSTALLOC_PORTABLE);
  leave();
  return done(error);
}

cudaError_t cudaFreeHost(void *address) {
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  error = driver.host_free(address);
  leave();
  return done(error);
}

/* During a capture it becomes a graph node. */
cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
  int status = cudaStreamCaptureStatusNone;
  if (!address)
    return done(cudaErrorInvalidValue);
  cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess)
    return done(error);
  atomic_fetch_add(&cudart_double.captured, status != cudaStreamCaptureStatusNone);
  return done(take(address, bytes, true, &cudart_double.async_allocations));
}

/* In stream order, without a wait for anything else. */
static cudaError_t free_behind(void *address, cudaStream_t name) {
  struct stream *stream;
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&streams_lock);
  error = find_stream(name, &stream);
  CUstream theirs = error == cudaSuccess ? stream->theirs : NULL;
  pthread_mutex_unlock(&streams_lock);
  if (error == cudaSuccess)
    error = driver.free_async((CUdeviceptr)(uintptr_t)address, theirs);
  leave();
  atomic_fetch_add(&cudart_double.async_frees, error == cudaSuccess);
  return error;
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  int status = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess)
    return done(error);
  return done(status == cudaStreamCaptureStatusNone
                  ? free_behind(address, stream)
                  : free_counted(address, &cudart_double.async_frees));
}

static cudaStream_t of_thread(cudaStream_t stream) {
  return stream ? stream : cudaStreamPerThread;
}

cudaError_t cudaMallocAsync_ptsz(void **address, size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(address, bytes, of_thread(stream));
}

cudaError_t cudaFreeAsync_ptsz(void *address, cudaStream_t stream) {
  return cudaFreeAsync(address, of_thread(stream));
}

static char pools[DEVICES_MAX];

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  if (device < 0 || device >= DEVICES_MAX)
    return done(cudaErrorInvalidDevice);
  *pool = (cudaMemPool_t)(void *)&pools[device];
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return pool ? cudaMallocAsync(address, bytes, stream) : done(cudaErrorInvalidValue);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
  CUipcMemHandle theirs;
  cudaError_t error = handle ? enter(current_device()) : cudaErrorInvalidValue;
  if (error != cudaSuccess)
    return done(error);
  error = driver.ipc_get(&theirs, (CUdeviceptr)(uintptr_t)address);
  leave();
  if (error == cudaSuccess)
    memcpy(handle, &theirs, sizeof *handle);
  return done(error);
}

cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle theirs;
  CUdeviceptr got = 0;
  cudaError_t error = address ? enter(current_device()) : cudaErrorInvalidValue;
  if (error != cudaSuccess)
    return done(error);
  memcpy(&theirs, &handle, sizeof theirs);
  error = driver.ipc_open(&got, theirs, flags);
  leave();
  if (error == cudaSuccess)
    *address = (void *)(uintptr_t)got;
  return done(error);
}

cudaError_t cudaIpcCloseMemHandle(void *address) {
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  error = driver.ipc_close((CUdeviceptr)(uintptr_t)address);
  leave();
  return done(error);
}

static CUresult copy(void *to, const void *from, size_t bytes, int kind, CUstream stream) {
  switch (kind) {
  case cudaMemcpyHostToDevice:
    return driver.copy_in((CUdeviceptr)(uintptr_t)to, from, bytes, stream);
  case cudaMemcpyDeviceToHost:
    return driver.copy_out(to, (CUdeviceptr)(uintptr_t)from, bytes, stream);
  case cudaMemcpyDeviceToDevice:
    return driver.copy_inside((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes,
                              stream);
  default:
    return cudaErrorInvalidMemcpyDirection;
  }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t name) {
  struct stream *stream;
  CUstream theirs = NULL;
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  pthread_mutex_lock(&streams_lock);
  error = find_stream(name, &stream);
  if (error == cudaSuccess && stream->status == cudaStreamCaptureStatusNone)
    theirs = stream->theirs;
  pthread_mutex_unlock(&streams_lock);
  if (theirs)
    error = copy(to, from, bytes, kind, theirs);
  else if (error == cudaSuccess)
    atomic_fetch_add(&cudart_double.captured, 1);
  leave();
  return done(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  cudaError_t error = enter(current_device());
  if (error != cudaSuccess)
    return done(error);
  error = wait_for_blocking(current_device());
  leave();
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(to, from, bytes, kind, cudaStreamLegacy);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : done(error);
}
