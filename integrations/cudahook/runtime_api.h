/* SPDX-License-Identifier: MIT
 * The part of the CUDA runtime that the hook uses, declared here so that no toolkit is needed.
 * Names and numbers are those of driver_types.h and cuda_runtime_api.h 12.9, unchanged since 11.2.
 */
#ifndef HAUL_CUDAHOOK_RUNTIME_API_H
#define HAUL_CUDAHOOK_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUmemPoolHandle_st *cudaMemPool_t;
typedef struct cudaIpcMemHandle_st {
  char reserved[64];
} cudaIpcMemHandle_t;

enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorMapBufferObjectFailed = 205,
  cudaErrorSharedObjectSymbolNotFound = 302,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureImplicit = 906
};

enum { cudaEventDisableTiming = 2 };
enum { cudaStreamCaptureStatusNone = 0 };
enum { cudaStreamCaptureModeRelaxed = 2 };
enum { cudaIpcMemLazyEnablePeerAccess = 1 };

#define cudaStreamLegacy    ((cudaStream_t)(uintptr_t)1)
#define cudaStreamPerThread ((cudaStream_t)(uintptr_t)2)

struct cudaExtent {
  size_t width, height, depth; /* width in bytes */
};

struct cudaPitchedPtr {
  void *ptr;
  size_t pitch, xsize, ysize;
};

/* X(slot, symbol, arguments) of hooked calls; NULL if the runtime lacks one. */
#define RUNTIME_HOOKED(X)                                                                          \
  X(malloc, cudaMalloc, (void **address, size_t bytes))                                            \
  X(malloc_pitch, cudaMallocPitch, (void **address, size_t *pitch, size_t width, size_t height))   \
  X(malloc_3d, cudaMalloc3D, (struct cudaPitchedPtr * pitched, struct cudaExtent extent))          \
  X(free, cudaFree, (void *address))                                                               \
  X(device_reset, cudaDeviceReset, (void))                                                         \
  X(malloc_async, cudaMallocAsync, (void **address, size_t bytes, cudaStream_t stream))            \
  X(malloc_async_ptsz, cudaMallocAsync_ptsz, (void **address, size_t bytes, cudaStream_t stream))  \
  X(free_async, cudaFreeAsync, (void *address, cudaStream_t stream))                               \
  X(free_async_ptsz, cudaFreeAsync_ptsz, (void *address, cudaStream_t stream))                     \
  X(malloc_from_pool, cudaMallocFromPoolAsync,                                                     \
    (void **address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream))                       \
  X(malloc_from_pool_ptsz, cudaMallocFromPoolAsync_ptsz,                                           \
    (void **address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream))                       \
  X(ipc_get, cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *address))                    \
  X(ipc_open, cudaIpcOpenMemHandle, (void **address, cudaIpcMemHandle_t handle, unsigned flags))   \
  X(ipc_close, cudaIpcCloseMemHandle, (void *address))

/* Calls that the hook needs: if one is missing, everything is passed on. */
#define RUNTIME_USED(X)                                                                            \
  X(get_device, cudaGetDevice, (int *device))                                                      \
  X(set_device, cudaSetDevice, (int device))                                                       \
  X(device_wait, cudaDeviceSynchronize, (void))                                                    \
  X(last_error, cudaGetLastError, (void))                                                          \
  X(peek_error, cudaPeekAtLastError, (void))                                                       \
  X(exchange_mode, cudaThreadExchangeStreamCaptureMode, (int *mode))                               \
  X(is_capturing, cudaStreamIsCapturing, (cudaStream_t stream, int *status))                       \
  X(stream_wait, cudaStreamSynchronize, (cudaStream_t stream))                                     \
  X(event_create, cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags))                 \
  X(event_destroy, cudaEventDestroy, (cudaEvent_t event))                                          \
  X(event_record, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream))                       \
  X(event_query, cudaEventQuery, (cudaEvent_t event))                                              \
  X(event_wait, cudaEventSynchronize, (cudaEvent_t event))

#endif
