/* SPDX-License-Identifier: MIT
 *
 * For those who drive devices themselves, such as plugins of other libraries: copies that nobody
 * waits for, and dma-bufs for NICs that haul does not drive.
 *
 * What haul.h says of all its calls holds here. Everything here is there since version 0.1.
 */
#ifndef HAUL_DEVICE_H
#define HAUL_DEVICE_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A copy between two regions of this node, under way. */
typedef struct haul_copy haul_copy;

/* Starts what haul_region_copy does, and returns while a device's engine is at it. Between two
 * regions that the processor reaches it is made at once, in the call. Release with
 * haul_copy_release, before either region. HAUL_ERANGE, HAUL_EINVAL (the ranges overlap),
 * HAUL_EACCESS, HAUL_ESTALE, HAUL_ENOMEM; HAUL_ENOTSUP where no engine reaches both, so that the
 * bytes would go by way of buffers, which haul_region_copy does: between two devices, and between a
 * GPU and host memory without HAUL_REGION_PINNED. */
HAUL_API int haul_copy_start(haul_region *to, uint64_t to_offset, haul_region *from,
                             uint64_t from_offset, size_t length, haul_copy **copy);

/* 1 while it is on its way, 0 when the bytes are there, else the error it ended with. The drivers
 * of some devices tell nobody, and large copies are given to them in portions: the copy moves on
 * when somebody asks. */
HAUL_API int haul_copy_test(haul_copy *copy);

/* Gives the handle back. A copy still on its way is ended early, its destination is undefined, and
 * neither region is touched any more when this returns: within milliseconds, but for a device that
 * hangs, whose driver may take half a minute to end what it was given. */
HAUL_API void haul_copy_release(haul_copy *copy);

/* A dma-buf of the region's memory, for drivers that import such (ibv_reg_dmabuf_mr). The region
 * begins at *offset in it. The caller closes the descriptor, before the region is released: drivers
 * may keep the memory for as long as it is open. HAUL_ENOTSUP, with the reason, where the memory
 * has none. */
HAUL_API int haul_region_dmabuf(haul_region *region, int *descriptor, uint64_t *offset);

#ifdef __cplusplus
}
#endif

#endif
