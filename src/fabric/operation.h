/* SPDX-License-Identifier: MIT
 * Operations of transfers, and atomic operations by the CPU. */
#ifndef HAUL_FABRIC_OPERATION_H
#define HAUL_FABRIC_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "haul/haul.h"

static inline bool operation_is_atomic(enum haul_operation operation) {
  return operation >= HAUL_OP_FETCH_ADD;
}

/* The rights that the operation needs at the remote region, all of them. */
static inline unsigned operation_rights(enum haul_operation operation) {
  return operation == HAUL_OP_WRITE  ? HAUL_WRITE
         : operation == HAUL_OP_READ ? HAUL_READ
                                     : HAUL_READ | HAUL_WRITE;
}

/* Of an atomic operation. */
struct operands {
  uint64_t value;   /* FETCH_ADD: the addend; COMPARE_SWAP: the expected value */
  uint64_t desired; /* COMPARE_SWAP */
};

/* A locked instruction: atomic with respect to all CPUs, through any mapping. `place` is a multiple
 * of 8. Returns the old value. */
static inline uint64_t operate(void *place, enum haul_operation operation,
                               const struct operands *operands) {
  uint64_t old = operands->value;
  if (operation == HAUL_OP_FETCH_ADD)
    return __atomic_fetch_add((uint64_t *)place, operands->value, __ATOMIC_SEQ_CST);
  __atomic_compare_exchange_n((uint64_t *)place, &old, operands->desired, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return old;
}

#endif
