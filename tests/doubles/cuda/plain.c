/* SPDX-License-Identifier: MIT
 * Plain memory (cuMemAlloc), which becomes a memfd when it is exported, and legacy IPC. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

static size_t room_of(size_t size) {
  return (size + 2 * PAGE) / PAGE * PAGE;
}

#define OPENERS (PAGE / sizeof(pid_t))

/* Pids of the processes that have it open, after its bytes. */
static _Atomic pid_t *openers_of(const struct range *range) {
  return (_Atomic pid_t *)(void *)(range->view - 512 + room_of(range->size));
}

static void swap_opener(const struct range *range, pid_t from, pid_t to) {
  for (size_t i = 0; i < OPENERS; i++) {
    pid_t seen = from;
    if (atomic_compare_exchange_strong(&openers_of(range)[i], &seen, to))
      return;
  }
  double_broken(__func__, "more processes than the double can count");
}

/* Ignores dead processes. */
static bool is_open_elsewhere(const struct range *range) {
  for (size_t i = 0; i < OPENERS; i++) {
    pid_t opener = atomic_load(&openers_of(range)[i]);
    if (opener && kill(opener, 0) == 0)
      return true;
  }
  return false;
}

/* Suballocated from a larger block, like in the driver. */
static struct range *add_plain(int fd, size_t size, unsigned gpu) {
  size_t room = room_of(size);
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void *view = mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE, flags, fd, 0);
  void *base = view == MAP_FAILED ? NULL : reserve_space(room);
  if (!base) {
    if (view != MAP_FAILED)
      munmap(view, room + PAGE);
    return NULL;
  }
  struct range *range = add_range(PLAIN, (uintptr_t)base + 512, size);
  range->gpu = gpu;
  range->view = (char *)view + 512;
  range->base = base;
  range->fd = fd;
  return range;
}

static void drop_plain(struct range *range) {
  munmap(range->base, room_of(range->size));
  munmap(range->view - 512, room_of(range->size) + PAGE);
  drop_range(range);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
  CUresult code;
  CUcontext context = current_idle(&code);
  if (!context)
    return code;
  if (size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&memory_lock);
  struct range *range = has_room(context->gpu, size) ? add_plain(-1, size, context->gpu) : NULL;
  if (range) {
    gpus[context->gpu].used += size;
    *address = range->start;
    atomic_fetch_add(&cuda_double.allocations, 1);
  }
  pthread_mutex_unlock(&memory_lock);
  return range ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void end_plain(struct range *range) {
  bool borrowed = range->borrowed;
  if (range->fd >= 0)
    close(range->fd);
  if (!borrowed)
    gpus[range->gpu].used -= range->size;
  atomic_fetch_sub(borrowed ? &cuda_double.mappings : &cuda_double.allocations, 1);
  drop_plain(range);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  CUresult code;
  if (!current_idle(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PLAIN, address, 1);
  bool good = range && range->start == address && !range->borrowed;
  DEMAND(!good || !is_open_elsewhere(range)); /* undefined according to cuIpcCloseMemHandle */
  if (good)
    end_plain(range);
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct token {
  unsigned long long magic, number;
  pid_t process;
  int fd;
  size_t size;
  CUuuid uuid;
};
_Static_assert(sizeof(struct token) <= sizeof(CUipcMemHandle), "it fits");
#define TOKEN_MAGIC 0x6c62756f64637069ULL

/* With the lock, which is dropped while copies use the range. */
static bool move_to_file(struct range *range) {
  size_t whole = room_of(range->size) + PAGE;
  char *from = range->view - 512;
  while (atomic_load(&range->users) > 0) {
    pthread_mutex_unlock(&memory_lock);
    sched_yield();
    pthread_mutex_lock(&memory_lock);
  }
  int fd = memfd_create("cuda-double-shared", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)whole) != 0 || pwrite(fd, from, whole, 0) != (ssize_t)whole ||
      mmap(from, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    if (fd >= 0)
      close(fd);
    return false;
  }
  range->fd = fd;
  return true;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  CUresult code;
  if (!current(&code))
    return code;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_range(PLAIN, address, 1);
  bool good = range && !range->borrowed && (range->fd >= 0 || move_to_file(range));
  if (good) {
    struct token token = {TOKEN_MAGIC, range->buffer, getpid(),
                          range->fd,   range->size,   gpus[range->gpu].uuid};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &token, sizeof token);
  }
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct range *find_borrowed(const CUipcMemHandle *handle) {
  struct range *range = ranges;
  while (range && !(range->borrowed && memcmp(&range->handle, handle, sizeof *handle) == 0))
    range = range->next;
  return range;
}

/* With the lock. */
static struct range *borrow(const struct token *token, unsigned gpu) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)token->process, token->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat status;
  bool fits =
      fd >= 0 && fstat(fd, &status) == 0 && (size_t)status.st_size == room_of(token->size) + PAGE;
  struct range *range = fits ? add_plain(fd, token->size, gpu) : NULL;
  if (!range && fd >= 0)
    close(fd);
  if (!range)
    return NULL;
  range->borrowed = true;
  swap_opener(range, 0, getpid());
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
  if (token.magic != TOKEN_MAGIC || token.size > (size_t)1 << 40)
    return CUDA_ERROR_INVALID_HANDLE;
  if (token.process == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;
  int gpu = gpu_by_uuid(&token.uuid);
  if (gpu < 0)
    return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&memory_lock);
  struct range *range = find_borrowed(&handle);
  if (!range && (range = borrow(&token, (unsigned)gpu)))
    range->handle = handle;
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
  bool good = range && range->start == address && range->borrowed;
  if (good && --range->opens == 0) {
    swap_opener(range, getpid(), 0);
    end_plain(range);
  }
  pthread_mutex_unlock(&memory_lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
