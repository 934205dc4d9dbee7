/* SPDX-License-Identifier: MIT
 * What the double's own files share. */
#ifndef HAUL_TESTS_IBVERBS_INSIDE_H
#define HAUL_TESTS_IBVERBS_INSIDE_H

#include "double.h"

/* As the real library's own sources: the names are functions here. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* Ends the process unless it holds: the caller broke the library's contract. */
#define DEMAND(holds)                                                                              \
  do {                                                                                             \
    if (!(holds))                                                                                  \
      double_broken(__func__, #holds);                                                             \
  } while (0)
_Noreturn void double_broken(const char *call, const char *what);

/* Each object begins with the library's own struct and ends with its mark. */
#define LIVING UINT32_C(0x11fe11fe)
#define ENDED  UINT32_C(0xdead0b1e)

struct double_context {
  struct verbs_context verbs; /* its last field is the ibv_context that callers see */
  struct double_device *device;
  unsigned pds, channels, cqs; /* that live on it */
  uint32_t mark;
};

/* Checks that it is open. */
struct double_context *double_context_of(struct ibv_context *context);

#endif
