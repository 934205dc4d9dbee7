/* SPDX-License-Identifier: MIT
 * libcuda, the user-space library of NVIDIA's driver, opened at run time. */
#ifndef HAUL_MEMORY_CUDA_DRIVER_H
#define HAUL_MEMORY_CUDA_DRIVER_H

#include "core/library.h"
#include "memory/cuda/api.h"

/* Each slot is the symbol that api.h names. */
struct cuda_driver {
#define CUDA_SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_REQUIRED(CUDA_SLOT)
  CUDA_OPTIONAL(CUDA_SLOT)
#undef CUDA_SLOT
};

/* The driver's table, as from library_open: NULL with the detail. Does not initialise the driver.
 */
const struct cuda_driver *cuda_driver_open(void);

/* The name of a result: "CUDA_ERROR_OUT_OF_MEMORY". */
const char *cuda_driver_word(const struct cuda_driver *driver, CUresult result);

/* Where it is not loaded in this process, no address is GPU memory (library_loaded). */
extern struct library cuda_library;

#endif
