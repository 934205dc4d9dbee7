/* SPDX-License-Identifier: MIT
 * libhaul-cudahook.so is preloaded into a program that links the CUDA runtime dynamically, or
 * loaded by a framework as its allocator. It allocates device memory that can be shared with
 * processes, published, and registered with NICs; see haul-cudahook(7).
 *
 * A program that also runs without the hook looks these calls up by dlsym(3) with RTLD_DEFAULT
 * instead of linking to it. Conventions are those of haul.h. All calls exist since version 0.1. */
#ifndef HAUL_CUDAHOOK_H
#define HAUL_CUDAHOOK_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates `size` bytes on the runtime's device `device`, for work of `stream` (a cudaStream_t),
 * with the signature of torch.cuda.memory.CUDAPluggableAllocator. Falls back to cudaMalloc. NULL if
 * that fails too, without a CUDA runtime in the process, and for 0 bytes. Release with
 * haul_cudahook_free. Blocks like cudaMalloc. */
HAUL_API void *haul_cudahook_alloc(size_t size, int device, void *stream);

/* Has haul_cudahook_free wait for `stream`, too: the memory remains until the work is done that is
 * there at the free. The stream must exist until then. Beyond 4 streams the free waits for the
 * device. It does nothing for memory of cudaMalloc, and for NULL. It is for PyTorch's
 * Tensor.record_stream: pass it to set_record_stream_fn of the allocator. */
HAUL_API void haul_cudahook_record_stream(void *address, void *stream);

/* Frees the memory after the work that is now in `stream` and in recorded streams, without a wait.
 * Memory of cudaMalloc is passed to cudaFree, which waits for the device. NULL does nothing. */
HAUL_API void haul_cudahook_free(void *address, size_t size, int device, void *stream);

/* The region that contains `address`, and the offset there in bytes. The hook owns the region until
 * the memory is freed; the caller may export, publish and copy it. Takes time proportional to the
 * number of allocations unless `address` is the start of one. HAUL_EINVAL (NULL, or not in memory
 * from haul), HAUL_EFORK. haul_error_last() has no details of these errors. */
HAUL_API int haul_cudahook_find(const void *address, haul_region **region, uint64_t *offset);

/* Publishes the whole allocation that contains `address`, like haul_region_publish: peers connect
 * to HAUL_CUDAHOOK_LISTEN. Freeing the memory withdraws the name. HAUL_EINVAL and HAUL_EFORK as
 * above, and the errors of haul_region_publish. */
HAUL_API int haul_cudahook_publish(const void *address, const char *name, unsigned rights);

#ifdef __cplusplus
}
#endif

#endif
