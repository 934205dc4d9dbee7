/* SPDX-License-Identifier: MIT
 *
 * libhaul-cudahook.so, preloaded into a program that is linked to the CUDA runtime dynamically, or
 * opened by a framework as its allocator: device memory that can be shared with other processes,
 * published, and registered with NICs. haul-cudahook(7) says how to start a program with it.
 *
 * A program that also runs without the hook does not link to it, but looks these calls up
 * (dlsym(3) with RTLD_DEFAULT).
 *
 * Conventions are those of haul.h. Everything here is there since version 0.1. */
#ifndef HAUL_CUDAHOOK_H
#define HAUL_CUDAHOOK_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For torch.cuda.memory.CUDAPluggableAllocator, whose signatures these are: `size`
 * bytes on the runtime's device `device`, for work of `stream` (a cudaStream_t). What haul cannot
 * serve is cudaMalloc's. NULL where neither has memory, where no CUDA runtime is in the process,
 * and for 0 bytes. Release with haul_cudahook_free. May block as cudaMalloc does. */
HAUL_API void *haul_cudahook_alloc(size_t size, int device, void *stream);

/* Gives it back once what `stream` has been given so far is done, without waiting for that; memory
 * that is not haul's goes to cudaFree, which waits for the device. NULL does nothing. */
HAUL_API void haul_cudahook_free(void *address, size_t size, int device, void *stream);

/* The region that `address` lies in, and its offset there in bytes; the runtime's own memory has
 * none. The region belongs to the hook, for as long as the caller does not free the memory; it can
 * be exported, published, and copied from and to. Takes a look at every allocation unless `address`
 * is the start of one. HAUL_EINVAL (NULL, or not in an allocation that haul served), HAUL_EFORK.
 * haul_error_last() has no detail of these. */
HAUL_API int haul_cudahook_find(const void *address, haul_region **region, uint64_t *offset);

/* Publishes the whole allocation that `address` lies in, as haul_region_publish does: peers find it
 * where HAUL_CUDAHOOK_LISTEN has the process listen. Freeing the memory takes the name back.
 * HAUL_EINVAL and HAUL_EFORK as above, and haul_region_publish's errors. */
HAUL_API int haul_cudahook_publish(const void *address, const char *name, unsigned rights);

#ifdef __cplusplus
}
#endif

#endif
