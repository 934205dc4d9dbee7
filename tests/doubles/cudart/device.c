/* SPDX-License-Identifier: MIT
 * Devices, the driver, and errors. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"

struct cudart_double cudart_double;
struct driver driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic cudaError_t started = -1; /* -1: not tried yet */
static pid_t owner;
static int device_count;
static CUcontext contexts[DEVICES_MAX];

static _Thread_local int current;
static _Thread_local cudaError_t last;

cudaError_t done(int error) {
  if (error != cudaSuccess)
    last = error;
  return error;
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) {
  return last;
}

const char *cudaGetErrorString(cudaError_t error) {
  static _Thread_local char text[48];
  snprintf(text, sizeof text, "error %d of a double of the CUDA runtime", error);
  return text;
}

static bool fill(void *library) {
  void *found;
  bool whole = true;
#define FILL(slot, symbol, arguments)                                                              \
  found = dlsym(library, #symbol);                                                                 \
  memcpy(&driver.slot, &found, sizeof found);                                                      \
  whole = whole && (found || !REQUIRED);
#define REQUIRED true
  CUDA_REQUIRED(FILL)
  CUDA_APPLICATION(FILL)
#undef REQUIRED
#define REQUIRED false
  CUDA_OPTIONAL(FILL)
#undef REQUIRED
#undef FILL
  return whole;
}

static cudaError_t start(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library || !fill(library))
    return cudaErrorInsufficientDriver;
  CUresult result = driver.init(0);
  if (result == CUDA_SUCCESS)
    result = driver.device_count(&device_count);
  owner = getpid();
  return result;
}

cudaError_t start_once(void) {
  if (started == cudaSuccess && getpid() != owner)
    return cudaErrorInitializationError;
  if (started >= 0)
    return started;
  pthread_mutex_lock(&lock);
  if (started < 0)
    started = start();
  pthread_mutex_unlock(&lock);
  return started;
}

cudaError_t enter(int device) {
  cudaError_t error = start_once();
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&lock);
  if (!contexts[device])
    error = driver.primary_retain(&contexts[device], device);
  if (error == cudaSuccess)
    error = driver.context_push(contexts[device]);
  pthread_mutex_unlock(&lock);
  return error;
}

void leave(void) {
  CUcontext was;
  driver.context_pop(&was);
}

int current_device(void) {
  return current;
}

cudaError_t cudaGetDeviceCount(int *count) {
  cudaError_t error = start_once();
  *count = error == cudaSuccess ? device_count : 0;
  return done(error);
}

cudaError_t cudaGetDevice(int *device) {
  cudaError_t error = start_once();
  *device = current;
  return done(error);
}

cudaError_t cudaSetDevice(int device) {
  cudaError_t error = start_once();
  if (error == cudaSuccess && (device < 0 || device >= device_count || device >= DEVICES_MAX))
    error = cudaErrorInvalidDevice;
  if (error == cudaSuccess)
    current = device;
  return done(error);
}

cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t error = enter(current);
  if (error != cudaSuccess)
    return done(error);
  error = wait_for_device(current);
  leave();
  return done(error);
}

/* Other users of the context lose it too. */
cudaError_t cudaDeviceReset(void) {
  cudaError_t error = start_once();
  if (error != cudaSuccess)
    return done(error);
  forget_streams(current);
  pthread_mutex_lock(&lock);
  contexts[current] = NULL;
  error = driver.primary_reset(current);
  pthread_mutex_unlock(&lock);
  return done(error);
}
