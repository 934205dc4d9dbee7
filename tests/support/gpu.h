/* SPDX-License-Identifier: MIT
 * An application's use of a GPU, through the libcuda that the loader finds, in tests the emulated
 * one. Aborts when the driver fails. */
#ifndef HAUL_TESTS_GPU_H
#define HAUL_TESTS_GPU_H

#include <stdbool.h>
#include <stddef.h>

/* Does haul find a GPU? If not, prints that the program is skipped. */
bool gpu_is_there(void);

/* As cudaMalloc and cudaFree, on the first GPU. */
void *gpu_alloc(size_t length);
void gpu_free(void *address);

/* The emulated driver's settings; NULL: the driver is real. */
struct cuda_double *gpu_double(void);

#endif
