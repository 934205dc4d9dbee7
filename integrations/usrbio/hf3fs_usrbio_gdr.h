/* SPDX-License-Identifier: MIT
 * USRBIO with buffers in the memory of accelerators: the calls that were proposed for 3FS, by their
 * earlier names (_gpu) and their later ones. They take libhaul.so.0, which is opened at the first
 * call, and its devices; without these they say so, and never give host memory instead. The daemon
 * stages what goes between disk and device. */
#ifndef HF3FS_USRBIO_GDR_H
#define HF3FS_USRBIO_GDR_H

#include "hf3fs_usrbio.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hf3fs_mem_type { HF3FS_MEM_HOST = 0, HF3FS_MEM_DEVICE = 1, HF3FS_MEM_MANAGED = 2 };

/* What one process hands to another one, by whatever means. */
typedef struct {
  uint8_t data[80];
} hf3fs_gpu_ipc_handle_t;

/* Whether there may be buffers in device memory, and of how many devices: NVIDIA's where there are
 * some, else Gaudi's. With HAUL_USRBIO_DEVICES=sim in the environment those that haul emulates. May
 * block for a second where a driver has to start. */
bool hf3fs_gdr_available(void);
int hf3fs_gdr_device_count(void);

/* As hf3fs_iovcreate, hf3fs_iovopen and hf3fs_iovwrap, on a device: 0 or a negative errno value,
 * ENOTSUP where hf3fs_gdr_available is false, and for memory that its driver does not share (all of
 * Gaudi's); ENODEV for another device. `iov->base` is an address of the device's, which the CPU may
 * not touch. The buffer is registered until it is destroyed or its process ends. On failure `iov`
 * is as if zeroed.
 *
 * What is wrapped is one allocation of cudaMalloc's, or a part of one; memory of pools and of the
 * virtual-memory calls is ENOTSUP, and what is no memory of a device's EINVAL. Other than with
 * hf3fs_iovwrap the call registers it. Free it after hf3fs_iovdestroy, which waits until the daemon
 * and all who opened or imported the buffer have let go of it, 30 seconds at most: a driver leaves
 * undefined what becomes of memory that is freed before. */
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

/* As hf3fs_iovunlink and hf3fs_iovdestroy, which take buffers of all memories. */
void hf3fs_iovunlink_gpu(struct hf3fs_iov *iov);
void hf3fs_iovdestroy_gpu(struct hf3fs_iov *iov);

/* A buffer handed to another process of the same user's on this host. 0, EINVAL for one that is not
 * in device memory or for what is no handle, ENOENT where its owner has destroyed it, ENOTSUP. */
int hf3fs_iov_export_gpu(const struct hf3fs_iov *iov, hf3fs_gpu_ipc_handle_t *handle);
int hf3fs_iov_import_gpu(struct hf3fs_iov *iov, const hf3fs_gpu_ipc_handle_t *handle,
                         const char *hf3fs_mount_point);

/* Where a buffer is. A device's number is -1 for host memory. */
bool hf3fs_iov_is_gpu(const struct hf3fs_iov *iov);
int hf3fs_iov_gpu_device(const struct hf3fs_iov *iov);
enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov);
int hf3fs_iov_device_id(const struct hf3fs_iov *iov);

/* Makes bytes visible across a device: direction 0, what its kernels wrote, before an operation
 * reads it, which the application has waited for; 1, what an operation wrote, before its kernels
 * read it. There is nothing to do for either: who completes an operation has done it. For host
 * memory hf3fs_iovsync_gpu is EINVAL, and hf3fs_iovsync has nothing to do and returns 0. */
int hf3fs_iovsync_gpu(const struct hf3fs_iov *iov, int direction);
int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction);

#ifdef __cplusplus
}
#endif

#endif
