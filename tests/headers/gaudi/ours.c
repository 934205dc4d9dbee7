/* SPDX-License-Identifier: MIT */
#include "memory/gaudi/driver.h"

#define CALL(slot, result, arguments)                                                              \
  __typeof__(((struct gaudi_driver *)0)->slot) call_hlthunk_##slot;
GAUDI_CALLS(CALL)
GAUDI_OPTIONAL_CALLS(CALL)
