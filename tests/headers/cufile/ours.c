/* SPDX-License-Identifier: MIT */
#include "file/cufile_api.h"

#define CALL(slot, symbol, result, arguments)                                                      \
  __typeof__(((struct cufile_calls *)0)->slot) call_##symbol;
CUFILE_REQUIRED(CALL)
CUFILE_OPTIONAL(CALL)
