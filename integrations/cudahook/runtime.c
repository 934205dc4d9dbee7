/* SPDX-License-Identifier: MIT */
#include "runtime.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct runtime none;
static _Atomic(const struct runtime *) known;

/* RTLD_NEXT does not find a runtime that a Python module loaded. */
static void *loaded_runtime(void) {
  static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
  void *library = NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
    library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
  return library;
}

static void *find_symbol(void *library, const char *symbol) {
  void *found = dlsym(RTLD_NEXT, symbol);
  return found || !library ? found : dlsym(library, symbol);
}

static void runtime_fill(struct runtime *calls) {
  void *library = loaded_runtime(), *found;
  calls->serves = true;
#define FILL(slot, symbol, arguments)                                                              \
  found = find_symbol(library, #symbol);                                                           \
  memcpy(&calls->slot, &found, sizeof found);
  RUNTIME_HOOKED(FILL)
#undef FILL
#define FILL(slot, symbol, arguments)                                                              \
  found = find_symbol(library, #symbol);                                                           \
  memcpy(&calls->slot, &found, sizeof found);                                                      \
  calls->serves = calls->serves && found;
  RUNTIME_USED(FILL)
#undef FILL
}

/* Threads may load it concurrently; the first table stays. */
static const struct runtime *runtime_load(void) {
  const struct runtime *first = NULL;
  struct runtime *mine = calloc(1, sizeof *mine);
  if (!mine)
    return &none;
  runtime_fill(mine);
  if (!mine->malloc || !atomic_compare_exchange_strong(&known, &first, mine)) {
    free(mine);
    return first ? first : &none;
  }
  return mine;
}

const struct runtime *runtime(void) {
  const struct runtime *calls = atomic_load_explicit(&known, memory_order_acquire);
  return calls ? calls : runtime_load();
}

/* A capture in mode "global" forbids event queries in every thread; mode "relaxed" allows them. */
struct saved saved_begin(const struct runtime *calls) {
  struct saved saved = {calls->peek_error(), cudaStreamCaptureModeRelaxed};
  calls->exchange_mode(&saved.mode);
  return saved;
}

/* An earlier error cannot be set again: then the newer one remains. */
void saved_end(const struct runtime *calls, const struct saved *saved) {
  int mode = saved->mode;
  calls->exchange_mode(&mode);
  if (saved->error == cudaSuccess)
    calls->last_error();
}

bool is_capturing(const struct runtime *calls, cudaStream_t stream, cudaError_t *error) {
  int status = cudaStreamCaptureStatusNone;
  struct saved saved = saved_begin(calls);
  *error = calls->is_capturing(stream, &status);
  saved_end(calls, &saved);
  /* The legacy stream is never captured; it reports this while a stream that waits for it is. */
  if (*error == cudaErrorStreamCaptureImplicit) {
    *error = cudaSuccess;
    return true;
  }
  return *error == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

int device_enter(const struct runtime *calls, int device, cudaError_t *error) {
  int before = -1;
  *error = calls->get_device(&before);
  if (*error == cudaSuccess && before != device)
    *error = calls->set_device(device);
  return *error == cudaSuccess ? before : -1;
}

void device_leave(const struct runtime *calls, int before, int device) {
  if (before != device)
    calls->set_device(before);
}

cudaError_t device_idle(const struct runtime *calls, int device) {
  cudaError_t error;
  int before = device_enter(calls, device, &error);
  if (error != cudaSuccess)
    return error;
  if (is_capturing(calls, cudaStreamLegacy, &error))
    error = cudaErrorStreamCaptureUnsupported;
  if (error == cudaSuccess)
    error = calls->device_wait();
  device_leave(calls, before, device);
  return error;
}
