/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../cuda/door.h"
#include "door.h"
#include "file/cufile_api.h"

#define PROTOTYPE(slot, symbol, result, arguments) result symbol arguments;
CUFILE_REQUIRED(PROTOTYPE)
CUFILE_OPTIONAL(PROTOTYPE)
#undef PROTOTYPE

#define FILES_MAX   64
#define BUFFERS_MAX 64
#define BLOCK       4096u

struct cufile_double cufile_double = {.nvfs = 1, .compat = 1, .nth = 1, .pinned = 128 << 20};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct file {
  int fd; /* the caller's */
  bool used, compat;
} files[FILES_MAX];
static struct {
  uintptr_t start;
  size_t length;
} buffers[BUFFERS_MAX];
static bool driver_compat; /* of the open driver */

static _Noreturn void violated(const char *call, const char *what) {
  fprintf(stderr, "emulation of libcufile: %s: contract violated: %s\n", call, what);
  abort();
}
#define DEMAND(condition)                                                                          \
  do {                                                                                             \
    if (!(condition))                                                                              \
      violated(__func__, #condition);                                                              \
  } while (0)

static __attribute__((constructor)) void read_settings(void) {
  const struct {
    const char *name;
    _Atomic long long *value;
  } settings[] = {{"nvfs=", &cufile_double.nvfs},     {"p2p=", &cufile_double.p2p},
                  {"compat=", &cufile_double.compat}, {"open=", &cufile_double.open},
                  {"file=", &cufile_double.file},     {"read=", &cufile_double.read},
                  {"nth=", &cufile_double.nth},       {"most=", &cufile_double.most},
                  {"pinned=", &cufile_double.pinned}};
  const char *words = getenv("HAUL_CUFILE_DOUBLE");
  for (size_t i = 0; words && i < sizeof settings / sizeof settings[0]; i++) {
    const char *at = strstr(words, settings[i].name);
    if (at)
      *settings[i].value = strtoll(at + strlen(settings[i].name), NULL, 10);
  }
}

static CUfileError_t result_of(long long code) {
  return (CUfileError_t){(int)code, code == CU_FILE_CUDA_DRIVER_ERROR ? CUDA_ERROR_UNKNOWN : 0};
}

static void *driver_call(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *found = library ? dlsym(library, name) : NULL;
  if (library)
    dlclose(library); /* the program holds it */
  return found;
}

/* The thread has a context: each call that reaches a GPU needs one. */
static bool has_context(void) {
  CUresult (*ask)(size_t * left, size_t * all);
  size_t left, all;
  void *found = driver_call("cuMemGetInfo_v2");
  memcpy(&ask, &found, sizeof ask);
  return ask && ask(&left, &all) == CUDA_SUCCESS;
}

/* NULL: not all of it is GPU memory. */
static char *view_of(const void *address, size_t length) {
  __typeof__(cuda_double_address) *call;
  char *view = NULL;
  void *found = driver_call("cuda_double_address");
  memcpy(&call, &found, sizeof call);
  return call && call((uintptr_t)address, length, &view) ? view : NULL;
}

static bool can_be_direct(void) {
  return cufile_double.nvfs || cufile_double.p2p;
}

long cuFileUseCount(void) {
  return (long)cufile_double.drivers;
}

CUfileError_t cuFileDriverOpen(void) {
  if (cufile_double.open)
    return result_of(cufile_double.open);
  pthread_mutex_lock(&lock);
  int code = 0;
  if (cufile_double.drivers == 0 && !can_be_direct() && !cufile_double.compat)
    code = CU_FILE_DRIVER_NOT_INITIALIZED;
  if (cufile_double.drivers == 0)
    driver_compat = cufile_double.compat;
  cufile_double.drivers += code == 0;
  pthread_mutex_unlock(&lock);
  return result_of(code);
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *properties) {
  DEMAND(properties);
  bool compat = cufile_double.drivers ? driver_compat : cufile_double.compat;
  /* Not `later`, which cuFile's struct does not have. */
  memset(properties, 0, offsetof(CUfileDrvProps_t, later));
  properties->nvfs.major_version = cufile_double.nvfs ? 2 : 0;
  properties->nvfs.minor_version = cufile_double.nvfs ? 22 : 0;
  properties->nvfs.dstatusflags = (cufile_double.nvfs ? 1u << CU_FILE_NVME_SUPPORTED : 0) |
                                  (cufile_double.p2p ? 1u << CU_FILE_NVME_P2P_SUPPORTED : 0);
  properties->nvfs.dcontrolflags =
      1u << CU_FILE_USE_POLL_MODE | (compat ? 1u << CU_FILE_ALLOW_COMPAT_MODE : 0);
  return result_of(0);
}

CUfileError_t cuFileGetParameterBool(int parameter, bool *value) {
  DEMAND(parameter == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE && value);
  *value = cufile_double.compat;
  return result_of(0);
}

CUfileError_t cuFileSetParameterBool(int parameter, bool value) {
  DEMAND(parameter == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
  if (cufile_double.drivers)
    return result_of(CU_FILE_DRIVER_ALREADY_OPEN);
  cufile_double.compat = value;
  return result_of(0);
}

/* With the lock. */
static int add_file(int fd, bool compat, CUfileHandle_t *handle) {
  for (size_t i = 0; i < FILES_MAX; i++)
    DEMAND(!files[i].used || files[i].fd != fd);
  for (size_t i = 0; i < FILES_MAX; i++)
    if (!files[i].used) {
      files[i] = (struct file){fd, true, compat};
      *handle = &files[i];
      cufile_double.handles++;
      return 0;
    }
  return CU_FILE_INTERNAL_ERROR;
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *like) {
  struct stat stat;
  DEMAND(handle && like && like->type == CU_FILE_HANDLE_TYPE_OPAQUE_FD && !like->fs_ops);
  DEMAND(cufile_double.drivers > 0 && has_context());
  int flags = fcntl(like->handle.fd, F_GETFL);
  DEMAND(flags >= 0 && fstat(like->handle.fd, &stat) == 0 && S_ISREG(stat.st_mode));
  pthread_mutex_lock(&lock);
  int code = cufile_double.file ? (int)cufile_double.file
             : flags & O_DIRECT ? can_be_direct() ? 0 : CU_FILE_IO_NOT_SUPPORTED
                                : CU_FILE_INVALID_FILE_OPEN_FLAG;
  bool compat = code && driver_compat;
  if (code == 0 || compat)
    code = add_file(like->handle.fd, compat, handle);
  pthread_mutex_unlock(&lock);
  return result_of(code);
}

void cuFileHandleDeregister(CUfileHandle_t handle) {
  struct file *file = handle;
  pthread_mutex_lock(&lock);
  DEMAND(file && file->used && fcntl(file->fd, F_GETFL) >= 0);
  file->used = false;
  cufile_double.handles--;
  pthread_mutex_unlock(&lock);
}

/* With the lock: the registered buffer that has the whole range; -1. */
static int find_buffer(uintptr_t start, size_t length) {
  for (int i = 0; i < BUFFERS_MAX; i++)
    if (buffers[i].length && start >= buffers[i].start &&
        start - buffers[i].start <= buffers[i].length &&
        length <= buffers[i].length - (start - buffers[i].start))
      return i;
  return -1;
}

/* With the lock. */
static int add_buffer(uintptr_t start, size_t length) {
  if (find_buffer(start, 1) >= 0)
    return CU_FILE_MEMORY_ALREADY_REGISTERED;
  if (cufile_double.registered + (long long)length > cufile_double.pinned)
    return CU_FILE_GPU_MEMORY_PINNING_FAILED;
  for (int i = 0; i < BUFFERS_MAX; i++)
    if (!buffers[i].length) {
      buffers[i].start = start;
      buffers[i].length = length;
      cufile_double.buffers++;
      cufile_double.registered += (long long)length;
      return 0;
    }
  return CU_FILE_GPU_MEMORY_PINNING_FAILED;
}

CUfileError_t cuFileBufRegister(const void *address, size_t length, int flags) {
  DEMAND(cufile_double.drivers > 0 && has_context() && flags == 0 && length > 0);
  if (!view_of(address, length))
    return result_of(CU_FILE_INVALID_VALUE);
  pthread_mutex_lock(&lock);
  int code = add_buffer((uintptr_t)address, length);
  pthread_mutex_unlock(&lock);
  return result_of(code);
}

CUfileError_t cuFileBufDeregister(const void *address) {
  pthread_mutex_lock(&lock);
  int found = find_buffer((uintptr_t)address, 1);
  DEMAND(found >= 0 && buffers[found].start == (uintptr_t)address);
  cufile_double.buffers--;
  cufile_double.registered -= (long long)buffers[found].length;
  buffers[found].length = 0;
  pthread_mutex_unlock(&lock);
  return result_of(0);
}

/* The failure that is set for this call, or 0. */
static ssize_t failure(void) {
  if (!cufile_double.read || atomic_fetch_sub(&cufile_double.nth, 1) != 1)
    return 0;
  if (cufile_double.read >= CU_FILE_DRIVER_NOT_INITIALIZED)
    return (ssize_t)-cufile_double.read;
  errno = (int)-cufile_double.read;
  return -1;
}

/* The bytes of one call. The descriptor has O_DIRECT, for which the view is not aligned. Not by
 * pread(3), which a test watches. */
static ssize_t read_file(int fd, char *view, size_t length, off_t offset) {
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int plain = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = plain < 0 ? -1 : syscall(SYS_pread64, plain, view, length, offset);
  close(plain);
  return got;
}

ssize_t cuFileRead(CUfileHandle_t handle, void *base, size_t length, off_t offset, off_t at) {
  const struct file *file = handle;
  uintptr_t address = (uintptr_t)base + (uintptr_t)at;
  DEMAND(file && file->used && offset >= 0 && at >= 0 && has_context());
  char *view = view_of((void *)address, length);
  if (!view)
    return -CU_FILE_INVALID_VALUE;
  ssize_t failed = failure();
  if (failed)
    return failed;
  if (cufile_double.most && length > (size_t)cufile_double.most)
    length = (size_t)cufile_double.most;
  pthread_mutex_lock(&lock);
  bool registered = find_buffer(address, length) >= 0;
  pthread_mutex_unlock(&lock);
  bool aligned = offset % BLOCK == 0 && length % BLOCK == 0 && address % BLOCK == 0;
  atomic_fetch_add(file->compat            ? &cufile_double.through_host
                   : registered && aligned ? &cufile_double.straight
                                           : &cufile_double.buffered,
                   1);
  return read_file(file->fd, view, length, offset);
}
