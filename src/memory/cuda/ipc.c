/* SPDX-License-Identifier: MIT
 * IPC mapping of memory from cudaMalloc, by the driver's legacy IPC. The handle is of the whole
 * allocation, so the ticket has the offset. Memory that is freed while mapped elsewhere is
 * undefined there, so a mapping lasts only for copies. */
#include <string.h>

#include "core/error.h"
#include "core/wire.h"
#include "memory/cuda/cuda.h"
#include "memory/ticket.h"

_Static_assert(sizeof(CUipcMemHandle) == IPC_TOKEN, "the token is the driver's handle");

static int error_no_ipc(const char *why) {
  return error_set(HAUL_ENOTSUP, 0, "cuda",
                   "allocate it with haul_region_alloc, which shares it by descriptor", "%s", why);
}

int cuda_ipc_export(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]) {
  const struct block *block = memory->state;
  const char *address = memory->address;
  struct cuda_pointer first, last;
  CUipcMemHandle handle;
  if (!memory->wrapped || !cuda_driver->ipc_get)
    return error_no_ipc("this GPU memory cannot be mapped by another process");
  int code = cuda_look(memory);
  if (code)
    return code;
  cuda_pointer(cuda_driver, address, &first);
  cuda_pointer(cuda_driver, address + memory->length - 1, &last);
  if (!first.plain || first.start != last.start)
    return error_no_ipc("only one whole allocation of cudaMalloc can be mapped by another process");
  code = cuda_enter_again(block->device);
  if (code)
    return code;
  CUresult result = cuda_driver->ipc_get(&handle, first.start);
  cuda_leave();
  if (result != CUDA_SUCCESS)
    return cuda_failed(block->device, result, "cuIpcGetMemHandle");
  struct wire wire = wire_over(ticket->extra, sizeof ticket->extra); /* as cuda_locate reads it */
  wire_put64(&wire, (CUdeviceptr)(uintptr_t)address - first.start);
  wire_put_bytes(&wire, cuda_device(block->device)->uuid, 16);
  memcpy(token, &handle, IPC_TOKEN);
  return 0;
}

/* In the device's context. */
static int open_handle(struct block *block, const struct ticket *ticket, uint64_t offset,
                       CUipcMemHandle handle) {
  struct cuda_pointer pointer;
  CUresult result = cuda_driver->ipc_open(&block->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_ERROR_INVALID_CONTEXT)
    return error_no_ipc("the driver cannot map GPU memory of the same process by IPC");
  if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE)
    return error_set(HAUL_ETICKET, 0, NULL, NULL, "the peer's IPC handle is invalid");
  if (result != CUDA_SUCCESS)
    return cuda_failed(block->device, result, "cuIpcOpenMemHandle");
  cuda_pointer(cuda_driver, (void *)(uintptr_t)block->base, &pointer);
  if (pointer.start == block->base && offset <= pointer.size &&
      ticket->length <= pointer.size - offset)
    return 0;
  cuda_driver->ipc_close(block->base);
  return error_set(HAUL_ETICKET, 0, NULL, NULL, "the GPU memory is not what the ticket says");
}

int cuda_ipc_import(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                    struct memory *memory) {
  CUipcMemHandle handle;
  struct wire wire = wire_over(ticket->extra, sizeof ticket->extra);
  uint64_t offset = wire_get64(&wire);
  if (!cuda_driver->ipc_open || !cuda_driver->ipc_close)
    return error_no_ipc("NVIDIA's driver has no legacy IPC here");
  struct block *block;
  int code = block_begin(memory->place.device, &block);
  if (code)
    return code;
  memcpy(&handle, token, IPC_TOKEN);
  code = block_end(block, open_handle(block, ticket, offset, handle));
  if (code)
    return code;
  block->ipc = true;
  block_fill(block, (void *)(uintptr_t)(block->base + offset), ticket->length, memory);
  memory->imported = true;
  return 0;
}
