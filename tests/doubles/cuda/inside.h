/* SPDX-License-Identifier: MIT
 * What the double's own files share. */
#ifndef HAUL_TESTS_CUDA_INSIDE_H
#define HAUL_TESTS_CUDA_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "door.h"
#include "memory/cuda/api.h"

#define GPUS_MAX 8
#define GRAIN    ((size_t)2 << 20)

/* Ends the process unless it holds: the caller broke the driver's contract. */
#define DEMAND(holds)                                                                              \
  do {                                                                                             \
    if (!(holds))                                                                                  \
      double_broken(__func__, #holds);                                                             \
  } while (0)
_Noreturn void double_broken(const char *call, const char *what);

struct gpu {
  unsigned machine; /* its number in the machine */
  CUuuid uuid;
  _Atomic size_t used;
};

/* The primary context of a visible GPU. */
struct CUctx_st {
  unsigned gpu;
  unsigned retains;            /* device.c's lock */
  _Atomic unsigned generation; /* the same to change it */
  _Atomic bool active;
  _Atomic CUresult broken; /* a copy failed in it: every call says so from then on */
};

/* device.c */
extern struct gpu gpus[GPUS_MAX]; /* that are visible */
extern unsigned gpu_count;
extern struct CUctx_st contexts[GPUS_MAX];
extern _Atomic bool initialised;
/* The calling thread's context, or NULL and the driver's code for that. */
CUcontext current(CUresult *code);
/* The same for what waits: also when a copy has failed in it. */
CUcontext standing(CUresult *code);
int gpu_by_uuid(const CUuuid *uuid);
/* Counts down to a fault. */
bool is_due(_Atomic unsigned long long *counter);

/* memory.c */

/* Where the double sees bytes of the GPU's; counts as in use until `forget`. NULL: they are
 * nobody's or out of this context's reach. */
struct range;
char *see(CUdeviceptr address, size_t bytes, unsigned gpu, bool write, struct range **range);
void forget(struct range *range);
bool is_pinned(const void *address);
void memory_reset(unsigned gpu);

/* stream.c */
void streams_reset(CUcontext context);

#endif
