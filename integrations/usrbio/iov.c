/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define SHARED "/dev/shm/"

void client_link(const char *mount, const struct iov_name *name, char link[LINK_ROOM]) {
  int length = snprintf(link, LINK_ROOM, "%s/3fs-virt/iovs/", mount);
  iov_name_format(name, link + length);
}

int buffer_make(const char *mount, struct iov_name *name, size_t size, int numa,
                struct buffer **buffer) {
  struct buffer *made = calloc(1, sizeof *made);
  if (!made)
    return -ENOMEM;
  int status = memory_id(name->id);
  if (status != 0)
    goto no_memory;
  status = memory_make(name->id, size, numa, &made->memory);
  if (status != 0)
    goto no_memory;
  status = mount_hold(mount, &made->mount);
  if (status != 0)
    goto no_mount;
  client_link(mount, name, made->link);
  *buffer = made;
  return 0;
no_mount:
  memory_end(&made->memory);
no_memory:
  free(made);
  return status;
}

int buffer_register(struct buffer *buffer) {
  return symlink(buffer->memory.path, buffer->link) == 0 ? 0 : -errno;
}

void buffer_end(struct buffer *buffer) {
  memory_end(&buffer->memory);
  if (buffer->mount)
    mount_release(buffer->mount);
  free(buffer);
}

bool buffer_is_size(size_t size, size_t block_size) {
  return size > 0 && size <= INT64_MAX && block_size <= size;
}

void buffer_describe(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                     size_t block_size, int numa) {
  memmove(iov->id, id, sizeof iov->id);
  memmove(iov->mount_point, mount, strlen(mount) + 1);
  iov->size = size;
  iov->block_size = block_size;
  iov->numa = numa;
}

static int create(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                  int numa) {
  struct buffer *buffer;
  struct iov_name name = {.block = block_size};
  if (!mount_is_path(mount) || !buffer_is_size(size, block_size))
    return -EINVAL;
  int status = buffer_make(mount, &name, size, numa, &buffer);
  if (status != 0)
    return status;
  status = buffer_register(buffer);
  if (status != 0) {
    buffer_end(buffer);
    return status;
  }
  buffer_describe(iov, name.id, mount, size, block_size, numa);
  iov->base = buffer->memory.base;
  iov->iovh = buffer;
  return 0;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                    int numa) {
  int status = iov ? create(iov, mount, size, block_size, numa) : -EINVAL;
  if (status != 0 && iov)
    memset(iov, 0, sizeof *iov);
  return status;
}

/* Maps what the link names, in this process's own view of the file system. */
static int open_link(const char *link, size_t size, struct memory *memory) {
  char *path = realpath(link, NULL);
  if (!path)
    return -errno;
  int status = -EINVAL;
  if (strncmp(path, SHARED, sizeof SHARED - 1) == 0)
    status = memory_open(path, size, memory);
  free(path);
  return status;
}

static int open_other(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                      size_t block_size, int numa) {
  struct iov_name name = {.block = block_size};
  char link[LINK_ROOM];
  if (!id || !mount_is_path(mount) || !buffer_is_size(size, block_size))
    return -EINVAL;
  struct buffer *buffer = calloc(1, sizeof *buffer);
  if (!buffer)
    return -ENOMEM;
  memcpy(name.id, id, sizeof name.id);
  client_link(mount, &name, link);
  int status = open_link(link, size, &buffer->memory);
  if (status != 0) {
    free(buffer);
    return status;
  }
  buffer_describe(iov, id, mount, size, block_size, numa);
  iov->base = buffer->memory.base;
  iov->iovh = buffer;
  return 0;
}

int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                  size_t block_size, int numa) {
  int status = iov ? open_other(iov, id, mount, size, block_size, numa) : -EINVAL;
  if (status != 0 && iov)
    memset(iov, 0, sizeof *iov);
  return status;
}

int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16], const char *mount,
                  size_t size, size_t block_size, int numa) {
  if (!iov || !base || !id || !mount_is_path(mount) || !buffer_is_size(size, block_size))
    return -EINVAL;
  buffer_describe(iov, id, mount, size, block_size, numa);
  iov->base = base;
  iov->iovh = NULL;
  memory_prefer(base, size, numa);
  return 0;
}

void hf3fs_iovunlink(struct hf3fs_iov *iov) {
  struct buffer *buffer = iov ? iov->iovh : NULL;
  if (buffer && !buffer->device)
    memory_unlink(&buffer->memory);
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) {
  struct buffer *buffer = iov ? iov->iovh : NULL;
  if (!buffer)
    return;
  if (buffer->mount)
    unlink(buffer->link);
  if (buffer->device) {
    device_end(buffer->device);
    free(buffer);
  } else {
    buffer_end(buffer);
  }
  iov->iovh = NULL;
  iov->base = NULL;
}
