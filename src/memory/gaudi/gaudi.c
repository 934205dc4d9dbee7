/* SPDX-License-Identifier: MIT
 * Intel Gaudi: the provider table. */
#include "memory/gaudi/gaudi.h"

#include <sched.h>
#include <stdio.h>

#include "core/error.h"
#include "core/sum.h"

#define SUM_SLICE ((uint64_t)1 << 20)

static int gaudi_start(void) {
  gaudi_devices_close(); /* checks may have probed after a failed start */
  return gaudi_settings_read();
}

static void gaudi_describe(unsigned number, struct haul_device *info) {
  const struct gaudi_device *device = gaudi_device_at(number);
  if (!device)
    return;
  info->numa = device->numa;
  info->memory = device->memory;
  snprintf(info->name, sizeof info->name, "Intel Gaudi2 %.19s", device->card);
  snprintf(info->pci, sizeof info->pci, "%s", device->bus);
  snprintf(info->exports, sizeof info->exports, "dma-buf to NICs alone");
}

/* Polls without sleeping: a node's loop sums many small segments. */
static int gaudi_fetch(struct memory *buffer, struct memory *memory, uint64_t offset,
                       uint64_t length) {
  struct copy copy = {.to = buffer, .from = memory, .from_offset = offset, .length = length};
  int status = gaudi_copy_start(&copy);
  if (status != 0)
    return status;
  while ((status = gaudi_copy_poll(&copy)) == 1)
    sched_yield();
  return status;
}

/* With the device's sum_lock. */
static int sum_slices(struct gaudi_device *device, struct memory *memory, uint64_t offset,
                      uint64_t length, XXH3_state_t *sum) {
  const struct haul_place host = {HAUL_HOST, 0};
  struct memory *buffer = &device->sum_buffer;
  int code = 0;
  if (!buffer->provider && (code = memory_alloc(host, SUM_SLICE, HAUL_REGION_PRIVATE, buffer)) != 0)
    buffer->provider = NULL;
  for (uint64_t at = 0; code == 0 && at < length; at += SUM_SLICE) {
    uint64_t bytes = length - at < SUM_SLICE ? length - at : SUM_SLICE;
    code = gaudi_fetch(buffer, memory, offset + at, bytes);
    if (code == 0)
      XXH3_64bits_update(sum, buffer->view, bytes);
  }
  return code;
}

/* On the host, as the device cannot sum. */
static int gaudi_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum) {
  struct gaudi_device *device = gaudi_device_of(memory);
  XXH3_state_t *state = XXH3_createState();
  if (!state)
    return error_memory("a checksum");
  XXH3_64bits_reset(state);
  pthread_mutex_lock(&device->sum_lock);
  int code = sum_slices(device, memory, offset, length, state);
  pthread_mutex_unlock(&device->sum_lock);
  *sum = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return code;
}

const struct provider provider_gaudi = {
    .name = "gaudi",
    .kind = HAUL_GAUDI,
    .numbered = true,
    /* Initial estimates for PCIe 4.0 x16; not measured. */
    .copy_bytes_per_ns = 20,
    .copy_latency_ns = 30000,
    .unshareable = "one process opens a Gaudi device, and neither a second one nor its processor "
                   "maps the dma-buf of it",
    .start = gaudi_start,
    .stop = gaudi_devices_close,
    .devices = gaudi_devices,
    .why_none = gaudi_why_none,
    .describe = gaudi_describe,
    .checks = gaudi_checks,
    .alloc = gaudi_alloc,
    .free = gaudi_free,
    .owns = gaudi_owns,
    .wrap = gaudi_wrap,
    .dmabuf = gaudi_dmabuf,
    .reaches = gaudi_reaches,
    .forget = gaudi_forget,
    .copy_start = gaudi_copy_start,
    .copy_poll = gaudi_copy_poll,
    .copy_cancel = gaudi_copy_cancel,
    .checksum = gaudi_checksum,
    /* No fence. A submission ends after its bytes (message barrier), and DMA over PCI is coherent
     * with CPUs. A NIC's writes through the dma-buf are ordered by PCI before the NIC's completion,
     * and the device's engines read HBM without a cache that would need a flush. */
};
