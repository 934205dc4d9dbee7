/* SPDX-License-Identifier: MIT
 * libcuda, the user half of NVIDIA's driver, opened at run time: nothing links it, and a host
 * without it has no GPU memory. */
#ifndef HAUL_MEMORY_CUDA_DRIVER_H
#define HAUL_MEMORY_CUDA_DRIVER_H

#include "core/library.h"
#include "memory/cuda/api.h"

/* Each slot is the symbol that api.h gives it. */
struct cuda_driver {
#define CUDA_SLOT(slot, symbol, arguments) CUresult(*slot) arguments;
  CUDA_REQUIRED(CUDA_SLOT)
  CUDA_OPTIONAL(CUDA_SLOT)
#undef CUDA_SLOT
};

/* The driver's calls, as library_open gives them: NULL with the detail where there are none. Does
 * not initialise it. */
const struct cuda_driver *cuda_driver_open(void);

/* The same where somebody in this process has loaded it already, else NULL: then no address can be
 * a GPU's. Costs next to nothing and sets no detail. */
const struct cuda_driver *cuda_driver_loaded(void);

/* The driver's word for a result: "CUDA_ERROR_OUT_OF_MEMORY". */
const char *cuda_driver_word(const struct cuda_driver *driver, CUresult result);

/* For tests: what is opened, and closing it. */
extern struct library cuda_library;

#endif
