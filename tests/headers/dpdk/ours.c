/* SPDX-License-Identifier: MIT */
#include "memory/dpdk/dpdk.h"

#define CALL(slot, symbol, result, arguments)                                                      \
  __typeof__(((struct dpdk_eal *)0)->slot) call_##symbol;
DPDK_EAL_REQUIRED(CALL)
#undef CALL
#define CALL(slot, symbol, result, arguments) __typeof__(result(*) arguments) call_##symbol;
DPDK_GPU_REQUIRED(CALL)
