/* SPDX-License-Identifier: MIT
 * Memory: cuMemCreate makes a shareable memfd; addresses are reservations without access, and the
 * mock's own mappings are elsewhere. */
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

/* After the bytes of a memfd. */
struct label {
  char magic[16];
  uint64_t size;
  CUuuid uuid;
};
static const char magic[16] = "double of libcu";

struct allocation {
  struct allocation *next;
  int fd;
  size_t size;
  unsigned gpu;
  unsigned refs; /* of the handle and of each mapping */
  unsigned long long id;
  bool handle; /* not released by the caller */
};

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
struct range *ranges;
static unsigned long long buffers;

/* Lists; with the lock */

struct range *add_range(enum kind kind, CUdeviceptr start, size_t size) {
  struct range *range = calloc(1, sizeof *range);
  DEMAND(range != NULL);
  range->kind = kind;
  range->start = start;
  range->size = size;
  range->buffer = ++buffers;
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

static struct range *find_bytes(CUdeviceptr address, size_t bytes) {
  return find_range(MAPPED | PLAIN, address, bytes);
}

static void put_allocation(struct allocation *allocation) {
  struct allocation **at = &allocations;
  if (--allocation->refs > 0)
    return;
  while (*at != allocation)
    at = &(*at)->next;
  *at = allocation->next;
  close(allocation->fd);
  gpus[allocation->gpu].used -= allocation->size;
  free(allocation);
  atomic_fetch_sub(&cuda_double.allocations, 1);
}

static struct allocation *add_allocation(int fd, size_t size, unsigned gpu) {
  struct allocation *made = calloc(1, sizeof *made);
  DEMAND(made != NULL);
  *made = (struct allocation){allocations, fd, size, gpu, 1, ++buffers, true};
  allocations = made;
  gpus[gpu].used += size;
  atomic_fetch_add(&cuda_double.allocations, 1);
  return made;
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

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *how, unsigned long long flags) {
  if (!is_good(how) || size == 0 || size % GRAIN || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned gpu = (unsigned)how->location.id;
  pthread_mutex_lock(&memory_lock);
  int fd = has_room(gpu, size) ? make_file(size, gpu) : -1;
  if (fd >= 0)
    *handle = (uintptr_t)add_allocation(fd, size, gpu);
  pthread_mutex_unlock(&memory_lock);
  return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  pthread_mutex_lock(&memory_lock);
  struct allocation *allocation = allocation_of(handle);
  if (allocation) {
    allocation->handle = false;
    put_allocation(allocation);
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
  put_allocation(range->allocation);
  drop_range(range);
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
  if (allocation && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0) {
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
  *handle = (uintptr_t)add_allocation(fd, label.size, (unsigned)gpu);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  CUresult code;
  CUcontext context = current_idle(&code);
  if (!context)
    return code;
  if (size == 0 || flags > 7)
    return CUDA_ERROR_INVALID_VALUE;
  *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&memory_lock);
  add_range(PINNED, (uintptr_t)*address, size)->gpu = context->gpu;
  pthread_mutex_unlock(&memory_lock);
  atomic_fetch_add(&cuda_double.pinned, 1);
  return CUDA_SUCCESS;
}

static void end_pinned(struct range *range) {
  if (!range->theirs)
    munmap((void *)(uintptr_t)range->start, range->size);
  drop_range(range);
  atomic_fetch_sub(&cuda_double.pinned, 1);
}

static CUresult unpin(void *address, bool theirs, CUresult otherwise) {
  CUresult code;
  if (!current_idle(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PINNED, (uintptr_t)address, 1);
  bool good = range && range->start == (uintptr_t)address && range->theirs == theirs;
  if (good)
    end_pinned(range);
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : otherwise;
}

CUresult cuMemFreeHost(void *address) {
  return unpin(address, false, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostUnregister(void *address) {
  return unpin(address, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
  CUresult code;
  CUcontext context = current_idle(&code);
  if (!context)
    return code;
  if (!address || size == 0 || flags > 15)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_due(&cuda_double.pin))
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&memory_lock);
  bool again = find_range(PINNED, (uintptr_t)address, 1);
  if (!again) {
    struct range *range = add_range(PINNED, (uintptr_t)address, size);
    range->gpu = context->gpu;
    range->theirs = true;
    atomic_fetch_add(&cuda_double.pinned, 1);
  }
  pthread_mutex_unlock(&memory_lock);
  return again ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

/* Addresses of a destroyed context stay reserved, without memory. */
void memory_reset(unsigned gpu) {
  pthread_mutex_lock(&memory_lock);
  for (struct range *range = ranges, *next; range; range = next) {
    next = range->next;
    if (range->gpu == gpu && range->kind == PLAIN)
      end_plain(range);
    else if (range->gpu == gpu && range->kind == PINNED)
      end_pinned(range);
  }
  pthread_mutex_unlock(&memory_lock);
}

/* What cuda.h documents for RANGE_START_ADDR and RANGE_SIZE: the reservation of a mapping. It says
 * nothing of a mapping's BUFFER_ID, which is the reservation's here, so that a caller cannot tell
 * mappings apart by it. */
static const struct range *reservation_of(const struct range *range) {
  return range && range->kind == MAPPED ? find_range(RESERVED, range->start, range->size) : range;
}

static void write_attribute(int attribute, const struct range *range, void *value) {
  const struct range *reserved = reservation_of(range);
  bool mapped = range && range->kind != RESERVED;
  unsigned type = !range ? 0 : range->kind == PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)value = type;
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)value = mapped ? reserved->buffer : 0;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)value = 0;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)value = mapped ? (int)range->gpu : -2; /* the driver's value for no device */
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)value = range ? reserved->start : 0;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)value = range ? reserved->size : 0;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    *(CUdeviceptr *)value = mapped ? range->start : 0;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    *(size_t *)value = mapped ? range->size : 0;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    *(unsigned long long *)value = mapped && range->allocation ? range->allocation->id : 0;
    break;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned *)value = range && range->kind == PLAIN && !range->borrowed;
    break;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    *(unsigned *)value = range && range->synchronises;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned *)value = mapped;
    break;
  default:
    double_broken("cuPointerGetAttributes", "an attribute that the double does not know");
  }
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values,
                                CUdeviceptr address) {
  if (!initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  for (unsigned i = 0; i < count; i++)
    if (attributes[i] > (int)cuda_double.attributes)
      return CUDA_ERROR_INVALID_VALUE;
  atomic_fetch_add(&cuda_double.questions, count > 1);
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(MAPPED | PLAIN | PINNED, address, 1);
  if (!range)
    range = find_range(RESERVED, address, 1);
  for (unsigned i = 0; i < count; i++)
    write_attribute(attributes[i], range, values[i]);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

/* Memory of the virtual-memory calls refuses it. */
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
  unsigned wanted = *(const unsigned *)value;
  CUresult code;
  if (!current(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PLAIN, address, 1);
  bool good = range && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && wanted <= 1;
  if (good)
    range->synchronises = wanted;
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool is_pinned(const void *address) {
  pthread_mutex_lock(&memory_lock);
  bool pinned = find_range(PINNED, (uintptr_t)address, 1);
  pthread_mutex_unlock(&memory_lock);
  return pinned;
}

char *range_map(CUdeviceptr address, size_t bytes, unsigned gpu, bool write, struct range **out) {
  int needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  char *view = NULL;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_bytes(address, bytes);
  bool may =
      range && (range->kind == PLAIN ? range->gpu == gpu : (range->rights[gpu] & needed) == needed);
  if (may) {
    atomic_fetch_add(&range->users, 1);
    view = range->view + (address - range->start);
    *out = range;
  }
  pthread_mutex_unlock(&memory_lock);
  return view;
}

void range_release(struct range *range) {
  if (range)
    atomic_fetch_sub(&range->users, 1);
}

int range_file(const struct range *range) {
  return range->allocation ? range->allocation->fd : -1;
}

bool cuda_double_address(unsigned long long address, size_t length, char **view) {
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_bytes(address, length);
  bool gpu = range || find_range(MAPPED | PLAIN | RESERVED, address, 1);
  *view = range ? range->view + (address - range->start) : NULL;
  pthread_mutex_unlock(&memory_lock);
  return gpu;
}
