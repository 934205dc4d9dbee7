/* SPDX-License-Identifier: MIT
 * libcuda, the GPUs, and a context on each while haul uses it. */
#include <string.h>

#include "core/error.h"
#include "core/fork.h"
#include "memory/cuda/cuda.h"
#include "memory/pci.h"

static struct cuda_driver table;

#define SYMBOL(slot, symbol, arguments) {#symbol, offsetof(struct cuda_driver, slot)},
static const struct library_symbol required[] = {CUDA_REQUIRED(SYMBOL)};
static const struct library_symbol optional[] = {CUDA_OPTIONAL(SYMBOL)};
#undef SYMBOL

struct library cuda_library = {
    .title = "NVIDIA's driver",
    .names = {"libcuda.so.1"},
    .since = "CUDA 10.2's",
    .packages = "nvidia-driver libcuda1",
    .note = "; a container is started with --gpus all",
    LIBRARY_REQUIRED(required, table),
    LIBRARY_OPTIONAL(optional),
};

const struct cuda_driver *cuda_driver_open(void) {
  return library_open(&cuda_library);
}

const char *cuda_driver_word(const struct cuda_driver *driver, CUresult result) {
  const char *word = NULL;
  if (driver->error_name(result, &word) != CUDA_SUCCESS || !word)
    return "an unknown error";
  return word;
}

const struct cuda_driver *cuda_driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards these until `probed` */
static struct cuda_device devices[CUDA_DEVICES_MAX];
static unsigned count;
static struct haul_error absence;
static _Atomic bool probed;

/* 0: unknown address. */
static uint64_t buffer_id(void *address) {
  int wanted = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  unsigned long long number = 0;
  void *value = &number;
  return cuda_driver->pointer_attributes(1, &wanted, &value, (CUdeviceptr)(uintptr_t)address) ==
                 CUDA_SUCCESS
             ? number
             : 0;
}

/* Is the context the one that the resources belong to, neither destroyed nor a later one? */
static bool context_is_current(struct cuda_device *device) {
  return buffer_id(atomic_load(&device->marker)) == atomic_load(&device->marker_id);
}

bool cuda_is_current(unsigned device, unsigned generation) {
  return !atomic_load(&devices[device].lost) &&
         atomic_load(&devices[device].generation) == generation;
}

int cuda_gone(unsigned device) {
  return error_set(
      HAUL_ESTALE, 0, error_object("cuda:%u", device),
      "release its regions and allocate them again; do not call cudaDeviceReset while haul "
      "uses the GPU",
      "the application has reset this GPU, which destroyed its memory");
}

/* An invalid handle belongs to a destroyed context, or a peer made it up. */
static bool means_context_lost(unsigned device, CUresult result) {
  switch (result) {
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_DEINITIALIZED:
    return true;
  case CUDA_ERROR_INVALID_CONTEXT:
  case CUDA_ERROR_INVALID_HANDLE:
    return !context_is_current(&devices[device]);
  default:
    return false;
  }
}

int cuda_failed(unsigned device, CUresult result, const char *call) {
  const char *object = error_object("cuda:%u", device);
  if (means_context_lost(device, result)) {
    atomic_store(&devices[device].lost, true);
    return cuda_gone(device);
  }
  switch (result) {
  case CUDA_ERROR_OUT_OF_MEMORY:
    return error_set(HAUL_ENOMEM, 0, object,
                     "release regions, or end other programs on this GPU (nvidia-smi shows them)",
                     "the GPU has not enough free memory");
  case CUDA_ERROR_NOT_SUPPORTED:
    return error_set(HAUL_ENOTSUP, 0, object, "run haul doctor cuda, which prints its capabilities",
                     "%s is not supported by this GPU or its driver", call);
  default:
    return error_set(HAUL_ESYSTEM, 0, object,
                     "run haul doctor cuda, and dmesg for the driver's messages (Xid)",
                     "%s: %s (%d)", call, cuda_driver_word(cuda_driver, result), result);
  }
}

/* The same result has several causes; checks.c tells them apart by the kernel's files. */
static int error_init(CUresult result) {
  const char *word = cuda_driver_word(cuda_driver, result);
  if (result == CUDA_ERROR_NO_DEVICE)
    return error_set(
        HAUL_ENOTSUP, 0, "cuInit",
        "haul doctor cuda; CUDA_VISIBLE_DEVICES may hide it, or /dev/nvidia* may be out of reach",
        "NVIDIA's driver shows this process no GPU");
  if (result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
    return error_set(HAUL_ENOTSUP, 0, "cuInit", "sudo reboot, or load the kernel modules anew",
                     "libcuda and the kernel's half of NVIDIA's driver have different versions");
  return error_set(HAUL_ENOTSUP, 0, "cuInit",
                   "haul doctor cuda; nvidia-smi says what state the driver is in",
                   "NVIDIA's driver does not start: %s (%d)", word, result);
}

/* 0 if the driver does not know the attribute. */
static int attribute_value(CUdevice handle, int attribute) {
  int value = 0;
  return cuda_driver->device_attribute(&value, attribute, handle) == CUDA_SUCCESS ? value : 0;
}

static void query_uuid(struct cuda_device *device) {
  CUuuid uuid = {{0}};
  /* The later call distinguishes MIG instances. */
  if (!cuda_driver->device_uuid_2 ||
      cuda_driver->device_uuid_2(&uuid, device->handle) != CUDA_SUCCESS)
    cuda_driver->device_uuid_1(&uuid, device->handle);
  memcpy(device->uuid, uuid.bytes, sizeof device->uuid);
}

static void query_sharing(struct cuda_device *device) {
  CUdevice handle = device->handle;
  device->registers =
      attribute_value(handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  device->how =
      (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, handle},
                            .allocFlags = {.gpuDirectRDMACapable = device->registers}};
  device->shares =
      attribute_value(handle, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
      attribute_value(handle, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) &&
      cuda_driver->granularity(&device->granularity, &device->how,
                               CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
      device->granularity > 0;
  device->dmabuf =
      cuda_driver->range_handle && attribute_value(handle, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
}

/* No flush is needed if writes are ordered for the GPU itself, or no call flushes: work submitted
 * after the NIC's completion sees the bytes. */
static void query_write_order(struct cuda_device *device) {
  int order = attribute_value(device->handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  int ways =
      attribute_value(device->handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  device->flushes = cuda_driver->flush_writes && order < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER &&
                    ways & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
}

static int query_device(unsigned number) {
  struct cuda_device *device = &devices[number];
  *device = (struct cuda_device){.numa = -1};
  CUresult result = cuda_driver->device_get(&device->handle, (int)number);
  if (result != CUDA_SUCCESS)
    return cuda_failed(number, result, "cuDeviceGet");
  pthread_mutex_init(&device->lock, NULL);
  list_init(&device->waiting);
  cuda_driver->device_name(device->name, sizeof device->name, device->handle);
  cuda_driver->device_memory(&device->memory, device->handle);
  cuda_driver->device_pci(device->pci, sizeof device->pci, device->handle);
  for (char *at = device->pci; *at; at++) /* lower case, as in sysfs */
    if (*at >= 'A')
      *at = (char)(*at | 0x20);
  device->numa = pci_numa(cuda_sys, device->pci);
  query_uuid(device);
  query_sharing(device);
  query_write_order(device);
  return 0;
}

static void query_peers(unsigned number) {
  struct cuda_device *device = &devices[number];
  device->reached_by = UINT32_C(1) << number;
  for (unsigned i = 0; i < count; i++) {
    int can = 0;
    if (i != number)
      cuda_driver->device_reaches(&can, devices[i].handle, device->handle);
    device->reached_by |= can ? UINT32_C(1) << i : 0;
  }
}

static int probe(void) {
  int found = 0;
  cuda_driver = cuda_driver_open();
  if (!cuda_driver)
    return haul_error_last()->code;
  CUresult result = cuda_driver->init(0);
  if (result == CUDA_SUCCESS)
    result = cuda_driver->device_count(&found);
  if (result == CUDA_SUCCESS && found == 0)
    result = CUDA_ERROR_NO_DEVICE;
  if (result != CUDA_SUCCESS)
    return error_init(result);
  for (unsigned i = 0; i < (unsigned)found && i < CUDA_DEVICES_MAX; i++) {
    int code = query_device(i);
    if (code)
      return code;
    count = i + 1;
  }
  for (unsigned i = 0; i < count; i++)
    query_peers(i);
  return 0;
}

static void forget_devices(void) {
  for (unsigned i = 0; i < count; i++)
    pthread_mutex_destroy(&devices[i].lock);
  count = 0;
}

unsigned cuda_devices(void) {
  if (atomic_load_explicit(&probed, memory_order_acquire))
    return count;
  if (fork_is_child())
    return 0;
  pthread_mutex_lock(&lock);
  if (!atomic_load(&probed)) {
    absence = (struct haul_error){0};
    if (probe() != 0) {
      forget_devices();
      error_save(&absence);
    }
    atomic_store_explicit(&probed, true, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  return count;
}

int cuda_absence(void) {
  return cuda_devices() ? 0 : error_restore(&absence);
}

struct cuda_device *cuda_device(unsigned number) {
  return &devices[number];
}

int cuda_device_by_uuid(const uint8_t uuid[16]) {
  for (unsigned i = 0; i < count; i++)
    if (memcmp(devices[i].uuid, uuid, sizeof devices[i].uuid) == 0)
      return (int)i;
  return -1;
}

/* Events of a former context were destroyed with it. */
static void lane_empty(struct cuda_device *device, struct cuda_lane *lane) {
  bool ours = lane->generation == atomic_load(&device->generation);
  for (unsigned i = 0; i < 2; i++) {
    if (ours && lane->events[i])
      cuda_driver->event_destroy(lane->events[i]);
    lane->events[i] = NULL;
  }
  lane->generation = 0;
}

int cuda_lane_build(unsigned number, struct cuda_lane *lane) {
  struct cuda_device *device = &devices[number];
  CUresult result = CUDA_SUCCESS;
  lane_empty(device, lane);
  lane->generation = atomic_load(&device->generation);
  for (unsigned i = 0; i < 2 && result == CUDA_SUCCESS; i++)
    result = cuda_driver->event_create(&lane->events[i], CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS)
    return 0;
  lane_empty(device, lane);
  return cuda_failed(number, result, "cuEventCreate");
}

static void *take_marker(struct cuda_device *device) {
  atomic_store(&device->marker_id, 0);
  return atomic_exchange(&device->marker, NULL);
}

/* In the device's context: destroys its resources. The last callback may still run. */
static void clear_context(struct cuda_device *device) {
  for (unsigned i = 0; i < CUDA_STREAMS; i++) {
    if (device->streams[i]) {
      cuda_driver->stream_wait(device->streams[i]);
      cuda_driver->stream_destroy(device->streams[i]);
    }
    device->streams[i] = NULL;
  }
  for (unsigned i = 0; i < CUDA_LANES; i++)
    lane_empty(device, &device->lanes[i]);
  void *marker = take_marker(device);
  if (marker)
    cuda_driver->host_free(marker);
}

static CUresult set_marker(struct cuda_device *device) {
  void *marker;
  CUresult result = cuda_driver->host_alloc(&marker, 1, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS)
    return result;
  atomic_store(&device->marker, marker);
  atomic_store(&device->marker_id, buffer_id(marker));
  return CUDA_SUCCESS;
}

static int fill_context(struct cuda_device *device, unsigned number) {
  /* Non-blocking streams do not synchronise with the application's default stream. */
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < CUDA_STREAMS && result == CUDA_SUCCESS; i++)
    result = cuda_driver->stream_create(&device->streams[i], CU_STREAM_NON_BLOCKING);
  int code = result == CUDA_SUCCESS ? 0 : cuda_failed(number, result, "cuStreamCreate");
  if (code == 0 && (result = set_marker(device)) != CUDA_SUCCESS)
    code = cuda_failed(number, result, "cuMemHostAlloc");
  return code;
}

/* Drops the resources of a destroyed context; their handles are invalid. Lanes keep theirs and are
 * rebuilt when they are next taken. */
static void forget_context(struct cuda_device *device) {
  memset(device->streams, 0, sizeof device->streams);
  take_marker(device);
}

/* Another thread's stream capture in mode "global" would fail at the first event query here. So use
 * mode "relaxed", and restore the thread's mode. */
static _Thread_local struct {
  unsigned depth; /* nesting depth of cuda_enter */
  int mode;       /* the thread's former mode */
} capture;

static int context_enter(unsigned number) {
  CUresult result = cuda_driver->context_push(devices[number].context);
  if (result != CUDA_SUCCESS)
    return cuda_failed(number, result, "cuCtxPushCurrent");
  if (capture.depth++ == 0 && cuda_driver->exchange_capture_mode) {
    capture.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda_driver->exchange_capture_mode(&capture.mode);
  }
  return 0;
}

/* With the lock. */
static int open_context(struct cuda_device *device, unsigned number) {
  if (atomic_load(&device->lost))
    forget_context(device);
  CUresult result = cuda_driver->primary_retain(&device->context, device->handle);
  if (result != CUDA_SUCCESS)
    return cuda_failed(number, result, "cuDevicePrimaryCtxRetain");
  atomic_fetch_add(&device->generation, 1);
  int code = context_enter(number);
  if (code == 0) {
    code = fill_context(device, number);
    if (code)
      clear_context(device);
    cuda_leave();
  }
  if (code) {
    cuda_driver->primary_release(device->handle);
    return code;
  }
  atomic_store(&device->lost, false);
  atomic_store_explicit(&device->ready, true, memory_order_release);
  return 0;
}

static bool is_usable(struct cuda_device *device) {
  return atomic_load_explicit(&device->ready, memory_order_acquire) &&
         !atomic_load(&device->lost) && context_is_current(device);
}

/* With the lock, so that the context does not change meanwhile. */
static bool check_lost(struct cuda_device *device) {
  if (atomic_load(&device->ready) && !context_is_current(device))
    atomic_store(&device->lost, true);
  return is_usable(device);
}

int cuda_enter(unsigned number) {
  struct cuda_device *device = &devices[number];
  if (!is_usable(device)) {
    pthread_mutex_lock(&device->lock);
    int code = check_lost(device) ? 0 : open_context(device, number);
    pthread_mutex_unlock(&device->lock);
    if (code)
      return code;
  }
  return context_enter(number);
}

int cuda_enter_again(unsigned number) {
  struct cuda_device *device = &devices[number];
  if (is_usable(device))
    return context_enter(number);
  pthread_mutex_lock(&device->lock);
  check_lost(device);
  pthread_mutex_unlock(&device->lock);
  return cuda_gone(number);
}

void cuda_leave(void) {
  CUcontext was;
  if (--capture.depth == 0 && cuda_driver->exchange_capture_mode)
    cuda_driver->exchange_capture_mode(&capture.mode);
  cuda_driver->context_pop(&was);
}

void cuda_devices_stop(void) {
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < count; i++) {
    struct cuda_device *device = &devices[i];
    if (is_usable(device) && context_enter(i) == 0) {
      clear_context(device);
      cuda_leave();
      cuda_driver->primary_release(device->handle);
    }
  }
  forget_devices();
  atomic_store(&probed, false);
  pthread_mutex_unlock(&lock);
}
