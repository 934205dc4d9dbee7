/* SPDX-License-Identifier: MIT */
#include "integrations/cudahook/runtime.h"

#define CALL(slot, symbol, arguments) __typeof__(((struct runtime *)0)->slot) call_##symbol;
RUNTIME_HOOKED(CALL)
RUNTIME_USED(CALL)
