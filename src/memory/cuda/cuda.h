/* SPDX-License-Identifier: MIT
 * NVIDIA GPU memory: internal declarations for devices, contexts, blocks and copies. */
#ifndef HAUL_MEMORY_CUDA_CUDA_H
#define HAUL_MEMORY_CUDA_CUDA_H

#include <pthread.h>

#include "core/list.h"
#include "memory/cuda/driver.h"
#include "memory/provider.h"

#define CUDA_DEVICES_MAX 32
#define CUDA_LANES       8 /* copies in progress per device, at most */

extern const struct provider provider_cuda;

/* Copies to a device and copies from it run in streams of their own. A driver's callback blocks its
 * stream, so each of the two has another stream for the callbacks. */
enum cuda_stream { CUDA_INTO, CUDA_OUT, CUDA_INTO_ENDS, CUDA_OUT_ENDS, CUDA_STREAMS };

/* Device resources of one copy in progress. */
struct cuda_lane {
  unsigned generation; /* of the context of the events; 0: no events */
  CUevent events[2];
  /* Guarded by engine.c's lock. */
  bool busy;
  void (*wake)(void *user); /* the copy's */
  void *user;
};

/* Devices visible to this process, with the driver's numbers. */
struct cuda_device {
  /* Constant after probing. */
  CUdevice handle;
  uint8_t uuid[16];
  char name[64], pci[16];
  int numa;
  size_t memory;
  bool shares;             /* virtual-memory calls with shareable descriptors */
  bool registers;          /* such memory is GPUDirect-RDMA capable */
  bool dmabuf;             /* it can be exported as dma-bufs */
  bool flushes;            /* a NIC's writes need a flush call */
  uint32_t reached_by;     /* bit mask of devices that can access its memory */
  CUmemAllocationProp how; /* properties of its shareable memory */
  size_t granularity;      /* in bytes, of shareable memory */

  pthread_mutex_t lock;        /* guards the fields below */
  _Atomic bool ready;          /* the fields below are valid; read without the lock */
  _Atomic bool lost;           /* the context was destroyed, with all its resources */
  _Atomic unsigned generation; /* of the context, from 1 */
  CUcontext context;           /* the primary context, shared with the CUDA runtime */
  /* Pinned memory of the context, and its driver-assigned id, which is never reused. It detects a
   * reset: the context that follows a reset looks like the former one in all else. */
  void *_Atomic marker;
  _Atomic uint64_t marker_id;
  CUstream streams[CUDA_STREAMS];

  /* Guarded by engine.c's lock. */
  struct cuda_lane lanes[CUDA_LANES];
  struct list waiting; /* copies without a lane, in order of arrival */
};

/* The number of devices. The first call after a start initialises the driver, which may take a
 * second. */
unsigned cuda_devices(void);
/* Why there are none: the code, with the detail. */
int cuda_absence(void);
/* Releases the contexts and drops the device list. */
void cuda_devices_stop(void);

/* The driver, and a device that cuda_devices has counted. */
extern const struct cuda_driver *cuda_driver;
struct cuda_device *cuda_device(unsigned number);
/* The device with this UUID; -1: not visible to this process. */
int cuda_device_by_uuid(const uint8_t uuid[16]);

/* Makes the device's context current in this thread until cuda_leave, which restores the former
 * one. The first call for a device creates or retains the context, which blocks; so does the first
 * after a reset. */
int cuda_enter(unsigned device);
/* The same without blocking: HAUL_ESTALE if the context does not exist. */
int cuda_enter_again(unsigned device);
void cuda_leave(void);

/* Maps a driver result of `call` to a code with the detail. Notes that the context is lost. */
int cuda_failed(unsigned device, CUresult result, const char *call);
/* Is the context of this generation the present one, as far as is known? */
bool cuda_is_current(unsigned device, unsigned generation);
/* HAUL_ESTALE, for resources of a context that the application has reset. */
int cuda_gone(unsigned device);

/* In the device's context: gives a lane that the caller has taken the context's events. */
int cuda_lane_build(unsigned device, struct cuda_lane *lane);

/* State of a block of GPU memory: memory->state. */
struct block {
  unsigned device, generation;
  CUdeviceptr base;
  size_t length; /* from the base on, as the driver allocated it */
  CUmemGenericAllocationHandle handle;
  bool mapped; /* by the virtual-memory calls; `handle` is ours */
  bool ipc;    /* memory of another process's cudaMalloc, mapped through legacy IPC */
};

/* A new block, in the device's context until block_end, which frees it unless `code` is 0, and
 * returns the code. */
int block_begin(unsigned device, struct block **block);
int block_end(struct block *block, int code);
/* Fills *memory with the block, which cuda_free then ends. */
void block_fill(struct block *block, void *address, size_t length, struct memory *memory);

int cuda_alloc(unsigned device, size_t length, unsigned flags, struct memory *memory);
void cuda_free(struct memory *memory);
int cuda_owns(const void *address, size_t length, struct haul_place *place);
int cuda_wrap(void *address, size_t length, struct memory *memory);
int cuda_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor);
int cuda_locate(const struct ticket *ticket, uint16_t *device);
int cuda_import(const struct ticket *ticket, int descriptor, struct memory *memory);
int cuda_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset);

/* HAUL_ESTALE if the memory is known to be gone with its context. */
int cuda_check(const struct memory *memory);
/* The same, after checking the context. */
int cuda_look(const struct memory *memory);
/* cuda_enter_again, unless the memory is known to be gone. */
int cuda_enter_for(const struct memory *memory);

static inline CUdeviceptr cuda_address(const struct memory *memory, uint64_t offset) {
  return (CUdeviceptr)(uintptr_t)memory->address + offset;
}

int cuda_ipc_export(const struct memory *memory, struct ticket *ticket, uint8_t token[IPC_TOKEN]);
int cuda_ipc_import(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                    struct memory *memory);

/* block.c: addresses */

/* The driver's attributes of an address. */
struct cuda_pointer {
  unsigned type; /* CU_MEMORYTYPE_…, 0: unknown */
  bool managed;  /* managed memory, which the CPU may access */
  bool plain;    /* of cuMemAlloc and not from a pool: it has a legacy IPC handle */
  int device;
  unsigned long long buffer; /* id of the allocation or mapping, never reused */
  CUdeviceptr start;         /* of the allocation, or of the reserved addresses */
  size_t size;
  CUdeviceptr mapping; /* that holds the address */
  size_t mapping_size; /* 0: the driver does not tell */
};
void cuda_pointer(const struct cuda_driver *driver, const void *address,
                  struct cuda_pointer *pointer);

bool cuda_reaches(const struct memory *own, const struct memory *other);
int cuda_event_look(unsigned device, void *event, bool again);
int cuda_copy_start(struct copy *copy);
int cuda_copy_poll(struct copy *copy);
void cuda_copy_cancel(struct copy *copy);
bool cuda_needs_cpu(const struct memory *host);
int cuda_pin(unsigned device, struct memory *host);
void cuda_unpin(struct memory *host);
int cuda_checksum(struct memory *memory, uint64_t offset, uint64_t length, uint64_t *sum);

size_t cuda_checks(struct haul_check *checks, size_t room);

/* "/sys" and "/dev"; other folders in tests. */
extern const char *cuda_sys, *cuda_dev;

#endif
