/* SPDX-License-Identifier: MIT
 * Shared by the files of the mock. */
#ifndef HAUL_TESTS_CUDART_INSIDE_H
#define HAUL_TESTS_CUDART_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../cuda/calls.h"
#include "cudart.h"
#include "door.h"

#define DEVICES_MAX 8

/* device.c */

/* Calls of the driver, set by the first `enter`; optional ones may be NULL. */
struct driver {
#define DRIVER_SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_REQUIRED(DRIVER_SLOT)
  CUDA_APPLICATION(DRIVER_SLOT)
  CUDA_OPTIONAL(DRIVER_SLOT)
#undef DRIVER_SLOT
};
extern struct driver driver;

/* Initializes the driver once; fails in a forked child. */
cudaError_t start_once(void);
/* Makes the device's context current until `leave`. The first call initializes the driver. */
cudaError_t enter(int device);
void leave(void);
int current_device(void);
/* Sets the thread's last error. The driver's numbers equal the runtime's. */
cudaError_t done(int error);

/* stream.c */

struct stream {
  struct stream *next;
  CUstream theirs;
  int device;
  unsigned flags;
  int status, mode; /* of its capture */
  pthread_t capturer;
};

extern pthread_mutex_t streams_lock;

/* The stream of a handle. With the lock, in the device's context. */
cudaError_t find_stream(cudaStream_t name, struct stream **stream);
/* Fails and invalidates captures that forbid this thread such a call. */
cudaError_t refuse_unsafe(void);
/* Waits for all streams of the device; a wait for a capture invalidates it. */
cudaError_t wait_for_device(int device);
/* The same for the streams that the legacy stream waits for. */
cudaError_t wait_for_blocking(int device);
void forget_streams(int device);

#endif
