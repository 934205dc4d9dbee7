/* SPDX-License-Identifier: MIT
 * Shared by the programs here: applications that link the CUDA runtime dynamically and run with the
 * hook preloaded and without. */
#ifndef HAUL_TESTS_CUDAHOOK_HOOKED_H
#define HAUL_TESTS_CUDAHOOK_HOOKED_H

#include <stdbool.h>

#include "../../integrations/cudahook/haul-cudahook.h"
#include "doubles/cuda/door.h"
#include "doubles/cudart/cudart.h"
#include "doubles/cudart/door.h"
#include "support/check.h"

#define MIB ((size_t)1 << 20)

#define assert_cuda(call) assert_int_equal(call, cudaSuccess)

/* Calls of haul-cudahook.h; NULL without the hook. */
struct hook {
  void *(*alloc)(size_t size, int device, void *stream);
  void (*free)(void *address, size_t size, int device, void *stream);
  void (*record_stream)(void *address, void *stream);
  int (*find)(const void *address, haul_region **region, uint64_t *offset);
  int (*publish)(const void *address, const char *name, unsigned rights);
};
extern struct hook hook;
extern struct cudart_double *runtime_door;
/* NULL until the runtime has opened the driver. */
struct cuda_double *driver_door(void);

/* Looks them up in `library`; NULL: in preloaded libraries. */
int find_hook(void *library);

/* With the hook, asserts that the memory is from haul, or is not. */
void check_served(const void *address);
void check_passed_on(const void *address);

/* Write a pattern to device memory, and verify it. */
void put_bytes(void *to, size_t length, uint64_t seed);
void check_bytes(const void *from, size_t length, uint64_t seed);

#endif
