/* SPDX-License-Identifier: MIT
 * Memory of cuMemAlloc and of pools, and legacy IPC. An allocation has whole pages of the GPU;
 * small ones share a page, in steps of 1 KiB. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

#define STEP  ((size_t)1 << 10)
#define SMALL (GRAIN / 2)

static size_t round_up(size_t size, size_t step) {
  return (size + step - 1) / step * step;
}

static struct label *label_of(const struct allocation *allocation) {
  return (struct label *)(void *)(allocation->view + allocation->size);
}

static uint64_t opener_of(const struct range *range, pid_t process) {
  return (uint64_t)process << 32 | (range->start - range->allocation->base) / STEP;
}

static void swap_opener(const struct range *range, uint64_t from, uint64_t to) {
  for (size_t i = 0; i < OPENERS; i++) {
    uint64_t seen = from;
    if (atomic_compare_exchange_strong(&label_of(range->allocation)->openers[i], &seen, to))
      return;
  }
  double_broken(__func__, "more processes than the double can count");
}

/* Ignores dead processes. */
static bool is_open_elsewhere(const struct range *range) {
  for (size_t i = 0; i < OPENERS; i++) {
    uint64_t opener = atomic_load(&label_of(range->allocation)->openers[i]);
    pid_t process = (pid_t)(opener >> 32);
    if (opener && opener == opener_of(range, process) && kill(process, 0) == 0)
      return true;
  }
  return false;
}

/* Gives the pages an address and a view. Takes the allocation. */
static struct allocation *place(struct allocation *allocation) {
  size_t size = allocation->size;
  void *view = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, allocation->fd,
                    (off_t)allocation->at);
  if (view != MAP_FAILED)
    allocation->view = view;
  allocation->base = (uintptr_t)reserve_space(size);
  if (allocation->view && allocation->base)
    return allocation;
  put_allocation(allocation);
  return NULL;
}

static struct range *add_plain(struct allocation *allocation, size_t at, size_t size) {
  struct range *range = add_range(allocation->kind, allocation->base + at, size);
  range->gpu = allocation->gpu;
  range->view = allocation->view + at;
  range->allocation = allocation;
  return range;
}

/* A range that overlaps [from, end) of the pages, or has its last step there; NULL: there is none.
 */
static const struct range *find_overlap(const struct allocation *pages, size_t from, size_t end) {
  for (const struct range *one = ranges; one; one = one->next) {
    size_t start = one->start - pages->base;
    if (one->allocation == pages && start < end && from < start + round_up(one->size, STEP))
      return one;
  }
  return NULL;
}

/* Shared pages with a gap of `size` bytes, and its place; NULL: there are none. */
static struct allocation *find_shared(enum kind kind, size_t size, unsigned gpu, size_t *at) {
  for (struct allocation *one = next_allocation(NULL); one; one = next_allocation(one)) {
    const struct range *there = NULL;
    if (one->kind != kind || one->gpu != gpu || !one->small)
      continue;
    for (*at = 0; *at + size <= GRAIN; *at = there->start - one->base + round_up(there->size, STEP))
      if (!(there = find_overlap(one, *at, *at + size)))
        return one;
  }
  return NULL;
}

static size_t next_place; /* in the GPUs' files; none is used again */

/* With a reference. NULL: there is no memory. */
static struct allocation *find_pages(enum kind kind, size_t size, unsigned gpu, size_t *at) {
  bool small = size <= SMALL;
  struct allocation *pages = small ? find_shared(kind, size, gpu, at) : NULL;
  size_t more = pages ? 0 : round_up(size, GRAIN);
  if (!has_room(gpu, more))
    return NULL;
  if (pages) {
    pages->refs++;
    return pages;
  }
  *at = 0;
  pages = add_allocation(gpus[gpu].file, more, gpu);
  pages->at = next_place;
  next_place += more + PAGE;
  pages->kind = kind;
  pages->small = small;
  return place(pages);
}

static CUresult take(enum kind kind, CUdeviceptr *address, size_t size) {
  CUresult code;
  CUcontext context = kind == PLAIN ? current_to_begin(&code) : current(&code);
  size_t at;
  if (!context)
    return code;
  if (size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&memory_lock);
  struct allocation *pages = find_pages(kind, size, context->gpu, &at);
  if (pages) {
    *address = add_plain(pages, at, size)->start;
    atomic_fetch_add(&cuda_double.allocations, 1);
  }
  pthread_mutex_unlock(&memory_lock);
  return pages ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
  return take(PLAIN, address, size);
}

/* At once, not when the stream comes to it. */
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
  (void)stream;
  return take(POOL, address, size);
}

void end_plain(struct range *range) {
  atomic_fetch_sub(range->allocation->borrowed ? &cuda_double.mappings : &cuda_double.allocations,
                   1);
  put_allocation(range->allocation);
  drop_range(range);
  drop_stand_ins();
}

static bool may_free(const struct range *range, CUdeviceptr address) {
  return range && range->start == address &&
         (range->kind == PINNED ? range->managed : !range->allocation->borrowed);
}

static CUresult give_back(CUdeviceptr address) {
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PLAIN | POOL | PINNED, address, 1);
  bool good = may_free(range, address);
  /* Undefined according to cuIpcCloseMemHandle. */
  DEMAND(!good || range->kind != PLAIN || !is_open_elsewhere(range));
  if (good && range->kind == PINNED)
    end_pinned(range);
  else if (good)
    end_plain(range);
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  CUresult code;
  return current_to_end(&code) ? give_back(address) : code;
}

/* Waits for the stream instead of leaving the rest to it. */
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  CUresult code = cuStreamSynchronize(stream);
  return code == CUDA_SUCCESS ? give_back(address) : code;
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *all) {
  CUresult code;
  CUcontext context = current(&code);
  if (!context)
    return code;
  *all = cuda_double.memory;
  *left = *all - gpus[context->gpu].used;
  return CUDA_SUCCESS;
}

struct token {
  unsigned magic, at; /* at: in its pages, in steps */
  unsigned long long number;
  pid_t process;
  int fd;
  size_t place, whole, size; /* of the pages in the file, and of the memory */
  CUuuid uuid;
};
_Static_assert(sizeof(struct token) <= sizeof(CUipcMemHandle), "it fits");
#define TOKEN_MAGIC 0x6c62756fu

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  CUresult code;
  if (!current(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  const struct range *range = find_range(PLAIN, address, 1);
  bool good = range && !range->allocation->borrowed;
  if (good) {
    const struct allocation *pages = range->allocation;
    const struct token token = {.magic = TOKEN_MAGIC,
                                .at = (unsigned)((range->start - pages->base) / STEP),
                                .number = range->buffer,
                                .process = getpid(),
                                .fd = pages->fd,
                                .place = pages->at,
                                .whole = pages->size,
                                .size = range->size,
                                .uuid = gpus[range->gpu].uuid};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &token, sizeof token);
  }
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct range *find_borrowed(const CUipcMemHandle *handle) {
  struct range *range = ranges;
  while (range && !(range->opens > 0 && memcmp(&range->ipc, handle, sizeof *handle) == 0))
    range = range->next;
  return range;
}

static int open_file(const struct token *token) {
  char path[64];
  struct stat status;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)token->process, token->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0 || (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                 (size_t)status.st_size > token->place + token->whole))
    return fd;
  close(fd);
  return -1;
}

/* With the lock. */
static struct range *borrow(const struct token *token, unsigned gpu) {
  int fd = open_file(token);
  if (fd < 0)
    return NULL;
  struct allocation *pages = add_allocation(fd, token->whole, gpu);
  pages->kind = PLAIN;
  pages->at = token->place;
  pages->borrowed = true;
  gpus[gpu].used -= token->whole;
  if (!(pages = place(pages)))
    return NULL;
  struct range *range = add_plain(pages, token->at * STEP, token->size);
  swap_opener(range, 0, opener_of(range, getpid()));
  atomic_fetch_add(&cuda_double.mappings, 1);
  return range;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
  CUresult code;
  struct token token;
  if (!current(&code))
    return code;
  memcpy(&token, &handle, sizeof token);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  if (token.magic != TOKEN_MAGIC || token.whole > (size_t)1 << 40 ||
      token.at * STEP + token.size > token.whole)
    return CUDA_ERROR_INVALID_HANDLE;
  if (token.process == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;
  int gpu = gpu_by_uuid(&token.uuid);
  if (gpu < 0)
    return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_borrowed(&handle);
  if (!range && (range = borrow(&token, (unsigned)gpu)))
    range->ipc = handle;
  if (range) {
    range->opens++;
    *address = range->start;
  }
  pthread_mutex_unlock(&memory_lock);
  return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  CUresult code;
  if (!current(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PLAIN, address, 1);
  bool good = range && range->start == address && range->opens > 0;
  if (good && --range->opens == 0) {
    swap_opener(range, opener_of(range, getpid()), 0);
    end_plain(range);
  }
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
