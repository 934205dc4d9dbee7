/* SPDX-License-Identifier: MIT
 * What the programs here share. Each is an application of the CUDA runtime's, which it is linked to
 * dynamically, and runs with the hook preloaded and without. */
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

/* The hook's own calls; NULL without it. */
struct hook {
  void *(*alloc)(size_t size, int device, void *stream);
  void (*free)(void *address, size_t size, int device, void *stream);
  int (*find)(const void *address, haul_region **region, uint64_t *offset);
  int (*publish)(const void *address, const char *name, unsigned rights);
};
extern struct hook hook;
extern struct cudart_double *runtime_door;
/* NULL until the runtime has opened the driver. */
struct cuda_double *driver_door(void);

/* Finds all that; NULL for `library`: the one that was preloaded. */
int find_hook(void *library);

/* The address is haul's, if the hook is there. */
void check_served(const void *address);
void check_passed_on(const void *address);

/* Bytes of this length and seed into memory of the device's, and a look whether they are there. */
void put_bytes(void *to, size_t length, uint64_t seed);
void check_bytes(const void *from, size_t length, uint64_t seed);

#endif
