/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/verbs.h"

#define CALL(slot, symbol) __typeof__(((struct verbs *)0)->slot) call_##symbol;
VERBS_REQUIRED(CALL)
VERBS_OPTIONAL(CALL)
