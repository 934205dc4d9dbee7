/* SPDX-License-Identifier: MIT
 * For code that drives devices itself, such as plugins of other libraries: asynchronous copies, and
 * dma-bufs for NICs that haul does not drive.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_DEVICE_H
#define HAUL_DEVICE_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An asynchronous copy between two regions. */
typedef struct haul_copy haul_copy;

/* Starts the copy of haul_region_copy and returns while the engine of a device makes it. A copy
 * between two regions that the CPU reaches is made within the call. Release with haul_copy_release,
 * before either region. HAUL_EINVAL (no bytes, the ranges overlap), HAUL_ERANGE, HAUL_EACCESS
 * (read-only destination), HAUL_ESTALE. HAUL_ENOTSUP: no engine reaches both, so that the bytes
 * would need bounce buffers, as haul_region_copy uses: between devices of different kinds, between
 * two Gaudi devices, and between an NVIDIA GPU and host memory that its driver has not pinned
 * (HAUL_REGION_PINNED). */
HAUL_API int haul_copy_start(haul_region *to, uint64_t to_offset, haul_region *from,
                             uint64_t from_offset, size_t length, haul_copy **copy);

/* Returns 1 while the copy is in flight, 0 when the bytes are in place, else the error that it
 * ended with. Some drivers do not notify, and large copies are submitted in portions: call it
 * repeatedly, as such a copy makes progress only then. */
HAUL_API int haul_copy_test(haul_copy *copy);

/* Releases the handle. A copy in flight is canceled: its destination is undefined, and on return
 * neither region is in use. Blocks for milliseconds, or, if a device hangs, until its driver ends
 * the operation: half a minute on Gaudi. */
HAUL_API void haul_copy_release(haul_copy *copy);

/* Makes a dma-buf of the region's memory for drivers that import one (ibv_reg_dmabuf_mr). The
 * region begins at *offset in it. The caller closes the descriptor before it releases the region:
 * drivers may pin the memory for as long as the descriptor is open. HAUL_ESTALE; HAUL_ENOTSUP: the
 * memory has none, for the reason in the text; HAUL_ELIMIT: a limit of the system, or the window
 * through which devices reach the memory, is too small. */
HAUL_API int haul_region_dmabuf(haul_region *region, int *descriptor, uint64_t *offset);

#ifdef __cplusplus
}
#endif

#endif
