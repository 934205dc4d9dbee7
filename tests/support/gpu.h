/* SPDX-License-Identifier: MIT
 * What an application does with a GPU by itself, through whatever libcuda the loader finds: in
 * tests the double. Ends the program where the driver refuses. */
#ifndef HAUL_TESTS_GPU_H
#define HAUL_TESTS_GPU_H

#include <stdbool.h>
#include <stddef.h>

/* Does haul find one? Else it says that the program is skipped. */
bool gpu_is_there(void);

/* As cudaMalloc and cudaFree, on the first GPU. */
void *gpu_alloc(size_t length);
void gpu_free(void *address);

#endif
