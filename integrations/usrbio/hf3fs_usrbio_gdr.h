/* SPDX-License-Identifier: MIT
 * USRBIO with buffers in the memory of accelerators: the calls that were proposed for 3FS, by their
 * earlier names (_gpu) and their later ones (_device). They need libhaul.so.0, which the first call
 * opens, and its devices; without these they fail. Data goes between disk and device through bounce
 * buffers of the daemon, or through those of this process for a buffer that is staged; files of
 * another node by that node's NIC, where this host's NIC can register the memory. */
#ifndef HF3FS_USRBIO_GDR_H
#define HF3FS_USRBIO_GDR_H

#include "hf3fs_usrbio.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hf3fs_mem_type { HF3FS_MEM_HOST = 0, HF3FS_MEM_DEVICE = 1, HF3FS_MEM_MANAGED = 2 };

/* One process passes it to another one, in any way. */
typedef struct {
  uint8_t data[80];
} hf3fs_gpu_ipc_handle_t;

/* Whether there are devices for buffers, and how many: NVIDIA's if there are any, else Gaudi's;
 * with HAUL_USRBIO_DEVICES=sim in the environment those that haul emulates. Blocks for about a
 * second if a driver has to start. */
bool hf3fs_gdr_available(void);
int hf3fs_gdr_device_count(void);

/* As hf3fs_iovcreate, hf3fs_iovopen and hf3fs_iovwrap, on a device: 0 or a negative errno value;
 * ENOTSUP if hf3fs_gdr_available is false; ENODEV for another device. `iov->base` is a device
 * address, which the CPU must not access. The buffer is registered until it is destroyed or its
 * process ends. On failure `iov` is zeroed.
 *
 * Wrapped memory is any of the device; memory of no device is EINVAL. Unlike hf3fs_iovwrap the call
 * registers it. Free the memory after hf3fs_iovdestroy, which blocks until the daemon and all
 * processes that opened or imported the buffer do not use it any more, at most 30 seconds: drivers
 * leave undefined what happens to memory that is freed earlier.
 *
 * Memory that its driver does not share with the daemon is staged: wrapped memory of pools
 * (cudaMallocAsync) and of the virtual-memory calls (PyTorch's expandable segments, haul's hook),
 * and all of Gaudi's. Its bytes pass through a window of at most 64 MiB in /dev/shm (ENOSPC). There
 * hf3fs_prep_io copies those of a write and hf3fs_wait_for_ios those of a read, both blocking for
 * that; the result is EIO if the device fails. hf3fs_prep_io returns EAGAIN while the operations in
 * flight fill the window, and EINVAL for one that is longer. No other process can open the buffer
 * (ENOENT). */
int hf3fs_iovcreate_gpu(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                        size_t block_size, int gpu_device_id);
int hf3fs_iovopen_gpu(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                      size_t size, size_t block_size, int gpu_device_id);
int hf3fs_iovwrap_gpu(struct hf3fs_iov *iov, void *gpu_ptr, const uint8_t id[16],
                      const char *hf3fs_mount_point, size_t size, size_t block_size,
                      int gpu_device_id);
int hf3fs_iovcreate_device(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                           size_t block_size, int device_id);
int hf3fs_iovopen_device(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                         size_t size, size_t block_size, int device_id);
int hf3fs_iovwrap_device(struct hf3fs_iov *iov, void *device_ptr, const uint8_t id[16],
                         const char *hf3fs_mount_point, size_t size, size_t block_size,
                         int device_id);

/* The same as hf3fs_iovunlink and hf3fs_iovdestroy, which take buffers of every kind of memory. */
void hf3fs_iovunlink_gpu(struct hf3fs_iov *iov);
void hf3fs_iovdestroy_gpu(struct hf3fs_iov *iov);

/* Pass a buffer to another process of the same user on this host. 0, EINVAL for a buffer in host
 * memory or an invalid handle, ENOENT if the owner has destroyed it, ENOTSUP for a staged one. */
int hf3fs_iov_export_gpu(const struct hf3fs_iov *iov, hf3fs_gpu_ipc_handle_t *handle);
int hf3fs_iov_import_gpu(struct hf3fs_iov *iov, const hf3fs_gpu_ipc_handle_t *handle,
                         const char *hf3fs_mount_point);

/* Where a buffer is. The device of host memory is -1. */
bool hf3fs_iov_is_gpu(const struct hf3fs_iov *iov);
int hf3fs_iov_gpu_device(const struct hf3fs_iov *iov);
enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov);
int hf3fs_iov_device_id(const struct hf3fs_iov *iov);

/* Direction 0 makes what the device's kernels wrote, for which the program has waited, visible to
 * an operation; 1 makes what an operation wrote visible to the kernels. Both have nothing to do: an
 * operation completes only when its bytes are visible. For host memory hf3fs_iovsync_gpu returns
 * EINVAL, hf3fs_iovsync 0. */
int hf3fs_iovsync_gpu(const struct hf3fs_iov *iov, int direction);
int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction);

#ifdef __cplusplus
}
#endif

#endif
