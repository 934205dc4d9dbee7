/* SPDX-License-Identifier: MIT
 * dma-bufs: of udmabuf, or stand-ins for the emulated NIC. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

static int make_udmabuf(const struct range *range, CUdeviceptr address, size_t size) {
  int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (device < 0)
    return -1;
  struct udmabuf_create create = {.memfd = (uint32_t)range_file(range),
                                  .flags = UDMABUF_FLAGS_CLOEXEC,
                                  .offset = address - range->start,
                                  .size = size};
  int fd = ioctl(device, UDMABUF_CREATE, &create);
  close(device);
  return fd;
}

/* Under memory_lock. The memory must outlive it. */
struct stand_in {
  struct stand_in *next;
  dev_t device;
  ino_t file;
  char *view;
  size_t size;
};
static struct stand_in *stand_ins;

static bool is_file(const struct stand_in *one, const struct stat *file) {
  return one->device == file->st_dev && one->file == file->st_ino;
}

/* A registration of the emulated NIC holds a descriptor too. */
static bool is_live(const struct stand_in *one) {
  DIR *folder = opendir("/proc/self/fd");
  struct stat file;
  bool live = false;
  for (struct dirent *entry; folder && !live && (entry = readdir(folder));)
    live = fstatat(dirfd(folder), entry->d_name, &file, 0) == 0 && is_file(one, &file);
  if (folder)
    closedir(folder);
  return live;
}

/* The bytes of the live ones. */
static size_t count_live(void) {
  size_t bytes = 0;
  for (struct stand_in **at = &stand_ins; *at;) {
    struct stand_in *one = *at;
    if (is_live(one)) {
      bytes += one->size;
      at = &one->next;
    } else {
      *at = one->next;
      free(one);
    }
  }
  return bytes;
}

static CUresult make_stand_in(char *view, size_t size, int *descriptor) {
  size_t live = count_live();
  struct stat file;
  if (cuda_double.bar1 && live + size > cuda_double.bar1)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *descriptor = memfd_create("haul-cuda-dmabuf", 0); /* not close-on-exec */
  struct stand_in *one = malloc(sizeof *one);
  DEMAND(one && fstat(*descriptor, &file) == 0);
  *one = (struct stand_in){stand_ins, file.st_dev, file.st_ino, view, size};
  stand_ins = one;
  return CUDA_SUCCESS;
}

char *cuda_double_dmabuf(int descriptor, size_t *length) {
  struct stat file;
  char *view = NULL;
  if (fstat(descriptor, &file) != 0)
    return NULL;
  pthread_mutex_lock(&memory_lock);
  for (const struct stand_in *one = stand_ins; one; one = one->next)
    if (is_file(one, &file)) {
      view = one->view;
      *length = one->size;
    }
  pthread_mutex_unlock(&memory_lock);
  return view;
}

static CUresult make_dmabuf(const struct range *range, CUdeviceptr address, size_t size,
                            int *descriptor) {
  if (cuda_double.dmabuf == 2)
    return make_stand_in(range->view + (address - range->start), size, descriptor);
  if (cuda_double.dmabuf == 0 || range->kind == PLAIN) /* udmabuf needs a memfd */
    return CUDA_ERROR_NOT_SUPPORTED;
  *descriptor = make_udmabuf(range, address, size);
  return *descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* As cuda.h documents: whole pages of the host, within one allocation. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, int type,
                                       unsigned long long flags) {
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  int descriptor;
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(MAPPED | PLAIN, address, size);
  if (address % PAGE == 0 && size % PAGE == 0 && size > 0 && flags == 0 &&
      type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && range)
    code = make_dmabuf(range, address, size, &descriptor);
  if (code == CUDA_SUCCESS)
    memcpy(handle, &descriptor, sizeof descriptor);
  pthread_mutex_unlock(&memory_lock);
  return code;
}
