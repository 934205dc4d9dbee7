/* SPDX-License-Identifier: MIT
 * Shared by the files of the mock. */
#ifndef HAUL_TESTS_CUDA_INSIDE_H
#define HAUL_TESTS_CUDA_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "calls.h"
#include "door.h"

#define PROTOTYPE(slot, symbol, arguments) CUresult symbol arguments;
CUDA_REQUIRED(PROTOTYPE)
CUDA_OPTIONAL(PROTOTYPE)
#undef PROTOTYPE

#define GPUS_MAX 8
#define GRAIN    ((size_t)2 << 20)

/* Aborts if the caller violates the driver's contract. */
#define DEMAND(condition)                                                                          \
  do {                                                                                             \
    if (!(condition))                                                                              \
      double_broken(__func__, #condition);                                                         \
  } while (0)
_Noreturn void double_broken(const char *call, const char *what);

struct gpu {
  unsigned machine; /* number in the machine */
  CUuuid uuid;
  int file; /* of plain memory */
  _Atomic size_t used;
};

/* The primary context of a visible GPU. */
struct CUctx_st {
  unsigned gpu;
  unsigned retains;            /* under device.c's lock */
  _Atomic unsigned generation; /* likewise for changes */
  _Atomic bool active;
  _Atomic CUresult broken; /* error of a failed copy, returned by every later call */
};

/* device.c */
extern struct gpu gpus[GPUS_MAX]; /* the visible ones */
extern unsigned gpu_count;
extern struct CUctx_st contexts[GPUS_MAX];
extern _Atomic bool initialised;
/* The calling thread's context, or NULL with the driver's code. */
CUcontext current(CUresult *code);
/* The same for calls with implicit synchronization: those that end the use of memory wait for a
 * running kernel or host function, those that begin one only if the mock is strict. */
CUcontext current_to_end(CUresult *code);
CUcontext current_to_begin(CUresult *code);
/* Also a broken context, for calls that wait. */
CUcontext current_or_broken(CUresult *code);
int gpu_by_uuid(const CUuuid *uuid);
/* The calling thread runs a callback, which must not call the driver. */
extern _Thread_local bool in_callback;
/* Counts down to an injected failure. */
bool is_due(_Atomic unsigned long long *counter);

/* memory.c */

/* The mock's mapping of GPU memory; in use until range_release. NULL: unallocated, or not
 * accessible from this context. */
struct range;
char *range_map(CUdeviceptr address, size_t bytes, unsigned gpu, bool write, struct range **range);
void range_release(struct range *range);
bool is_pinned(const void *address);
void memory_reset(unsigned gpu);

/* stream.c */
extern _Atomic unsigned host_functions; /* that run */
void streams_reset(CUcontext context);
CUresult cuStreamSynchronize(CUstream stream);

#endif
