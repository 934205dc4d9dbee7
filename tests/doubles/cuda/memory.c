/* SPDX-License-Identifier: MIT
 * Memory: lists, and the virtual-memory calls. All memory of GPUs is memfds; addresses are
 * reservations without access, and the mock's own mappings are elsewhere. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

static const char magic[16] = "double of libcu";

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
struct range *ranges;
static unsigned long long numbers;

/* Lists; with the lock */

struct range *add_range(enum kind kind, CUdeviceptr start, size_t size) {
  struct range *range = calloc(1, sizeof *range);
  DEMAND(range != NULL);
  range->kind = kind;
  range->start = start;
  range->size = size;
  range->buffer = ++numbers;
  range->next = ranges;
  ranges = range;
  return range;
}

void drop_range(struct range *range) {
  struct range **at = &ranges;
  DEMAND(atomic_load(&range->users) == 0);
  while (*at != range)
    at = &(*at)->next;
  *at = range->next;
  free(range);
}

struct range *find_range(unsigned kinds, CUdeviceptr address, size_t bytes) {
  struct range *range = ranges;
  while (range && !(range->kind & kinds && address >= range->start && bytes <= range->size &&
                    address - range->start <= range->size - bytes))
    range = range->next;
  return range;
}

void put_allocation(struct allocation *allocation) {
  struct allocation **at = &allocations;
  if (--allocation->refs > 0)
    return;
  while (*at != allocation)
    at = &(*at)->next;
  *at = allocation->next;
  if (allocation->fd != gpus[allocation->gpu].file)
    close(allocation->fd);
  else
    fallocate(allocation->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)allocation->at,
              (off_t)(allocation->size + PAGE));
  if (allocation->base)
    munmap((void *)(uintptr_t)allocation->base, allocation->size);
  if (allocation->view)
    munmap(allocation->view, allocation->size + PAGE);
  if (!allocation->borrowed)
    gpus[allocation->gpu].used -= allocation->size;
  free(allocation);
}

struct allocation *add_allocation(int fd, size_t size, unsigned gpu) {
  struct allocation *made = calloc(1, sizeof *made);
  DEMAND(made != NULL);
  *made = (struct allocation){
      .next = allocations, .fd = fd, .size = size, .gpu = gpu, .refs = 1, .id = ++numbers};
  allocations = made;
  gpus[gpu].used += size;
  return made;
}

struct allocation *next_allocation(const struct allocation *after) {
  return after ? after->next : allocations;
}

static struct allocation *allocation_of(CUmemGenericAllocationHandle handle) {
  struct allocation *one = allocations;
  while (one && (uintptr_t)one != handle)
    one = one->next;
  return one && one->handle ? one : NULL;
}

bool has_room(unsigned gpu, size_t size) {
  size_t used = gpus[gpu].used;
  return !is_due(&cuda_double.create) && size <= cuda_double.memory &&
         used <= cuda_double.memory - size;
}

void *reserve_space(size_t size) {
  char *got =
      mmap(NULL, size + GRAIN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED)
    return NULL;
  size_t before = (GRAIN - (uintptr_t)got % GRAIN) % GRAIN;
  if (before)
    munmap(got, before);
  munmap(got + before + size, GRAIN - before);
  return got + before;
}

static int make_file(size_t size, unsigned gpu) {
  struct label label = {.size = size, .uuid = gpus[gpu].uuid};
  memcpy(label.magic, magic, sizeof label.magic);
  int fd = memfd_create("haul-cuda-double", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd >= 0 && (ftruncate(fd, (off_t)(size + PAGE)) != 0 ||
                  pwrite(fd, &label, sizeof label, (off_t)size) != (ssize_t)sizeof label ||
                  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

CUdeviceptr pages_of(const struct range *range, size_t *bytes) {
  *bytes = range->kind == MAPPED ? range->size : range->allocation->size;
  return range->kind == MAPPED ? range->start : range->allocation->base;
}

bool find_piece(unsigned kinds, CUdeviceptr at, CUdeviceptr end, struct piece *piece) {
  for (const struct range *range = ranges; range; range = range->next) {
    size_t bytes;
    if (!(range->kind & kinds))
      continue;
    CUdeviceptr base = pages_of(range, &bytes);
    if (at < base || at - base >= bytes)
      continue;
    size_t left = bytes - (at - base);
    *piece = (struct piece){range, range->allocation->fd, range->allocation->at + (at - base),
                            end - at < left ? end - at : left};
    return true;
  }
  return false;
}

char *map_pieces(unsigned kinds, CUdeviceptr from, CUdeviceptr end) {
  char *view = mmap(NULL, end - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct piece piece;
  DEMAND(view != MAP_FAILED);
  for (CUdeviceptr at = from; at < end; at += piece.bytes) {
    DEMAND(find_piece(kinds, at, end, &piece));
    DEMAND(mmap(view + (at - from), piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                piece.fd, (off_t)piece.offset) != MAP_FAILED);
  }
  return view;
}

static bool is_good(const CUmemAllocationProp *how) {
  static const unsigned char zeros[4];
  return how && how->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         (how->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0 &&
         how->location.type == CU_MEM_LOCATION_TYPE_DEVICE && how->location.id >= 0 &&
         (unsigned)how->location.id < gpu_count && !how->win32HandleMetaData &&
         how->allocFlags.gpuDirectRDMACapable <= 1 &&
         memcmp(how->allocFlags.reserved, zeros, sizeof zeros) == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *how, int option) {
  if (!is_good(how) || option < 0 || option > 1)
    return CUDA_ERROR_INVALID_VALUE;
  *bytes = GRAIN;
  return CUDA_SUCCESS;
}

static CUmemGenericAllocationHandle give_handle(struct allocation *allocation) {
  allocation->handle = true;
  atomic_fetch_add(&cuda_double.allocations, 1);
  return (uintptr_t)allocation;
}

/* The last user of an allocation of the virtual-memory calls. */
static void put_shared(struct allocation *allocation) {
  atomic_fetch_sub(&cuda_double.allocations, allocation->refs == 1);
  put_allocation(allocation);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *how, unsigned long long flags) {
  if (!is_good(how) || size == 0 || size % GRAIN || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned gpu = (unsigned)how->location.id;
  pthread_mutex_lock(&memory_lock);
  int fd = has_room(gpu, size) ? make_file(size, gpu) : -1;
  if (fd >= 0) {
    struct allocation *made = add_allocation(fd, size, gpu);
    made->types = how->requestedHandleTypes;
    made->rdma = how->allocFlags.gpuDirectRDMACapable;
    *handle = give_handle(made);
  }
  pthread_mutex_unlock(&memory_lock);
  return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  pthread_mutex_lock(&memory_lock);
  struct allocation *allocation = allocation_of(handle);
  if (allocation) {
    allocation->handle = false;
    put_shared(allocation);
  }
  pthread_mutex_unlock(&memory_lock);
  return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
  (void)wish;
  if (size == 0 || size % GRAIN || alignment & (alignment - 1) || alignment > GRAIN || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  void *got = reserve_space(size);
  if (!got)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&memory_lock);
  add_range(RESERVED, *address = (uintptr_t)got, size);
  pthread_mutex_unlock(&memory_lock);
  atomic_fetch_add(&cuda_double.reservations, 1);
  return CUDA_SUCCESS;
}

static bool is_free(CUdeviceptr address, size_t size) {
  for (struct range *range = ranges; range; range = range->next)
    if (range->kind == MAPPED && address < range->start + range->size &&
        range->start < address + size)
      return false;
  return true;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(RESERVED, address, size);
  bool good = range && range->start == address && range->size == size && is_free(address, size);
  if (good) {
    munmap((void *)(uintptr_t)address, size);
    drop_range(range);
    atomic_fetch_sub(&cuda_double.reservations, 1);
  }
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&memory_lock);
  struct allocation *allocation = allocation_of(handle);
  if (allocation && find_range(RESERVED, address, size) && is_free(address, size) && offset == 0 &&
      flags == 0 && size % GRAIN == 0 && size <= allocation->size) {
    void *view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation->fd, 0);
    code = view == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (code == CUDA_SUCCESS) {
      struct range *range = add_range(MAPPED, address, size);
      range->gpu = allocation->gpu;
      range->view = view;
      range->allocation = allocation;
      allocation->refs++;
      atomic_fetch_add(&cuda_double.mappings, 1);
    }
  }
  pthread_mutex_unlock(&memory_lock);
  return code;
}

static void end_mapping(struct range *range) {
  munmap(range->view, range->size);
  put_shared(range->allocation);
  drop_range(range);
  drop_stand_ins();
  atomic_fetch_sub(&cuda_double.mappings, 1);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(MAPPED, address, size);
  bool good = range && range->start == address && range->size == size;
  if (good)
    end_mapping(range);
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                        size_t count) {
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(MAPPED, address, size);
  bool good = range && range->start == address && range->size == size && count > 0;
  for (size_t i = 0; i < count && good; i++)
    good = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && access[i].location.id >= 0 &&
           (unsigned)access[i].location.id < gpu_count &&
           (access[i].flags == 0 || access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
            access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (size_t i = 0; i < count && good; i++)
    range->rights[access[i].location.id] = access[i].flags;
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The descriptor is not close-on-exec. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      int type, unsigned long long flags) {
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&memory_lock);
  struct allocation *allocation = allocation_of(handle);
  if (allocation && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0 &&
      allocation->types & type) {
    int fd = dup(allocation->fd);
    memcpy(shareable, &fd, sizeof fd);
    code = fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_mutex_unlock(&memory_lock);
  return code;
}

static bool read_label(int fd, struct label *label) {
  struct stat file;
  return fcntl(fd, F_GET_SEALS) >= 0 && fstat(fd, &file) == 0 && file.st_size > (off_t)PAGE &&
         pread(fd, label, sizeof *label, file.st_size - (off_t)PAGE) == (ssize_t)sizeof *label &&
         memcmp(label->magic, magic, sizeof magic) == 0 &&
         label->size == (uint64_t)file.st_size - PAGE;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        int type) {
  struct label label;
  int theirs = (int)(intptr_t)shareable;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_label(theirs, &label))
    return CUDA_ERROR_INVALID_VALUE;
  int gpu = gpu_by_uuid(&label.uuid);
  if (gpu < 0)
    return CUDA_ERROR_INVALID_DEVICE;
  int fd = fcntl(theirs, F_DUPFD_CLOEXEC, 3);
  if (fd < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&memory_lock);
  *handle = give_handle(add_allocation(fd, label.size, (unsigned)gpu));
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

/* Addresses of a destroyed context stay reserved, without memory. */
void memory_reset(unsigned gpu) {
  pthread_mutex_lock(&memory_lock);
  for (struct range *range = ranges, *next; range; range = next) {
    next = range->next;
    if (range->gpu == gpu && range->kind & (PLAIN | POOL))
      end_plain(range);
    else if (range->gpu == gpu && range->kind == PINNED)
      end_pinned(range);
  }
  pthread_mutex_unlock(&memory_lock);
}

/* Copies: ranges in use */

static bool may_access(const struct range *range, unsigned gpu, bool write) {
  int needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return range->kind == MAPPED ? (range->rights[gpu] & needed) == needed : range->gpu == gpu;
}

/* Counts a user more or less of each mapping in the range. */
static void use_mappings(CUdeviceptr from, CUdeviceptr end, int by) {
  for (struct range *range = ranges; range; range = range->next)
    if (range->kind == MAPPED && range->start < end && from < range->start + range->size)
      atomic_fetch_add(&range->users, (unsigned)by);
}

/* A range that is in no list, over several mappings side by side. NULL: there is a hole, or one may
 * not be accessed. */
static struct range *join_mappings(CUdeviceptr address, size_t bytes, unsigned gpu, bool write) {
  CUdeviceptr from = address / PAGE * PAGE, end = (address + bytes + PAGE - 1) / PAGE * PAGE;
  struct piece piece;
  for (CUdeviceptr at = from; at < end; at += piece.bytes)
    if (!find_piece(MAPPED, at, end, &piece) || !may_access(piece.range, gpu, write))
      return NULL;
  struct range *joined = calloc(1, sizeof *joined);
  DEMAND(joined != NULL);
  joined->start = from;
  joined->size = end - from;
  joined->view = map_pieces(MAPPED, from, end);
  use_mappings(from, end, 1);
  return joined;
}

char *range_map(CUdeviceptr address, size_t bytes, unsigned gpu, bool write, struct range **out) {
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(DEVICE_KINDS, address, bytes);
  if (!range)
    range = join_mappings(address, bytes, gpu, write);
  else if (may_access(range, gpu, write))
    atomic_fetch_add(&range->users, 1);
  else
    range = NULL;
  char *view = range ? range->view + (address - range->start) : NULL;
  if (range)
    *out = range;
  pthread_mutex_unlock(&memory_lock);
  return view;
}

void range_release(struct range *range) {
  if (!range)
    return;
  if (range->kind) {
    atomic_fetch_sub(&range->users, 1);
    return;
  }
  pthread_mutex_lock(&memory_lock);
  use_mappings(range->start, range->start + range->size, -1);
  pthread_mutex_unlock(&memory_lock);
  munmap(range->view, range->size);
  free(range);
}

bool cuda_double_address(unsigned long long address, size_t length, char **view) {
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(DEVICE_KINDS, address, length);
  bool gpu = range || find_range(DEVICE_KINDS | RESERVED, address, 1);
  *view = range ? range->view + (address - range->start) : NULL;
  pthread_mutex_unlock(&memory_lock);
  return gpu;
}
