/* SPDX-License-Identifier: MIT
 * NVIDIA GPU memory: the provider table. */
#include "memory/cuda/cuda.h"

#include <stdio.h>

static void cuda_describe(unsigned number, struct haul_device *info) {
  const struct cuda_device *device = cuda_device(number);
  info->numa = device->numa;
  info->memory = device->memory;
  snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, device->name);
  snprintf(info->pci, sizeof info->pci, "%.*s", (int)sizeof info->pci - 1, device->pci);
  if (device->shares)
    snprintf(info->exports, sizeof info->exports, "descriptor%s",
             device->dmabuf ? ", dma-buf to NICs" : "");
  else
    snprintf(info->exports, sizeof info->exports, "%s",
             device->dmabuf ? "dma-buf to NICs alone" : "nothing");
}

static int cuda_fence(struct memory *memory, enum fence direction) {
  unsigned number = memory->place.device;
  if (direction != FENCE_AFTER_WRITE || !cuda_device(number)->flushes)
    return 0;
  int code = cuda_enter_for(memory);
  if (code)
    return code;
  CUresult result = cuda_driver->flush_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  cuda_leave();
  return result == CUDA_SUCCESS ? 0 : cuda_failed(number, result, "cuFlushGPUDirectRDMAWrites");
}

const struct provider provider_cuda = {
    .name = "cuda",
    .kind = HAUL_CUDA,
    .numbered = true,
    .copy_bytes_per_ns = 55, /* both as measured: docs/drivers.md */
    .copy_latency_ns = 10000,
    .stop = cuda_devices_stop,
    .devices = cuda_devices,
    .why_none = cuda_absence,
    .describe = cuda_describe,
    .checks = cuda_checks,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .owns = cuda_owns,
    .wrap = cuda_wrap,
    .check = cuda_look,
    .export = cuda_export,
    .locate = cuda_locate,
    .import = cuda_import,
    .ipc_export = cuda_ipc_export,
    .ipc_import = cuda_ipc_import,
    .dmabuf = cuda_dmabuf,
    .reaches = cuda_reaches,
    .copy_start = cuda_copy_start,
    .copy_poll = cuda_copy_poll,
    .copy_cancel = cuda_copy_cancel,
    .needs_cpu = cuda_needs_cpu,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .event_look = cuda_event_look,
    .gathers = true,
    .wakes = true,
    .fence = cuda_fence,
    .checksum = cuda_checksum,
};
