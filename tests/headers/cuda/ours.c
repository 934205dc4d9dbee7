/* SPDX-License-Identifier: MIT */
#include "memory/cuda/driver.h"

#define CALL(slot, symbol, arguments) __typeof__(((struct cuda_driver *)0)->slot) call_##symbol;
CUDA_REQUIRED(CALL)
CUDA_OPTIONAL(CALL)
