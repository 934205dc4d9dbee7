/* SPDX-License-Identifier: MIT
 * Buffers in shared memory: files in /dev/shm, mapped. */
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "client.h"

#define NUMA_NODES 1024 /* the most that a kernel can be configured for */

int random_id(uint8_t id[16]) {
  ssize_t got = TEMP_FAILURE_RETRY(getrandom(id, 16, 0));
  if (got != 16)
    return got < 0 ? -errno : -EIO;
  id[6] = (uint8_t)((id[6] & 0x0f) | 0x40); /* RFC 9562: version 4, random */
  id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
  return 0;
}

/* For pages that are not allocated yet. */
static void prefer_node(void *base, size_t size, int numa) {
  unsigned long nodes[NUMA_NODES / (8 * sizeof(unsigned long))] = {0};
  const unsigned bits = 8 * sizeof *nodes;
  if (numa < 0 || numa >= NUMA_NODES)
    return;
  nodes[(unsigned)numa / bits] = 1ul << (unsigned)numa % bits;
  /* The kernel takes whole pages, and uses one bit less than it is given. */
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t first = (uintptr_t)base & ~(page - 1);
  syscall(SYS_mbind, first, (uintptr_t)base + size - first, MPOL_PREFERRED, nodes, NUMA_NODES + 1ul,
          0);
}

static int map_file(int file, size_t size, struct buffer *buffer) {
  void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED)
    return -errno;
  buffer->base = base;
  buffer->size = size;
  return 0;
}

/* A program would get SIGBUS at the first page that /dev/shm has no room for. */
static int check_room(int file, size_t size) {
  struct statvfs shm;
  if (fstatvfs(file, &shm) != 0)
    return -errno;
  bool limited = shm.f_blocks > 0;
  size_t blocks = size / shm.f_frsize + (size % shm.f_frsize > 0);
  return limited && blocks > shm.f_bavail ? -ENOSPC : 0;
}

/* A new zeroed file, which this user alone may open. */
static int make_memory(struct buffer *buffer, const uint8_t id[16], size_t size, int numa) {
  struct iov_name name = {0};
  char text[IOV_NAME_ROOM];
  if (size > INT64_MAX)
    return -EINVAL;
  memcpy(name.id, id, sizeof name.id);
  iov_name_format(&name, text);
  snprintf(buffer->path, sizeof buffer->path, SHM_DIR SHM_PREFIX "%.36s", text);
  int file = open(buffer->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0)
    return -errno;
  int status = check_room(file, size);
  if (status == 0 && ftruncate(file, (off_t)size) != 0)
    status = -errno;
  if (status == 0)
    status = map_file(file, size, buffer);
  close(file);
  if (status == 0) {
    prefer_node(buffer->base, size, numa);
    madvise(buffer->base, size, MADV_HUGEPAGE); /* needs a /dev/shm with huge=advise */
  } else {
    unlink(buffer->path);
  }
  return status;
}

/* Maps another process's file, which must have that many bytes. */
static int open_memory(struct buffer *buffer, const char *path, size_t size) {
  struct stat found;
  int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return -errno;
  int status = fstat(file, &found) == 0 ? 0 : -errno;
  if (status == 0 && (!S_ISREG(found.st_mode) || found.st_size < 0 || size > (size_t)found.st_size))
    status = -EINVAL;
  if (status == 0)
    status = map_file(file, size, buffer);
  close(file);
  return status;
}

static void format_link(const char *mount, const struct iov_name *name, char link[LINK_ROOM]) {
  int length = snprintf(link, LINK_ROOM, "%s/" CONTROL_IOVS "/", mount);
  iov_name_format(name, link + length);
}

int buffer_new(const char *mount, const struct iov_name *name, size_t size, int numa,
               struct buffer **out) {
  struct buffer *buffer = calloc(1, sizeof *buffer);
  if (!buffer)
    return -ENOMEM;
  int status = make_memory(buffer, name->id, size, numa);
  if (status != 0) {
    free(buffer);
    return status;
  }
  status = mount_get(mount, &buffer->mount);
  if (status != 0) {
    buffer_free(buffer);
    return status;
  }
  format_link(mount, name, buffer->link);
  *out = buffer;
  return 0;
}

int buffer_register(const struct buffer *buffer) {
  return symlink(buffer->path, buffer->link) == 0 ? 0 : -errno;
}

void buffer_unlink(struct buffer *buffer) {
  if (buffer->path[0])
    unlink(buffer->path);
  buffer->path[0] = '\0';
}

void buffer_free(struct buffer *buffer) {
  buffer_unlink(buffer);
  munmap(buffer->base, buffer->size);
  if (buffer->mount)
    mount_put(buffer->mount);
  free(buffer);
}

bool buffer_is_size(size_t size, size_t block_size) {
  return size > 0 && size <= INT64_MAX && block_size <= size;
}

int buffer_finish(struct hf3fs_iov *iov, int code) {
  if (code != 0 && iov)
    memset(iov, 0, sizeof *iov);
  return code;
}

void buffer_describe(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                     size_t block_size, int numa) {
  memmove(iov->id, id, sizeof iov->id);
  memmove(iov->mount_point, mount, strlen(mount) + 1);
  iov->size = size;
  iov->block_size = block_size;
  iov->numa = numa;
}

static int create_iov(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                      int numa) {
  struct buffer *buffer;
  struct iov_name name = {.block = block_size};
  if (!mount_is_path(mount) || !buffer_is_size(size, block_size))
    return -EINVAL;
  int status = random_id(name.id);
  if (status == 0)
    status = buffer_new(mount, &name, size, numa, &buffer);
  if (status != 0)
    return status;
  status = buffer_register(buffer);
  if (status != 0) {
    buffer_free(buffer);
    return status;
  }
  buffer_describe(iov, name.id, mount, size, block_size, numa);
  iov->base = buffer->base;
  iov->iovh = buffer;
  return 0;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size,
                    int numa) {
  return buffer_finish(iov, iov ? create_iov(iov, mount, size, block_size, numa) : -EINVAL);
}

/* Follows the link in this process's own view of the file system. */
static int open_link(struct buffer *buffer, const char *link, size_t size) {
  char *path = realpath(link, NULL);
  if (!path)
    return -errno;
  int status = -EINVAL;
  if (strncmp(path, SHM_DIR, sizeof SHM_DIR - 1) == 0)
    status = open_memory(buffer, path, size);
  free(path);
  return status;
}

static int open_iov(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                    size_t block_size, int numa) {
  struct iov_name name = {.block = block_size};
  char link[LINK_ROOM];
  if (!id || !mount_is_path(mount) || !buffer_is_size(size, block_size))
    return -EINVAL;
  struct buffer *buffer = calloc(1, sizeof *buffer);
  if (!buffer)
    return -ENOMEM;
  memcpy(name.id, id, sizeof name.id);
  format_link(mount, &name, link);
  int status = open_link(buffer, link, size);
  if (status != 0) {
    free(buffer);
    return status;
  }
  buffer_describe(iov, id, mount, size, block_size, numa);
  iov->base = buffer->base;
  iov->iovh = buffer;
  return 0;
}

int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *mount, size_t size,
                  size_t block_size, int numa) {
  return buffer_finish(iov, iov ? open_iov(iov, id, mount, size, block_size, numa) : -EINVAL);
}

int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16], const char *mount,
                  size_t size, size_t block_size, int numa) {
  if (!iov || !base || !id || !mount_is_path(mount) || !buffer_is_size(size, block_size))
    return -EINVAL;
  buffer_describe(iov, id, mount, size, block_size, numa);
  iov->base = base;
  iov->iovh = NULL;
  prefer_node(base, size, numa);
  return 0;
}

void hf3fs_iovunlink(struct hf3fs_iov *iov) {
  struct buffer *buffer = iov ? iov->iovh : NULL;
  if (buffer && !buffer->device)
    buffer_unlink(buffer);
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) {
  struct buffer *buffer = iov ? iov->iovh : NULL;
  if (!buffer)
    return;
  if (buffer->mount)
    unlink(buffer->link);
  if (buffer->device) {
    device_free(buffer->device);
    free(buffer);
  } else {
    buffer_free(buffer);
  }
  iov->iovh = NULL;
  iov->base = NULL;
}
