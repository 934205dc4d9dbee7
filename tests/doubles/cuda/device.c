/* SPDX-License-Identifier: MIT
 * GPUs and their primary contexts. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "inside.h"

#define CONTEXTS_DEEP 16

struct cuda_double cuda_double = {
    .devices = 2, .memory = 4ULL << 30, .vmm = 1, .attributes = 20, .dmabuf = 1, .moves = 1};
struct gpu gpus[GPUS_MAX];
unsigned gpu_count;
struct CUctx_st contexts[GPUS_MAX];
_Atomic bool initialised;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local CUcontext stack[CONTEXTS_DEEP];
static _Thread_local unsigned depth;

void double_broken(const char *call, const char *what) {
  fprintf(stderr, "mock of libcuda: %s: contract violated: %s\n", call, what);
  abort();
}

static void set(const char *words, const char *name, _Atomic unsigned long long *value) {
  const char *at = strstr(words, name);
  if (at)
    *value = strtoull(at + strlen(name), NULL, 10);
}

static __attribute__((constructor)) void read_settings(void) {
  const char *words = getenv("HAUL_CUDA_DOUBLE");
  if (!words)
    return;
  set(words, "devices=", &cuda_double.devices);
  set(words, "memory=", &cuda_double.memory);
  set(words, "bandwidth=", &cuda_double.bandwidth);
  set(words, "latency=", &cuda_double.latency);
  set(words, "init=", &cuda_double.init);
  set(words, "create=", &cuda_double.create);
  set(words, "pin=", &cuda_double.pin);
  set(words, "capture=", &cuda_double.capture);
  set(words, "copy=", &cuda_double.copy);
  set(words, "ordering=", &cuda_double.ordering);
  set(words, "attributes=", &cuda_double.attributes);
  set(words, "ask=", &cuda_double.ask);
  set(words, "vmm=", &cuda_double.vmm);
  set(words, "hold=", &cuda_double.hold);
  set(words, "dmabuf=", &cuda_double.dmabuf);
  set(words, "bar1=", &cuda_double.bar1);
  set(words, "moves=", &cuda_double.moves);
  set(words, "kernel=", &cuda_double.kernel);
  set(words, "strict=", &cuda_double.strict);
}

bool is_due(_Atomic unsigned long long *counter) {
  unsigned long long left = atomic_load(counter);
  while (left > 0 && !atomic_compare_exchange_weak(counter, &left, left - 1))
    ;
  return left == 1;
}

static CUuuid uuid_of(unsigned machine) {
  CUuuid uuid;
  memcpy(uuid.bytes, "haul-double-gpu0", sizeof uuid.bytes);
  uuid.bytes[15] = (char)('0' + machine);
  return uuid;
}

static void write_uuid(unsigned machine, char text[48]) {
  CUuuid uuid = uuid_of(machine);
  size_t used = (size_t)snprintf(text, 48, "GPU-");
  for (unsigned i = 0; i < 16; i++)
    used += (size_t)snprintf(text + used, 48 - used, "%s%02x",
                             i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                             (unsigned char)uuid.bytes[i]);
}

/* The GPU that a word of CUDA_VISIBLE_DEVICES names, or -1. */
static int named(const char *word) {
  for (unsigned i = 0; i < cuda_double.devices; i++) {
    char number[16], uuid[48];
    snprintf(number, sizeof number, "%u", i);
    write_uuid(i, uuid);
    if (strcmp(word, number) == 0 || (strlen(word) > 4 && strncmp(uuid, word, strlen(word)) == 0))
      return (int)i;
  }
  return -1;
}

static void show(unsigned machine) {
  gpus[gpu_count].machine = machine;
  gpus[gpu_count].uuid = uuid_of(machine);
  gpus[gpu_count].file = -1;
  contexts[gpu_count].gpu = gpu_count;
  gpu_count++;
}

/* The first invalid word ends the list, like in the driver. */
static void find_gpus(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  gpu_count = 0;
  for (unsigned i = 0; !visible && i < cuda_double.devices && i < GPUS_MAX; i++)
    show(i);
  if (!visible)
    return;
  char *words = strdup(visible), *rest = words, *word;
  while ((word = strsep(&rest, ",")) && gpu_count < GPUS_MAX && named(word) >= 0)
    show((unsigned)named(word));
  free(words);
}

/* The driver keeps the files of its devices open until the process ends. A GPU's has room for all
 * that a process ever allocates. */
static void open_devices(void) {
  for (unsigned i = 0; i < 13; i++)
    if (open("/dev/null", O_RDWR | O_CLOEXEC) < 0)
      return;
  for (unsigned i = 0; i < gpu_count; i++) {
    gpus[i].file = memfd_create("haul-cuda-double", MFD_CLOEXEC);
    if (gpus[i].file < 0 || ftruncate(gpus[i].file, (off_t)1 << 60) != 0)
      return;
  }
}

CUresult cuInit(unsigned flags) {
  if (flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (cuda_double.init)
    return (CUresult)cuda_double.init;
  pthread_mutex_lock(&lock);
  if (!initialised) {
    find_gpus();
    open_devices();
  }
  initialised = gpu_count > 0;
  pthread_mutex_unlock(&lock);
  return initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult check(CUdevice device) {
  if (!initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  return device >= 0 && (unsigned)device < gpu_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

int gpu_by_uuid(const CUuuid *uuid) {
  for (unsigned i = 0; i < gpu_count; i++)
    if (memcmp(&gpus[i].uuid, uuid, sizeof *uuid) == 0)
      return (int)i;
  return -1;
}

CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  static const struct {
    CUresult error;
    const char *name;
  } names[] = {
#define NAME(error) {error, #error}
      NAME(CUDA_SUCCESS),
      NAME(CUDA_ERROR_INVALID_VALUE),
      NAME(CUDA_ERROR_OUT_OF_MEMORY),
      NAME(CUDA_ERROR_NOT_INITIALIZED),
      NAME(CUDA_ERROR_NO_DEVICE),
      NAME(CUDA_ERROR_INVALID_DEVICE),
      NAME(CUDA_ERROR_INVALID_CONTEXT),
      NAME(CUDA_ERROR_INVALID_HANDLE),
      NAME(CUDA_ERROR_NOT_FOUND),
      NAME(CUDA_ERROR_NOT_READY),
      NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
      NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
      NAME(CUDA_ERROR_NOT_SUPPORTED),
      NAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
      NAME(CUDA_ERROR_UNKNOWN),
#undef NAME
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (names[i].error == error) {
      *name = names[i].name;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count) {
  *count = (int)gpu_count;
  return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return check(ordinal);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  if (check(device) == CUDA_SUCCESS)
    snprintf(name, (size_t)length, "double of a GPU (no hardware) %u", gpus[device].machine);
  return check(device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  if (check(device) == CUDA_SUCCESS)
    *uuid = gpus[device].uuid;
  return check(device);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  *bytes = cuda_double.memory;
  return check(device);
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
  if (check(device) == CUDA_SUCCESS)
    snprintf(id, (size_t)length, "0000:%02X:00.0", 0xda + gpus[device].machine);
  return check(device);
}

static int attribute_of(int attribute) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    return (int)cuda_double.vmm;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    return 1;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
    return CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
    return (int)cuda_double.ordering;
  case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
    return cuda_double.dmabuf == 2 ||
           (cuda_double.dmabuf == 1 && access("/dev/udmabuf", R_OK | W_OK) == 0);
  default:
    return -1;
  }
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  CUresult code = check(device);
  if (code != CUDA_SUCCESS)
    return code;
  *value = attribute_of(attribute);
  return *value < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  if (check(device) != CUDA_SUCCESS || check(peer) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  CUresult code = check(device);
  if (code != CUDA_SUCCESS)
    return code;
  pthread_mutex_lock(&lock);
  *context = &contexts[device];
  contexts[device].retains++;
  contexts[device].generation += !atomic_exchange(&contexts[device].active, true);
  pthread_mutex_unlock(&lock);
  atomic_fetch_add(&cuda_double.retains, 1);
  return CUDA_SUCCESS;
}

static void end_context(CUcontext context) {
  streams_reset(context);
  memory_reset(context->gpu);
  atomic_store(&context->broken, CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUresult code = check(device);
  if (code != CUDA_SUCCESS)
    return code;
  pthread_mutex_lock(&lock);
  struct CUctx_st *context = &contexts[device];
  bool retained = context->retains > 0, last = retained && --context->retains == 0;
  if (last && atomic_exchange(&context->active, false))
    end_context(context);
  pthread_mutex_unlock(&lock);
  if (retained)
    atomic_fetch_sub(&cuda_double.retains, 1);
  return retained ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* cudaDeviceReset calls it: other users of the context lose everything too. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUresult code = check(device);
  if (code != CUDA_SUCCESS)
    return code;
  pthread_mutex_lock(&lock);
  if (atomic_exchange(&contexts[device].active, false))
    end_context(&contexts[device]);
  atomic_fetch_sub(&cuda_double.retains, contexts[device].retains);
  contexts[device].retains = 0;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  CUresult code = check(device);
  *flags = 0;
  *active = code == CUDA_SUCCESS && atomic_load(&contexts[device].active);
  return code;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  DEMAND(!in_callback);
  if (!initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (context < contexts || context >= contexts + gpu_count)
    return CUDA_ERROR_INVALID_CONTEXT;
  DEMAND(depth < CONTEXTS_DEEP);
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack[--depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = depth > 0 ? stack[depth - 1] : NULL;
  return CUDA_SUCCESS;
}

CUcontext current_to_end(CUresult *code) {
  while (cuda_double.kernel || host_functions)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return current(code);
}

CUcontext current_to_begin(CUresult *code) {
  return cuda_double.strict ? current_to_end(code) : current(code);
}

_Thread_local bool in_callback;

CUcontext current_or_broken(CUresult *code) {
  CUcontext context = depth > 0 ? stack[depth - 1] : NULL;
  DEMAND(!in_callback);
  if (!initialised)
    *code = CUDA_ERROR_NOT_INITIALIZED;
  else if (!context)
    *code = CUDA_ERROR_INVALID_CONTEXT;
  else if (!atomic_load(&context->active))
    *code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else
    *code = CUDA_SUCCESS;
  return *code == CUDA_SUCCESS ? context : NULL;
}

static _Thread_local int capture_mode; /* 0: global */

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = capture_mode;
  if (*mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

CUcontext current(CUresult *code) {
  CUcontext context = current_or_broken(code);
  if (cuda_double.capture && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    *code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return NULL;
  }
  if (context)
    *code = atomic_load(&context->broken);
  return *code == CUDA_SUCCESS ? context : NULL;
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
  CUresult code;
  if (!current(&code))
    return code;
  if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
      scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
    return CUDA_ERROR_INVALID_VALUE;
  atomic_fetch_add(&cuda_double.flushes, 1);
  return CUDA_SUCCESS;
}
