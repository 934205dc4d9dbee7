/* SPDX-License-Identifier: MIT
 * The CUDA runtime of the process, and what the hook does around its calls. */
#ifndef HAUL_CUDAHOOK_RUNTIME_H
#define HAUL_CUDAHOOK_RUNTIME_H

#include <stdbool.h>

#include "runtime_api.h"

struct runtime {
#define RUNTIME_SLOT(slot, symbol, arguments) cudaError_t(*slot) arguments;
  RUNTIME_HOOKED(RUNTIME_SLOT)
  RUNTIME_USED(RUNTIME_SLOT)
#undef RUNTIME_SLOT
  bool serves; /* has all of RUNTIME_USED */
};

/* The runtime loaded in the process; each call searches until there is one. Takes no lock. */
const struct runtime *runtime(void);

/* Between begin and end the hook's calls have no side effects: they keep the last error, and do not
 * invalidate captures of other threads. */
struct saved {
  cudaError_t error;
  int mode;
};
struct saved saved_begin(const struct runtime *calls);
void saved_end(const struct runtime *calls, const struct saved *saved);

/* Whether the stream is being captured, directly or as the legacy stream. Sets *error on failure.
 */
bool is_capturing(const struct runtime *calls, cudaStream_t stream, cudaError_t *error);

/* Makes `device` current. Returns the previous device, for device_leave, or -1 with *error. */
int device_enter(const struct runtime *calls, int device, cudaError_t *error);
void device_leave(const struct runtime *calls, int before, int device);

/* Waits for the device. Fails during a capture that the wait would invalidate. */
cudaError_t device_idle(const struct runtime *calls, int device);

#endif
