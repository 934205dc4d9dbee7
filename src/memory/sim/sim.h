/* SPDX-License-Identifier: MIT
 * The emulated accelerator: internal declarations. */
#ifndef HAUL_MEMORY_SIM_SIM_H
#define HAUL_MEMORY_SIM_SIM_H

#include "core/ranges.h"
#include "memory/provider.h"
#include "memory/shm.h"

#define SIM_DEVICES_MAX 16

extern const struct provider provider_sim;

/* The same for all devices. Read from the environment at start, constant until the last stop. */
struct sim_settings {
  unsigned devices;    /* HAUL_SIM_DEVICES: 0 to 16, default 1 */
  uint64_t bandwidth;  /* HAUL_SIM_BANDWIDTH: bytes a second, 0: unlimited */
  uint64_t latency_ns; /* HAUL_SIM_LATENCY_NS: from the call to the first byte */
  uint64_t memory;     /* HAUL_SIM_MEMORY: bytes a device, default 16 GiB */
};
extern struct sim_settings sim_settings;

/* block.c: memory */

/* A block of a device. `base` is inaccessible address space, which serves as the device address.
 * The engine accesses the bytes at `view`, which does not leave this folder. */
struct sim_block {
  struct range range; /* in block.c's `blocks` until the owner frees it */
  char *base;
  void *view;
  size_t length;  /* whole pages */
  struct shm shm; /* private memory: no footer */
  uint16_t device;
  bool imported, writable;
  bool counted;           /* in the device's used memory */
  _Atomic uint32_t alive; /* for blocks that wrap this one */
  _Atomic uint32_t refs;  /* its memory, and blocks that wrap it */
};

int sim_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory);
void sim_free(struct memory *memory);
int sim_owns(const void *address, size_t length, struct haul_place *place);
int sim_wrap(void *address, size_t length, struct memory *memory);
int sim_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
int sim_import(const struct ticket *ticket, int descriptor, struct memory *memory);
int sim_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);

/* The engine's address of a byte of sim memory. */
static inline char *sim_view(const struct memory *memory, uint64_t offset) {
  const struct sim_block *block = memory->state;
  return (char *)block->view + ((char *)memory->address - block->base) + offset;
}

/* Number of FENCE_AFTER_WRITE of a device since the process started. The fence does nothing, as the
 * memory is the host's; tests check that it was called. */
uint64_t sim_fences(unsigned device);

/* engine.c: a DMA engine per device */

void engines_open(unsigned count);
/* Ends copies in progress with HAUL_ECLOSED and joins the threads. */
void engines_close(void);

bool sim_reaches(const struct memory *own, const struct memory *other);
int sim_copy_start(struct copy *copy);
int sim_copy_poll(struct copy *copy);
void sim_copy_cancel(struct copy *copy);

#endif
