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

#define PIECES_MAX 64

static int make_udmabuf(CUdeviceptr address, CUdeviceptr end) {
  _Alignas(8) char room[sizeof(struct udmabuf_create_list) +
                        PIECES_MAX * sizeof(struct udmabuf_create_item)] = {0};
  struct udmabuf_create_list *all = (struct udmabuf_create_list *)(void *)room;
  struct piece piece;
  all->flags = UDMABUF_FLAGS_CLOEXEC;
  for (CUdeviceptr at = address; at < end; at += piece.bytes) {
    DEMAND(all->count < PIECES_MAX && find_piece(DEVICE_KINDS, at, end, &piece));
    all->list[all->count++] = (struct udmabuf_create_item){
        .memfd = (uint32_t)piece.fd, .offset = piece.offset, .size = piece.bytes};
  }
  int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (device < 0)
    return -1;
  int fd = ioctl(device, UDMABUF_CREATE_LIST, all);
  close(device);
  return fd;
}

/* Under memory_lock. Its view outlives the memory, like the pages of a real one. */
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

void drop_stand_ins(void) {
  for (struct stand_in **at = &stand_ins; *at;) {
    struct stand_in *one = *at;
    if (is_live(one)) {
      at = &one->next;
      continue;
    }
    *at = one->next;
    munmap(one->view, one->size);
    free(one);
  }
}

static size_t count_bytes(void) {
  size_t bytes = 0;
  for (const struct stand_in *one = stand_ins; one; one = one->next)
    bytes += one->size;
  return bytes;
}

static int make_stand_in(CUdeviceptr address, CUdeviceptr end) {
  struct stat file;
  int descriptor = memfd_create("haul-cuda-dmabuf", 0); /* not close-on-exec */
  struct stand_in *one = malloc(sizeof *one);
  DEMAND(one && ftruncate(descriptor, (off_t)(end - address)) == 0 &&
         fstat(descriptor, &file) == 0);
  *one = (struct stand_in){stand_ins, file.st_dev, file.st_ino,
                           map_pieces(DEVICE_KINDS, address, end), end - address};
  stand_ins = one;
  return descriptor;
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

/* Is there a page of the GPU at each address, of one GPU? */
static bool is_backed(CUdeviceptr address, CUdeviceptr end) {
  const struct range *first = NULL;
  struct piece piece;
  for (CUdeviceptr at = address; at < end; at += piece.bytes) {
    if (!find_piece(DEVICE_KINDS, at, end, &piece) || (first && piece.range->gpu != first->gpu))
      return false;
    first = first ? first : piece.range;
  }
  return true;
}

/* cuda.h: of one allocation, or of mappings with the same properties. */
static bool is_documented(CUdeviceptr address, CUdeviceptr end) {
  const struct range *first = find_range(DEVICE_KINDS, address, 1);
  for (const struct range *one = first; one && one->start + one->size < end;) {
    one = find_range(MAPPED, one->start + one->size, 1);
    if (!one || first->kind != MAPPED || one->allocation->rdma != first->allocation->rdma)
      return false;
  }
  return first;
}

static CUresult make_dmabuf(CUdeviceptr address, CUdeviceptr end, int *descriptor) {
  drop_stand_ins();
  if (cuda_double.dmabuf == 2 && cuda_double.bar1 &&
      count_bytes() + (end - address) > cuda_double.bar1)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (cuda_double.dmabuf == 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  *descriptor = cuda_double.dmabuf == 2 ? make_stand_in(address, end) : make_udmabuf(address, end);
  return *descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* Of whole pages of the host, up to the end of the GPU's last page with memory. This machine has no
 * mapping over PCIe, the one flag. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, int type,
                                       unsigned long long flags) {
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  int descriptor;
  pthread_mutex_lock(&memory_lock);
  bool good = address % PAGE == 0 && size % PAGE == 0 && size > 0 &&
              flags <= CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE &&
              type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && is_backed(address, address + size) &&
              (!cuda_double.strict || is_documented(address, address + size));
  if (good)
    code = flags ? CUDA_ERROR_NOT_SUPPORTED : make_dmabuf(address, address + size, &descriptor);
  if (code == CUDA_SUCCESS)
    memcpy(handle, &descriptor, sizeof descriptor);
  pthread_mutex_unlock(&memory_lock);
  return code;
}
