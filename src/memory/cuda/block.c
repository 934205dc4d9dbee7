/* SPDX-License-Identifier: MIT
 * GPU memory. Shareable memory comes from the virtual-memory calls, private memory from cuMemAlloc.
 */
#include <fcntl.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/wire.h"
#include "memory/cuda/cuda.h"
#include "memory/pages.h"
#include "memory/ticket.h"

int block_begin(unsigned device, struct block **out) {
  struct block *block = alloc_zero(1, sizeof *block);
  if (!block) {
    error_memory("GPU memory");
    return HAUL_ENOMEM;
  }
  int code = cuda_enter(device);
  if (code) {
    alloc_free(block);
    return code;
  }
  block->device = device;
  block->generation = atomic_load(&cuda_device(device)->generation);
  *out = block;
  return 0;
}

int block_end(struct block *block, int code) {
  cuda_leave();
  if (code)
    alloc_free(block);
  return code;
}

/* In the device's context. */
static void unmap(struct block *block) {
  if (block->base) {
    cuda_driver->unmap(block->base, block->length);
    cuda_driver->unreserve(block->base, block->length);
  }
  cuda_driver->release(block->handle);
}

/* Maps the handle, with access for each GPU that reaches the device. */
static CUresult map(struct block *block, int rights) {
  const struct cuda_device *device = cuda_device(block->device);
  CUmemAccessDesc access[CUDA_DEVICES_MAX];
  size_t count = 0;
  access[count++] = (CUmemAccessDesc){device->how.location, rights};
  for (unsigned i = 0; i < CUDA_DEVICES_MAX; i++)
    if (i != block->device && device->reached_by >> i & 1)
      access[count++] =
          (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, cuda_device(i)->handle}, rights};
  CUresult result = cuda_driver->reserve(&block->base, block->length, 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    block->base = 0;
    return result;
  }
  result = cuda_driver->map(block->base, block->length, 0, block->handle, 0);
  if (result != CUDA_SUCCESS)
    goto not_mapped;
  result = cuda_driver->set_access(block->base, block->length, access, count);
  if (result != CUDA_SUCCESS && count > 1) /* access for peers failed */
    result = cuda_driver->set_access(block->base, block->length, access, 1);
  if (result == CUDA_SUCCESS)
    return result;
  cuda_driver->unmap(block->base, block->length);
not_mapped:
  cuda_driver->unreserve(block->base, block->length);
  block->base = 0;
  return result;
}

/* In the device's context. */
static int take_shared(struct block *block, size_t length) {
  const struct cuda_device *device = cuda_device(block->device);
  size_t grain = device->granularity;
  if (length > PTRDIFF_MAX - grain)
    return error_length(length);
  block->length = (length + grain - 1) / grain * grain;
  CUresult result = cuda_driver->create(&block->handle, block->length, &device->how, 0);
  if (result != CUDA_SUCCESS)
    return cuda_failed(block->device, result, "cuMemCreate");
  block->mapped = true;
  result = map(block, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (result == CUDA_SUCCESS)
    return 0;
  cuda_driver->release(block->handle);
  return cuda_failed(block->device, result, "cuMemMap");
}

/* cuMemAlloc may align small allocations to less than a page. */
static int take_private(struct block *block, size_t length, void **address) {
  size_t page = page_size();
  if (length > PTRDIFF_MAX - page)
    return error_length(length);
  block->length = length + page - 1;
  CUresult result = cuda_driver->alloc(&block->base, block->length);
  if (result != CUDA_SUCCESS)
    return cuda_failed(block->device, result, "cuMemAlloc");
  *address = (void *)(uintptr_t)((block->base + page - 1) / page * page);
  return 0;
}

void block_fill(struct block *block, void *address, size_t length, struct memory *memory) {
  /* `alive` stays NULL: the driver's descriptor has no room for it, and an importer keeps the bytes
   * allocated. */
  memory->address = address;
  memory->length = length;
  memory->footprint = block->length;
  memory->writable = true;
  memory->state = block;
}

int cuda_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory) {
  bool shared = !(flags & HAUL_REGION_PRIVATE) && cuda_device(device)->shares;
  void *address = NULL;
  struct block *block;
  int code = block_begin(device, &block);
  if (code)
    return code;
  code =
      block_end(block, shared ? take_shared(block, length) : take_private(block, length, &address));
  if (code)
    return code;
  block_fill(block, shared ? (void *)(uintptr_t)block->base : address, length, memory);
  memory->shareable = shared;
  return 0;
}

/* In a forked child the driver must not be called. */
void cuda_free(struct memory *memory) {
  struct block *block = memory->state;
  /* After a reset the address may belong to others. */
  bool ours = block->base && !fork_is_child() && cuda_is_current(block->device, block->generation);
  if (ours && cuda_enter_again(block->device) == 0) {
    if (block->mapped)
      unmap(block);
    else if (block->ipc)
      cuda_driver->ipc_close(block->base);
    else
      cuda_driver->free(block->base);
    cuda_leave();
  }
  alloc_free(block);
}

int cuda_check(const struct memory *memory) {
  const struct block *block = memory->state;
  return cuda_is_current(block->device, block->generation) ? 0 : cuda_gone(block->device);
}

int cuda_look(const struct memory *memory) {
  int code = cuda_enter(memory->place.device);
  if (code)
    return code;
  cuda_leave();
  return cuda_check(memory);
}

int cuda_enter_for(const struct memory *memory) {
  int code = cuda_check(memory);
  return code ? code : cuda_enter_again(memory->place.device);
}

void cuda_pointer(const struct cuda_driver *driver, const void *address,
                  struct cuda_pointer *pointer) {
  int wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                  CU_POINTER_ATTRIBUTE_IS_MANAGED,
                  CU_POINTER_ATTRIBUTE_MAPPED,
                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                  CU_POINTER_ATTRIBUTE_BUFFER_ID,
                  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                  CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                  CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID};
  unsigned managed = 0, mapped = 0, plain = 0;
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
  unsigned long long block = 0;
  *pointer = (struct cuda_pointer){.device = -1};
  void *values[] = {&pointer->type,         &managed,        &mapped,
                    &pointer->device,       &pointer->start, &pointer->size,
                    &pointer->buffer,       &plain,          &pointer->mapping,
                    &pointer->mapping_size, &block};
  const unsigned all = sizeof wanted / sizeof wanted[0];
  /* For an unknown address the driver returns success and zeros, or an error. */
  CUresult result = driver->pointer_attributes(all, wanted, values, at);
  if (result == CUDA_ERROR_INVALID_VALUE) /* perhaps older than the last three */
    result = driver->pointer_attributes(all - 3, wanted, values, at);
  if (result != CUDA_SUCCESS || (pointer->type == CU_MEMORYTYPE_DEVICE && !(mapped & 0xff)))
    pointer->type = 0;
  pointer->managed = managed & 0xff; /* some drivers write one byte */
  pointer->plain = plain & 0xff;
  pointer->buffer ^= block << 32; /* BUFFER_ID may be of the reservation */
}

/* Managed memory counts as host memory: the CPU may access it, and it has neither descriptor nor
 * dma-buf. */
static bool is_device(const struct cuda_pointer *pointer) {
  return pointer->type == CU_MEMORYTYPE_DEVICE && !pointer->managed && pointer->size > 0 &&
         pointer->device >= 0;
}

static int partly(const void *address, size_t length) {
  return error_range(address, length, "wrap a range of allocated memory",
                     "the range lies only partly within one GPU's memory");
}

int cuda_owns(const void *address, size_t length, struct haul_place *place) {
  const struct cuda_driver *driver = library_loaded(&cuda_library);
  struct cuda_pointer first, last;
  if (!driver)
    return 0;
  cuda_pointer(driver, address, &first);
  if (is_device(&first)) {
    *place = (struct haul_place){HAUL_CUDA, (uint16_t)first.device};
    return 1;
  }
  cuda_pointer(driver, (const char *)address + length - 1, &last);
  return is_device(&last) ? partly(address, length) : 0;
}

/* The end of the allocation, or of the mapping that holds the address: a mapping may have several
 * allocations, and a reservation several mappings. If the driver gives no mapping, the end of the
 * grain, the least size of one. */
static CUdeviceptr mapped_until(const struct cuda_pointer *pointer, CUdeviceptr address,
                                size_t grain) {
  size_t left = pointer->start + pointer->size - address;
  size_t mapped = address - pointer->mapping < pointer->mapping_size
                      ? pointer->mapping + pointer->mapping_size - address
                      : grain - address % grain;
  return address + (pointer->plain || left < mapped ? left : mapped);
}

/* Has synchronous operations of the application on the allocation complete before they return, and
 * waits for those that have returned early: NICs and our streams are not ordered after them. False:
 * memory of the virtual-memory calls refuses it. */
static bool synchronise(CUdeviceptr at) {
  unsigned on = 1;
  return cuda_driver->set_pointer_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) ==
         CUDA_SUCCESS;
}

/* In the device's context. Fails unless memory of the GPU is mapped in the whole range, which may
 * span adjacent mappings, as of growing segments. Identifies the allocations behind it; parts of
 * one are alike. */
static int identify(struct memory *memory) {
  const struct cuda_device *device = cuda_device(memory->place.device);
  size_t grain = device->granularity ? device->granularity : page_size();
  CUdeviceptr at = cuda_address(memory, 0), end = cuda_address(memory, memory->length);
  struct cuda_pointer pointer;
  unsigned long long last = 0;
  bool synchronises = true;
  for (; at < end; at = mapped_until(&pointer, at, grain)) {
    cuda_pointer(cuda_driver, (void *)(uintptr_t)at, &pointer);
    if (!is_device(&pointer) || pointer.device != (int)memory->place.device)
      return partly(memory->address, memory->length);
    if (pointer.buffer == last)
      continue;
    /* The multiplier: of the golden ratio. */
    memory->identity = (memory->identity ^ pointer.buffer) * UINT64_C(0x9e3779b97f4a7c15);
    last = pointer.buffer;
    synchronises = synchronises && synchronise(at);
  }
  return 0;
}

/* `owns` used the application's driver; now haul must initialise the device. */
static int find_device(unsigned number) {
  if (number < cuda_devices())
    return 0;
  int code = cuda_absence();
  return code ? code
              : error_set(HAUL_ELIMIT, 0, NULL, "name fewer in CUDA_VISIBLE_DEVICES",
                          "haul uses only the first %d GPUs", CUDA_DEVICES_MAX);
}

int cuda_wrap(void *address, size_t length, struct memory *memory) {
  struct block *block;
  int code = find_device(memory->place.device);
  if (code == 0)
    code = block_begin(memory->place.device, &block);
  if (code)
    return code;
  block_fill(block, address, length, memory);
  memory->wrapped = true;
  return block_end(block, identify(memory));
}

/* Zeroes the rest of the block, so that importers see no earlier contents. */
static int clear_behind(const struct block *block, size_t length) {
  struct cuda_device *device = cuda_device(block->device);
  if (length >= block->length)
    return 0;
  CUresult result = cuda_driver->fill(block->base + length, 0, block->length - length,
                                      device->streams[CUDA_INTO]);
  if (result == CUDA_SUCCESS)
    result = cuda_driver->stream_wait(device->streams[CUDA_INTO]);
  return result == CUDA_SUCCESS ? 0 : cuda_failed(block->device, result, "cuMemsetD8Async");
}

/* The driver does not document that it sets this. */
static void close_on_exec(int descriptor) {
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

static int make_descriptor(const struct memory *memory, int *descriptor) {
  const struct block *block = memory->state;
  int code = cuda_enter_for(memory);
  if (code)
    return code;
  code = clear_behind(block, memory->length);
  if (code == 0) {
    CUresult result = cuda_driver->export_handle(descriptor, block->handle,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS)
      close_on_exec(*descriptor);
    else
      code = cuda_failed(block->device, result, "cuMemExportToShareableHandle");
  }
  cuda_leave();
  return code;
}

/* The driver's descriptor always permits writing. */
int cuda_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor) {
  struct block *block = memory->state;
  if (!(rights & HAUL_WRITE))
    return error_set(HAUL_ENOTSUP, 0, error_object("cuda:%u", block->device),
                     "share it with HAUL_READ | HAUL_WRITE, or let the peer read over tcp or rdma",
                     "NVIDIA's driver cannot share GPU memory read-only");
  struct wire wire = wire_over(ticket->extra, sizeof ticket->extra);
  wire_put64(&wire, block->length);
  wire_put_bytes(&wire, cuda_device(block->device)->uuid, 16);
  return descriptor ? make_descriptor(memory, descriptor) : 0;
}

static void read_extra(const struct ticket *ticket, uint64_t *length, uint8_t uuid[16]) {
  struct wire wire = wire_over(ticket->extra, sizeof ticket->extra);
  *length = wire_get64(&wire);
  wire_get_bytes(&wire, uuid, 16);
}

int cuda_locate(const struct ticket *ticket, uint16_t *device) {
  uint64_t length;
  uint8_t uuid[16];
  read_extra(ticket, &length, uuid);
  int number = cuda_device_by_uuid(uuid);
  if (number >= 0) {
    *device = (uint16_t)number;
    return 0;
  }
  char object[48];
  size_t used = (size_t)snprintf(object, sizeof object, "GPU-");
  for (unsigned i = 0; i < 16; i++)
    used += (size_t)snprintf(object + used, sizeof object - used, "%s%02x",
                             i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  return error_set(HAUL_EPLACE, 0, object,
                   "add it to CUDA_VISIBLE_DEVICES, or start the container with it",
                   "the memory is on a GPU that is not visible to this process");
}

/* In the device's context. */
static int attach(struct block *block, int descriptor, bool writable) {
  CUresult result = cuda_driver->import_handle(&block->handle, (void *)(intptr_t)descriptor,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
    return cuda_failed(block->device, result, "cuMemImportFromShareableHandle");
  if (result != CUDA_SUCCESS)
    return error_descriptor(0, "the descriptor is not GPU memory");
  block->mapped = true;
  result =
      map(block, writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ);
  if (result == CUDA_SUCCESS)
    return 0;
  cuda_driver->release(block->handle);
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE
             ? error_descriptor(0, "the GPU memory is not what the ticket says")
             : cuda_failed(block->device, result, "cuMemMap");
}

int cuda_import(const struct ticket *ticket, int descriptor, struct memory *memory) {
  uint64_t length;
  uint8_t uuid[16];
  const struct cuda_device *device = cuda_device(memory->place.device);
  read_extra(ticket, &length, uuid);
  if (ticket->offset != 0 || ticket->length == 0 || ticket->length > length ||
      !device->granularity || length % device->granularity != 0 || length > PTRDIFF_MAX)
    return error_descriptor(0, "the ticket names an impossible range");
  struct block *block;
  int code = block_begin(memory->place.device, &block);
  if (code)
    return code;
  block->length = length;
  code = block_end(block, attach(block, descriptor, ticket->rights & HAUL_WRITE));
  if (code)
    return code;
  block_fill(block, (void *)(uintptr_t)block->base, ticket->length, memory);
  memory->imported = true;
  memory->writable = ticket->rights & HAUL_WRITE;
  return 0;
}

static int no_dmabuf(unsigned device, const char *why, const char *hint) {
  return error_set(HAUL_ENOTSUP, 0, error_object("cuda:%u", device), hint, "%s", why);
}

/* By its documentation a driver may refuse pages that pass the allocation's end, and mappings of
 * memory with different properties. */
static int dmabuf_failed(unsigned device, CUresult result) {
  if (result == CUDA_ERROR_INVALID_VALUE)
    return no_dmabuf(device,
                     "the GPU memory shares a page of the host with other memory, or has mappings "
                     "with different properties, and the driver makes no dma-buf of these",
                     "allocate whole pages, or load nvidia_peermem, which needs none");
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return error_set(HAUL_ELIMIT, 0, error_object("cuda:%u", device),
                     "release regions; nvidia-smi -q -d MEMORY shows its size and use",
                     "the GPU's BAR1, through which NICs reach its memory, is full");
  return cuda_failed(device, result, "cuMemGetHandleForAddressRange");
}

int cuda_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset) {
  struct block *block = memory->state;
  if (!memory->wrapped && !block->mapped && !block->ipc)
    return no_dmabuf(block->device, "private GPU memory has no dma-buf",
                     "allocate it without HAUL_REGION_PRIVATE");
  if (!cuda_device(block->device)->dmabuf)
    return no_dmabuf(block->device, "this GPU or its driver makes no dma-bufs",
                     "haul doctor cuda says what is missing");
  int code = cuda_enter_for(memory);
  if (code)
    return code;
  size_t page = page_size();
  CUdeviceptr from = cuda_address(memory, 0) / page * page;
  CUdeviceptr to = (cuda_address(memory, memory->length) + page - 1) / page * page;
  CUresult result = cuda_driver->range_handle(descriptor, from, (size_t)(to - from),
                                              CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  cuda_leave();
  if (result != CUDA_SUCCESS)
    return dmabuf_failed(block->device, result);
  close_on_exec(*descriptor);
  *offset = cuda_address(memory, 0) - from;
  return 0;
}
