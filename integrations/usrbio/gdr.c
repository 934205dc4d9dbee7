/* SPDX-License-Identifier: MIT
 * Buffers in device memory, by their two families of names. The functions below `device_` are the
 * one place that decides; all else is names. */
#include "hf3fs_usrbio_gdr.h"

#include <errno.h>
#include <string.h>

/* ---- What there is of devices: nothing ---- */

static int device_count(void) {
  return 0;
}

/* The device that the buffer is on; -1: host memory. */
static int device_of(const struct hf3fs_iov *iov) {
  (void)iov;
  return -1;
}

/* Host memory would not be what was asked for, and nobody would notice. */
static int device_none(struct hf3fs_iov *iov) {
  if (!iov)
    return -EINVAL;
  memset(iov, 0, sizeof *iov);
  return -ENOTSUP;
}

/* ---- The earlier names ---- */

bool hf3fs_gdr_available(void) {
  return device_count() > 0;
}

int hf3fs_gdr_device_count(void) {
  return device_count();
}

int hf3fs_iovcreate_gpu(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                        int device) {
  (void)mount, (void)size, (void)block_size, (void)device;
  return device_none(iov);
}

int hf3fs_iovopen_gpu(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                      size_t block_size, int device) {
  (void)id, (void)mount, (void)size, (void)block_size, (void)device;
  return device_none(iov);
}

int hf3fs_iovwrap_gpu(struct hf3fs_iov *iov, void *memory, const uint8_t id[16], const char *mount,
                      size_t size, size_t block_size, int device) {
  (void)memory, (void)id, (void)mount, (void)size, (void)block_size, (void)device;
  return device_none(iov);
}

void hf3fs_iovunlink_gpu(struct hf3fs_iov *iov) {
  hf3fs_iovunlink(iov);
}

void hf3fs_iovdestroy_gpu(struct hf3fs_iov *iov) {
  hf3fs_iovdestroy(iov);
}

int hf3fs_iov_export_gpu(const struct hf3fs_iov *iov, hf3fs_gpu_ipc_handle_t *handle) {
  if (!iov || !handle)
    return -EINVAL;
  memset(handle, 0, sizeof *handle);
  return device_of(iov) < 0 ? -EINVAL : -ENOTSUP;
}

int hf3fs_iov_import_gpu(struct hf3fs_iov *iov, const hf3fs_gpu_ipc_handle_t *handle,
                         const char *mount) {
  (void)mount;
  return handle ? device_none(iov) : -EINVAL;
}

bool hf3fs_iov_is_gpu(const struct hf3fs_iov *iov) {
  return device_of(iov) >= 0;
}

int hf3fs_iov_gpu_device(const struct hf3fs_iov *iov) {
  return device_of(iov);
}

int hf3fs_iovsync_gpu(const struct hf3fs_iov *iov, int direction) {
  if (!iov || direction < 0 || direction > 1)
    return -EINVAL;
  return device_of(iov) < 0 ? -EINVAL : -ENOTSUP;
}

/* ---- The later names ---- */

int hf3fs_iovcreate_device(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                           int device) {
  return hf3fs_iovcreate_gpu(iov, mount, size, block_size, device);
}

int hf3fs_iovopen_device(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount,
                         size_t size, size_t block_size, int device) {
  return hf3fs_iovopen_gpu(iov, id, mount, size, block_size, device);
}

int hf3fs_iovwrap_device(struct hf3fs_iov *iov, void *memory, const uint8_t id[16],
                         const char *mount, size_t size, size_t block_size, int device) {
  return hf3fs_iovwrap_gpu(iov, memory, id, mount, size, block_size, device);
}

enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov) {
  return device_of(iov) >= 0 ? HF3FS_MEM_DEVICE : HF3FS_MEM_HOST;
}

int hf3fs_iov_device_id(const struct hf3fs_iov *iov) {
  return device_of(iov);
}

int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction) {
  if (iov && device_of(iov) < 0)
    return direction == 0 || direction == 1 ? 0 : -EINVAL;
  return hf3fs_iovsync_gpu(iov, direction);
}
