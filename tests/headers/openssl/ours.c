/* SPDX-License-Identifier: MIT */
#include "core/tls/openssl.h"

#define CALL(slot, symbol, result, parameters)                                                     \
  __typeof__(((struct openssl *)0)->slot) call_##symbol;
OPENSSL_CALLS(CALL)
