/* SPDX-License-Identifier: MIT */
#include "runtime.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct runtime none;
static _Atomic(const struct runtime *) known;

/* One that a Python module brought is not in the order in which RTLD_NEXT looks. */
static void *loaded_runtime(void) {
  static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
  void *library = NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
    library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
  return library;
}

static void *look_up(void *library, const char *symbol) {
  void *found = dlsym(RTLD_NEXT, symbol);
  return found || !library ? found : dlsym(library, symbol);
}

static void fill(struct runtime *calls) {
  void *library = loaded_runtime(), *found;
  calls->serves = true;
#define FILL(slot, symbol, arguments)                                                              \
  found = look_up(library, #symbol);                                                               \
  memcpy(&calls->slot, &found, sizeof found);
  RUNTIME_HOOKED(FILL)
#undef FILL
#define FILL(slot, symbol, arguments)                                                              \
  found = look_up(library, #symbol);                                                               \
  memcpy(&calls->slot, &found, sizeof found);                                                      \
  calls->serves = calls->serves && found;
  RUNTIME_USED(FILL)
#undef FILL
}

/* Threads may look at the same time; the first one's table stays. */
static const struct runtime *look(void) {
  const struct runtime *first = NULL;
  struct runtime *mine = calloc(1, sizeof *mine);
  if (!mine)
    return &none;
  fill(mine);
  if (!mine->malloc || !atomic_compare_exchange_strong(&known, &first, mine)) {
    free(mine);
    return first ? first : &none;
  }
  return mine;
}

const struct runtime *runtime(void) {
  const struct runtime *calls = atomic_load_explicit(&known, memory_order_acquire);
  return calls ? calls : look();
}

/* A capture in the mode "global" forbids every thread to ask for events; "relaxed" is the thread's
 * word that it knows what it does. */
struct calm calm_begin(const struct runtime *calls) {
  struct calm calm = {calls->peek_error(), cudaStreamCaptureModeRelaxed};
  calls->exchange_mode(&calm.mode);
  return calm;
}

/* An error that was there before cannot be set again: then what came since is left. */
void calm_end(const struct runtime *calls, const struct calm *calm) {
  int mode = calm->mode;
  calls->exchange_mode(&mode);
  if (calm->error == cudaSuccess)
    calls->last_error();
}

bool is_capturing(const struct runtime *calls, cudaStream_t stream, cudaError_t *error) {
  int status = cudaStreamCaptureStatusNone;
  struct calm calm = calm_begin(calls);
  *error = calls->is_capturing(stream, &status);
  calm_end(calls, &calm);
  /* The legacy stream is not captured itself; this is its answer while one is that waits for it. */
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
