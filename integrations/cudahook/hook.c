/* SPDX-License-Identifier: MIT
 * The calls that a preloaded hook stands in front of. Not among them: cudaMallocManaged and
 * cudaMallocHost, whose memory is the host's as well, which is what they are called for. */
#include <haul/haul.h>

#include "serve.h"

/* What a row of cudaMallocPitch and cudaMalloc3D is a multiple of: as the runtime's on all GPUs
 * that have virtual-memory calls, and enough for textures. */
#define PITCH ((size_t)512)
/* cudaDeviceProp.memPitch: no copy takes a longer row. */
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

static struct record record_of(const char *call, size_t bytes) {
  return (struct record){.call = call, .bytes = bytes, .device = -1};
}

/* Of what has no place for the address the runtime speaks. */
static void *serve(struct record *record, bool has_place, cudaStream_t stream) {
  if (has_place)
    return serve_alloc(record, stream);
  because(record, "there is no place for the address");
  return NULL;
}

/* What the runtime gave. */
static void *given(void *const *address, cudaError_t result) {
  return address && result == cudaSuccess ? *address : NULL;
}

/* ---- Memory that is there when the call returns ---- */

cudaError_t cudaMalloc(void **address, size_t bytes) {
  struct record record = record_of("cudaMalloc", bytes);
  void *served = serve(&record, address, cudaStreamLegacy);
  if (served) {
    *address = served;
    return cudaSuccess;
  }
  const struct runtime *calls = runtime();
  cudaError_t result = calls->malloc ? calls->malloc(address, bytes) : NO_RUNTIME;
  return serve_passed_on(&record, given(address, result), result);
}

/* 0: not to be served. */
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
  cudaError_t result =
      calls->malloc_pitch ? calls->malloc_pitch(address, pitch, width, height) : NO_RUNTIME;
  return serve_passed_on(&record, given(address, result), result);
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
  cudaError_t result = calls->malloc_3d ? calls->malloc_3d(pitched, extent) : NO_RUNTIME;
  return serve_passed_on(&record, pitched ? given(&pitched->ptr, result) : NULL, result);
}

/* Of NULL too, which programs call to have the device started. */
cudaError_t cudaFree(void *address) {
  struct record record = record_of("cudaFree", 0);
  struct block *block = serve_take(&record, address);
  if (block)
    return serve_free(&record, block);
  const struct runtime *calls = runtime();
  log_record(&record, "passed on: %s", record.why);
  return calls->free ? calls->free(address) : NO_RUNTIME;
}

/* It ends the events that are waited for, and no memory is left that could be freed. */
cudaError_t cudaDeviceReset(void) {
  struct record record = record_of("cudaDeviceReset", 0);
  const struct runtime *calls = runtime();
  serve_reset();
  log_record(&record, "passed on");
  return calls->device_reset ? calls->device_reset() : NO_RUNTIME;
}

/* ---- Memory in the order of a stream ---- */

/* The runtime's allocation is there when the stream comes to it; haul's is there at once. */
static bool alloc_async(struct record *record, void **address, cudaStream_t stream) {
  void *served = serve(record, address, stream);
  if (served)
    *address = served;
  return served != NULL;
}

cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
  struct record record = record_of("cudaMallocAsync", bytes);
  if (alloc_async(&record, address, stream))
    return cudaSuccess;
  const struct runtime *calls = runtime();
  cudaError_t result =
      calls->malloc_async ? calls->malloc_async(address, bytes, stream) : NO_RUNTIME;
  return serve_passed_on(&record, given(address, result), result);
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  struct record record = record_of("cudaFreeAsync", 0);
  struct block *block = serve_take(&record, address);
  if (block)
    return serve_free_async(&record, block, stream);
  const struct runtime *calls = runtime();
  log_record(&record, "passed on: %s", record.why);
  return calls->free_async ? calls->free_async(address, stream) : NO_RUNTIME;
}

/* Programs that were compiled with a default stream a thread call these: there NULL is that one. */
static cudaStream_t of_thread(cudaStream_t stream) {
  return stream ? stream : cudaStreamPerThread;
}

cudaError_t cudaMallocAsync_ptsz(void **address, size_t bytes, cudaStream_t stream) {
  struct record record = record_of("cudaMallocAsync_ptsz", bytes);
  if (alloc_async(&record, address, of_thread(stream)))
    return cudaSuccess;
  const struct runtime *calls = runtime();
  cudaError_t result =
      calls->malloc_async_ptsz ? calls->malloc_async_ptsz(address, bytes, stream) : NO_RUNTIME;
  return serve_passed_on(&record, given(address, result), result);
}

cudaError_t cudaFreeAsync_ptsz(void *address, cudaStream_t stream) {
  struct record record = record_of("cudaFreeAsync_ptsz", 0);
  struct block *block = serve_take(&record, address);
  if (block)
    return serve_free_async(&record, block, of_thread(stream));
  const struct runtime *calls = runtime();
  log_record(&record, "passed on: %s", record.why);
  return calls->free_async_ptsz ? calls->free_async_ptsz(address, stream) : NO_RUNTIME;
}

/* ---- Memory of a pool of the application's ---- */

/* The application chose the pool for what it is: its place, its limits, its counters, whom it is
 * shared with. Memory from elsewhere would have none of that. */
static const char of_a_pool[] = "the pool is the application's";

cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  struct record record = record_of("cudaMallocFromPoolAsync", bytes);
  const struct runtime *calls = runtime();
  because(&record, "%s", of_a_pool);
  cudaError_t result =
      calls->malloc_from_pool ? calls->malloc_from_pool(address, bytes, pool, stream) : NO_RUNTIME;
  return serve_passed_on(&record, given(address, result), result);
}

cudaError_t cudaMallocFromPoolAsync_ptsz(void **address, size_t bytes, cudaMemPool_t pool,
                                         cudaStream_t stream) {
  struct record record = record_of("cudaMallocFromPoolAsync_ptsz", bytes);
  const struct runtime *calls = runtime();
  because(&record, "%s", of_a_pool);
  cudaError_t result = calls->malloc_from_pool_ptsz
                           ? calls->malloc_from_pool_ptsz(address, bytes, pool, stream)
                           : NO_RUNTIME;
  return serve_passed_on(&record, given(address, result), result);
}
