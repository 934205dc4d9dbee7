/* SPDX-License-Identifier: MIT
 * Buffers in device memory, by the two families of names that were proposed for 3FS. */
#include "hf3fs_usrbio_gdr.h"

#include <errno.h>
#include <stdlib.h>

#include "client.h"

/* NULL: host memory. */
static const struct device *device_of(const struct hf3fs_iov *iov) {
  const struct buffer *buffer = iov ? iov->iovh : NULL;
  return buffer ? buffer->device : NULL;
}

/* The earlier names: _gpu */

bool hf3fs_gdr_available(void) {
  return hf3fs_gdr_device_count() > 0;
}

/* Registers memory of the device `number`, new or the application's; opens a registered buffer
 * where `number` is negative. */
static int fill_iov(struct hf3fs_iov *iov, const uint8_t id[16], void *memory, const char *mount,
                    size_t size, size_t block_size, int number) {
  struct buffer *buffer = calloc(1, sizeof *buffer);
  if (!buffer)
    return -ENOMEM;
  int code = number >= 0 ? device_new(mount, id, memory, size, number, &buffer->device)
                         : device_open(mount, id, size, &buffer->device);
  if (code) {
    free(buffer);
    return code;
  }
  buffer->stage = device_stage(buffer->device);
  buffer_describe(iov, id, mount, size, block_size, -1);
  iov->base = device_address(buffer->device);
  iov->iovh = buffer;
  return 0;
}

int hf3fs_iovcreate_gpu(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                        int device) {
  uint8_t id[16];
  if (!iov || !mount_is_path(mount) || !buffer_is_size(size, block_size) || device < 0)
    return buffer_finish(iov, -EINVAL);
  int code = random_id(id);
  return buffer_finish(iov, code ? code : fill_iov(iov, id, NULL, mount, size, block_size, device));
}

int hf3fs_iovopen_gpu(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                      size_t block_size, int device) {
  if (!iov || !id || !mount_is_path(mount) || !buffer_is_size(size, block_size))
    return buffer_finish(iov, -EINVAL);
  int code = fill_iov(iov, id, NULL, mount, size, block_size, -1);
  if (code == 0 && device_number(device_of(iov)) != device) {
    hf3fs_iovdestroy(iov);
    code = -ENODEV;
  }
  return buffer_finish(iov, code);
}

int hf3fs_iovwrap_gpu(struct hf3fs_iov *iov, void *memory, const uint8_t id[16], const char *mount,
                      size_t size, size_t block_size, int device) {
  if (!iov || !memory || !id || !mount_is_path(mount) || !buffer_is_size(size, block_size) ||
      device < 0)
    return buffer_finish(iov, -EINVAL);
  return buffer_finish(iov, fill_iov(iov, id, memory, mount, size, block_size, device));
}

void hf3fs_iovunlink_gpu(struct hf3fs_iov *iov) {
  hf3fs_iovunlink(iov);
}

void hf3fs_iovdestroy_gpu(struct hf3fs_iov *iov) {
  hf3fs_iovdestroy(iov);
}

/* In hf3fs_gpu_ipc_handle_t; the ticket does not fit, so the importer asks the daemon for it. */
struct ipc_handle {
  char magic[8];
  uint8_t id[16];
  uint64_t size, block_size;
};
#define IPC_MAGIC "haulgpu1"
_Static_assert(sizeof(struct ipc_handle) <= sizeof(hf3fs_gpu_ipc_handle_t), "80 bytes");

int hf3fs_iov_export_gpu(const struct hf3fs_iov *iov, hf3fs_gpu_ipc_handle_t *out) {
  struct ipc_handle handle = {.magic = {0}};
  if (!iov || !out || !device_of(iov))
    return -EINVAL;
  if (device_stage(device_of(iov)))
    return -ENOTSUP;
  memcpy(handle.magic, IPC_MAGIC, sizeof handle.magic);
  memcpy(handle.id, iov->id, sizeof handle.id);
  handle.size = iov->size;
  handle.block_size = iov->block_size;
  memset(out, 0, sizeof *out);
  memcpy(out, &handle, sizeof handle);
  return 0;
}

int hf3fs_iov_import_gpu(struct hf3fs_iov *iov, const hf3fs_gpu_ipc_handle_t *in,
                         const char *mount) {
  struct ipc_handle handle;
  if (!iov || !in || !mount_is_path(mount))
    return buffer_finish(iov, -EINVAL);
  memcpy(&handle, in, sizeof handle);
  if (memcmp(handle.magic, IPC_MAGIC, sizeof handle.magic) != 0 ||
      !buffer_is_size(handle.size, handle.block_size))
    return buffer_finish(iov, -EINVAL);
  return buffer_finish(iov,
                       fill_iov(iov, handle.id, NULL, mount, handle.size, handle.block_size, -1));
}

bool hf3fs_iov_is_gpu(const struct hf3fs_iov *iov) {
  return device_of(iov);
}

int hf3fs_iov_gpu_device(const struct hf3fs_iov *iov) {
  return device_of(iov) ? device_number(device_of(iov)) : -1;
}

/* An operation completes once the device can see its bytes, so there is nothing to do. */
int hf3fs_iovsync_gpu(const struct hf3fs_iov *iov, int direction) {
  return !device_of(iov) || direction < 0 || direction > 1 ? -EINVAL : 0;
}

/* The later names: _device */

#define SAME_AS(name, other) extern __typeof__(other) name __attribute__((alias(#other)))
SAME_AS(hf3fs_iovcreate_device, hf3fs_iovcreate_gpu);
SAME_AS(hf3fs_iovopen_device, hf3fs_iovopen_gpu);
SAME_AS(hf3fs_iovwrap_device, hf3fs_iovwrap_gpu);
SAME_AS(hf3fs_iov_device_id, hf3fs_iov_gpu_device);

enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov) {
  return device_of(iov) ? HF3FS_MEM_DEVICE : HF3FS_MEM_HOST;
}

int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction) {
  if (iov && !device_of(iov))
    return direction == 0 || direction == 1 ? 0 : -EINVAL;
  return hf3fs_iovsync_gpu(iov, direction);
}
