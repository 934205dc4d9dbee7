/* SPDX-License-Identifier: MIT */
#include "file/cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "file/cufile_api.h"

/* Registration pins the memory: for less, a copy within the GPU costs less (estimated). */
#define REGISTERED ((size_t)16 << 20)

/* Both libraries, open for good. */
static struct cufile_calls calls;
static struct {
  CUresult (*device)(CUdevice *device, int ordinal);
  CUresult (*retain)(CUcontext *context, CUdevice device);
  CUresult (*release)(CUdevice device);
  CUresult (*push)(CUcontext context);
  CUresult (*pop)(CUcontext *context);
} cuda;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards loading, and opening the driver */
static bool loaded;

struct cufile {
  CUfileHandle_t handle;
};

static bool find(void *library, const char *name, void *slot) {
  void *found = dlsym(library, name);
  memcpy(slot, &found, sizeof found);
  return found;
}

/* haul has opened libcuda, as there is GPU memory. */
static bool load_cuda(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library && find(library, "cuDeviceGet", &cuda.device) &&
         find(library, "cuDevicePrimaryCtxRetain", &cuda.retain) &&
         find(library, "cuDevicePrimaryCtxRelease_v2", &cuda.release) &&
         find(library, "cuCtxPushCurrent_v2", &cuda.push) &&
         find(library, "cuCtxPopCurrent_v2", &cuda.pop);
}

/* With the lock. */
static bool load(char *reason) {
  void *library = loaded ? NULL : dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library && !loaded) {
    snprintf(reason, REASON_ROOM, "cuFile cannot be opened: %.150s", dlerror());
    return false;
  }
  if (loaded)
    return true;
#define CUFILE_FIND(slot, symbol, result, arguments) all &= find(library, #symbol, &calls.slot);
#define CUFILE_TRY(slot, symbol, result, arguments)  find(library, #symbol, &calls.slot);
  bool all = load_cuda();
  CUFILE_REQUIRED(CUFILE_FIND)
  CUFILE_OPTIONAL(CUFILE_TRY)
  if (!all)
    snprintf(reason, REASON_ROOM, "libcufile.so.0 or libcuda.so.1 lacks calls");
  loaded = all;
  return all;
}

static const char *word_of(int error) {
  static const struct {
    int error;
    const char *text;
  } words[] = {
      {CU_FILE_DRIVER_NOT_INITIALIZED, "nvidia-fs is not loaded"},
      {CU_FILE_PLATFORM_NOT_SUPPORTED, "this platform is not supported"},
      {CU_FILE_IO_NOT_SUPPORTED, "this file system or disk is not supported"},
      {CU_FILE_DEVICE_NOT_SUPPORTED, "this GPU is not supported"},
      {CU_FILE_CUDA_DRIVER_ERROR, "an error of the CUDA driver"},
      {CU_FILE_CUDA_MEMORY_TYPE_INVALID, "this kind of memory is not supported"},
      {CU_FILE_INTERNAL_ERROR, "an internal error"},
      {CU_FILE_NVFS_SETUP_ERROR, "nvidia-fs failed to start"},
      {CU_FILE_GPU_MEMORY_PINNING_FAILED, "GPU memory cannot be pinned"},
  };
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (words[i].error == error)
      return words[i].text;
  return "see CUfileOpError in cufile.h";
}

static bool failed(const char *call, int error, char *reason) {
  snprintf(reason, REASON_ROOM, "%s failed with %d: %s", call, error, word_of(error));
  return false;
}

/* Is there a way past host memory, and is cuFile sure to take it or fail? Bits that a later version
 * adds may allow other ways. */
static bool is_direct(char *reason) {
  CUfileDrvProps_t found = {.fflags = 0};
  CUfileError_t error = calls.properties(&found);
  if (error.err)
    return failed("cuFileDriverGetProperties", error.err, reason);
  bool p2p = found.nvfs.dstatusflags & 1u << CU_FILE_NVME_P2P_SUPPORTED ||
             found.fflags & 1u << CUFILE_P2P_FEATURE;
  if (found.nvfs.dcontrolflags & ~(1u << CU_FILE_USE_POLL_MODE))
    snprintf(reason, REASON_ROOM,
             "cuFile may use its compatibility mode, which reads through host memory: set "
             "allow_compat_mode to false in cufile.json");
  else if (found.nvfs.major_version == 0 && !p2p)
    snprintf(reason, REASON_ROOM, "cuFile has neither nvidia-fs nor PCI peer-to-peer DMA here");
  else
    return true;
  return false;
}

/* With the lock. The first in the process to open the driver decides about compatibility mode. */
static bool open_driver(char *reason) {
  bool before = false,
       changes = calls.use_count() <= 0 && calls.get_bool && calls.set_bool &&
                 !calls.get_bool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, &before).err && before;
  if (changes)
    calls.set_bool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, false);
  CUfileError_t error = calls.driver_open();
  if (error.err == 0 || error.err == CU_FILE_DRIVER_ALREADY_OPEN)
    return is_direct(reason);
  if (changes)
    calls.set_bool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, true);
  return failed("cuFileDriverOpen", error.err, reason);
}

/* cuFile works in the current context, which the GPU's memory belongs to. */
static bool enter(unsigned gpu, CUdevice *device, char *reason) {
  CUcontext context;
  CUresult result = cuda.device(device, (int)gpu);
  if (!result)
    result = cuda.retain(&context, *device);
  if (!result) {
    result = cuda.push(context);
    if (result)
      cuda.release(*device);
  }
  if (result)
    snprintf(reason, REASON_ROOM, "the GPU's context cannot be used: CUDA error %d", result);
  return result == 0;
}

static void leave(CUdevice device) {
  CUcontext context;
  cuda.pop(&context);
  cuda.release(device);
}

/* On others cuFile's settings may force reads through host memory, whatever the driver allows
 * (cuFile Compatibility Mode, API Reference Guide). */
static bool is_local(int fd, char *reason) {
  struct statfs found;
  if (fstatfs(fd, &found) == 0 &&
      (found.f_type == EXT4_SUPER_MAGIC || found.f_type == XFS_SUPER_MAGIC))
    return true;
  snprintf(reason, REASON_ROOM,
           "cuFile is used for ext4 and xfs alone, on others it may read "
           "through host memory");
  return false;
}

static bool register_file(struct cufile *cufile, int fd, char *reason) {
  CUfileDescr_t like = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd};
  CUfileError_t error = calls.handle_register(&cufile->handle, &like);
  return error.err == 0 || failed("cuFileHandleRegister", error.err, reason);
}

struct cufile *cufile_open(int direct, unsigned gpu, char reason[REASON_ROOM]) {
  CUdevice device;
  if (!is_local(direct, reason))
    return NULL;
  struct cufile *cufile = malloc(sizeof *cufile);
  if (!cufile) {
    snprintf(reason, REASON_ROOM, "out of memory");
    return NULL;
  }
  pthread_mutex_lock(&lock);
  bool opened = load(reason) && enter(gpu, &device, reason);
  if (opened) {
    opened = open_driver(reason) && register_file(cufile, direct, reason);
    leave(device);
  }
  pthread_mutex_unlock(&lock);
  if (opened)
    return cufile;
  free(cufile);
  return NULL;
}

void cufile_close(struct cufile *cufile) {
  if (!cufile)
    return;
  calls.handle_deregister(cufile->handle);
  free(cufile);
}

static void failed_read(ssize_t code, char *reason) {
  if (code == -1)
    snprintf(reason, REASON_ROOM, "cuFileRead failed: %s", strerror(errno));
  else
    failed("cuFileRead", (int)-code, reason);
}

/* cuFile may return fewer bytes. */
static ssize_t read_all(const struct cufile *cufile, char *to, size_t length, off_t offset,
                        char *reason) {
  size_t done = 0;
  ssize_t moved = 1;
  while (done < length && moved > 0) {
    moved = calls.read(cufile->handle, to, length - done, offset + (off_t)done, (off_t)done);
    if (moved > 0)
      done += (size_t)moved;
  }
  if (moved < 0)
    failed_read(moved, reason);
  return done > 0 ? (ssize_t)done : moved;
}

ssize_t cufile_read(const struct cufile *cufile, char *to, size_t length, off_t offset,
                    unsigned gpu, bool *registered, char reason[REASON_ROOM]) {
  CUdevice device;
  if (!enter(gpu, &device, reason))
    return -1;
  *registered = length >= REGISTERED && calls.buffer_register(to, length, 0).err == 0;
  ssize_t done = read_all(cufile, to, length, offset, reason);
  if (*registered)
    calls.buffer_deregister(to);
  leave(device);
  return done;
}
