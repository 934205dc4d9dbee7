/* SPDX-License-Identifier: MIT
 * GPU memory of NVIDIA's, inside: devices and their contexts, blocks, copies. */
#ifndef HAUL_MEMORY_CUDA_CUDA_H
#define HAUL_MEMORY_CUDA_CUDA_H

#include <pthread.h>

#include "memory/cuda/driver.h"
#include "memory/provider.h"

#define CUDA_DEVICES_MAX 32
#define CUDA_LANES       8 /* copies under way at a time, a device */

extern const struct provider provider_cuda;

/* What one copy has of its device while it is under way. */
struct cuda_lane {
  bool busy;           /* the device's lock */
  unsigned generation; /* of the context that the rest belongs to; 0: there is no rest */
  CUevent events[2];
};

/* The driver's devices that this process may see, under the driver's own numbers. */
struct cuda_device {
  /* Constant from the probe on. */
  CUdevice handle;
  uint8_t uuid[16];
  char name[64], pci[16];
  int numa;
  size_t memory;
  bool shares;             /* virtual-memory calls, and descriptors for what they make */
  bool registers;          /* such memory can be made for NICs */
  bool dmabuf;             /* it becomes dma-bufs */
  bool flushes;            /* a NIC's writes become visible by a call */
  uint32_t reached_by;     /* devices that can access its memory, a bit each */
  CUmemAllocationProp how; /* its shareable memory is made */
  size_t granularity;      /* of shareable memory */

  pthread_mutex_t lock;        /* guards what follows */
  _Atomic bool ready;          /* the rest may be used; read by anybody */
  _Atomic bool lost;           /* the context is gone, and what it had */
  _Atomic unsigned generation; /* of the context, from 1 on */
  CUcontext context;           /* the primary one, which the CUDA runtime shares */
  /* Pinned memory that goes with the context, and the driver's number of it, which no other memory
   * gets: a context that was taken again after a reset looks like the one before in all else. */
  void *_Atomic mark;
  _Atomic uint64_t mark_number;
  CUstream into, out; /* what writes device memory; what only reads it */
  struct cuda_lane lanes[CUDA_LANES];
};

/* ---- device.c ---- */

/* How many there are. Looks for them on the first call after a start, which initialises the driver:
 * that may take a second. */
unsigned cuda_devices(void);
/* Why there are none: sets the detail and returns the code. */
int cuda_absence(void);
/* Forgets what was found, and gives the contexts back. */
void cuda_devices_stop(void);

/* The driver and a device, once cuda_devices has counted it. */
extern const struct cuda_driver *cuda_driver;
struct cuda_device *cuda_device(unsigned number);
/* The number of the device with this UUID; -1 for one that is not visible here. */
int cuda_device_by_uuid(const uint8_t uuid[16]);

/* Makes the device's context this thread's own until cuda_leave, which gives the thread back what
 * it had. The first one of a device makes the context, or takes the application's; that blocks. So
 * does the first after the application has reset the device. */
int cuda_enter(unsigned device);
/* The same for what must not block: HAUL_ESTALE where the context is not there (any more). */
int cuda_enter_again(unsigned device);
void cuda_leave(void);

/* The code for a result of `call`, with the detail. Notes when the context is gone. */
int cuda_failed(unsigned device, CUresult result, const char *call);
/* HAUL_ESTALE, for what belonged to a context that the application has ended. */
int cuda_gone(unsigned device);

/* With the device's lock and in its context: fills a lane that nobody uses and that has nothing. */
int cuda_lane_build(struct cuda_device *device, struct cuda_lane *lane);

/* ---- block.c ---- */

int cuda_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory);
void cuda_free(struct memory *memory);
int cuda_owns(const void *address, size_t length, struct haul_place *place);
int cuda_wrap(void *address, size_t length, struct memory *memory);
int cuda_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
int cuda_locate(const struct ticket *ticket, uint16_t *device);
int cuda_import(const struct ticket *ticket, int descriptor, struct memory *memory);
uint64_t cuda_buffer(const struct memory *memory);
int cuda_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);

/* HAUL_ESTALE when the memory is known to have gone away with its context. */
int cuda_check(const struct memory *memory);
/* The same, after a look at the context. */
int cuda_look(const struct memory *memory);

static inline CUdeviceptr cuda_address(const struct memory *memory, uint64_t offset) {
  return (CUdeviceptr)(uintptr_t)memory->address + offset;
}

/* ---- lend.c ---- */

int cuda_ipc_export(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]);
int cuda_ipc_import(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                    struct memory *memory);

/* ---- block.c: addresses ---- */

/* What the driver knows of an address. */
struct cuda_pointer {
  unsigned type; /* CU_MEMORYTYPE_…, 0: nothing */
  bool managed;  /* it moves between device and host, and the CPU may touch it */
  int device;
  unsigned long long buffer; /* its number */
  CUdeviceptr start;         /* of the allocation, or of the mapping */
  size_t size;
};
void cuda_pointer(const struct cuda_driver *driver, const void *address,
                  struct cuda_pointer *pointer);

/* ---- engine.c ---- */

bool cuda_reaches(const struct memory *other);
int cuda_copy_start(struct copy *copy);
int cuda_copy_poll(struct copy *copy);
void cuda_copy_cancel(struct copy *copy);
bool cuda_needs_cpu(const struct memory *host);
void cuda_unpin(struct memory *host);
int cuda_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum);

/* ---- checks.c ---- */

size_t cuda_checks(struct haul_check *checks, size_t room);

/* The kernel's files; another folder in tests. */
extern const char *cuda_sys, *cuda_dev;

#endif
