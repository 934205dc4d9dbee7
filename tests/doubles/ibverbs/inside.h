/* SPDX-License-Identifier: MIT
 * Internals of the mock. */
#ifndef HAUL_TESTS_IBVERBS_INSIDE_H
#define HAUL_TESTS_IBVERBS_INSIDE_H

#include "double.h"

/* Here these names are functions, not the header's macros. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* Ends the process if the caller broke the library's contract. */
#define DEMAND(holds)                                                                              \
  do {                                                                                             \
    if (!(holds))                                                                                  \
      mock_abort(__func__, #holds);                                                                \
  } while (0)
_Noreturn void mock_abort(const char *call, const char *what);

/* Each object begins with the library's own struct and ends with its mark. */
#define LIVE  UINT32_C(0x11fe11fe)
#define FREED UINT32_C(0xdead0b1e)

struct double_context {
  struct verbs_context verbs; /* its last field is the ibv_context that callers see */
  struct double_device *device;
  void *emulator;                      /* the emulator's part, as in all of these */
  _Atomic unsigned pds, channels, cqs; /* live ones */
  uint32_t mark;
};

struct pd {
  struct ibv_pd seen;
  _Atomic unsigned users;
  uint32_t mark;
};

struct registration {
  struct ibv_mr seen;
  uint64_t iova;
  unsigned access;
  int dmabuf;      /* the descriptor; -1: by address */
  uint64_t offset; /* in the dma-buf */
  void *emulator;
  uint32_t mark;
};

struct channel {
  struct ibv_comp_channel seen;
  _Atomic unsigned cqs;
  void *emulator;
  uint32_t mark;
};

struct cq {
  struct ibv_cq seen;
  _Atomic unsigned qps;
  void *emulator;
  uint32_t mark;
};

struct srq {
  struct ibv_srq seen;
  struct ibv_srq_attr size;
  _Atomic unsigned qps;
  void *emulator;
  uint32_t mark;
};

struct qp {
  struct ibv_qp seen;
  struct ibv_qp_attr attributes;
  struct ibv_qp_init_attr first;
  void *emulator;
  uint32_t mark;
};

/* The partition key at an index below DOUBLE_PKEYS; 0: none. */
uint16_t double_pkey(const struct double_port *port, int index);
bool double_has_gid(const struct double_port *port, unsigned index);

/* Check that the object lives. */
struct double_context *double_context_of(struct ibv_context *context);
struct channel *double_channel_of(struct ibv_comp_channel *seen);
struct cq *double_cq_of(struct ibv_cq *seen);
struct srq *double_srq_of(struct ibv_srq *seen);
struct qp *double_qp_of(struct ibv_qp *seen);

/* Hooks of the emulator.
 * still.c has empty ones. The begin hooks return 0 or an errno; after a failure no end hook
 * follows. */

int emulator_begin_context(struct double_context *context);
void emulator_end_context(struct double_context *context);
int emulator_begin_registration(struct registration *registration); /* sets its keys */
void emulator_end_registration(struct registration *registration);
int emulator_begin_channel(struct channel *channel);
void emulator_end_channel(struct channel *channel);
int emulator_begin_cq(struct cq *cq);
void emulator_end_cq(struct cq *cq);
int emulator_begin_srq(struct srq *srq);
void emulator_end_srq(struct srq *srq);
int emulator_begin_qp(struct qp *qp); /* sets its number */
void emulator_end_qp(struct qp *qp);
/* The current state, which a failure may have changed. */
enum ibv_qp_state emulator_state(const struct qp *qp);
/* Changes to `state` with the current attributes. */
int emulator_to_state(struct qp *qp, enum ibv_qp_state state);

#endif
