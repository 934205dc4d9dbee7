/* SPDX-License-Identifier: MIT
 * What the double's own files share. */
#ifndef HAUL_TESTS_CUDART_INSIDE_H
#define HAUL_TESTS_CUDART_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cudart.h"
#include "door.h"
#include "memory/cuda/api.h"

#define DEVICES_MAX 8

/* ---- device.c ---- */

/* The driver's calls; filled by the first `enter`. */
struct driver {
#define DRIVER_SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_REQUIRED(DRIVER_SLOT)
#undef DRIVER_SLOT
};
extern struct driver driver;

/* Starts the driver once; in a forked child it is the parent's, and may be in any state. */
cudaError_t start_once(void);
/* Makes this device's context the thread's own until `leave`. The first call starts the driver. */
cudaError_t enter(int device);
void leave(void);
int current_device(void);
/* Notes an error as the thread's last one. The driver's numbers are the runtime's. */
cudaError_t done(int error);

/* ---- stream.c ---- */

struct stream {
  struct stream *next;
  CUstream theirs;
  int device;
  unsigned flags;
  int status, mode; /* of its capture */
  pthread_t capturer;
};

extern pthread_mutex_t streams_lock;

/* The application's name for a stream. With the lock, and in the device's context. */
cudaError_t find_stream(cudaStream_t name, struct stream **stream);
/* What a capture under way forbids this thread, which ends the capture. */
cudaError_t refuse_unsafe(void);
/* Waits for what the device's streams have been given; what waits for a capture ends it. */
cudaError_t wait_for_device(int device);
/* The same for the streams that the legacy one waits for, before it does anything. */
cudaError_t wait_for_blocking(int device);
void forget_streams(int device);

#endif
