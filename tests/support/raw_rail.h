/* SPDX-License-Identifier: MIT
 * A foreign peer's end of a rail: a queue pair of the double, by which a test says and hears what
 * no honest node would. */
#ifndef HAUL_TESTS_RAW_RAIL_H
#define HAUL_TESTS_RAW_RAIL_H

#include <stdbool.h>

#include "fabric/rdma/frame.h"
#include "fabric/rdma/verbs.h"

#define RAIL_DEPTH 256u /* sends, and receives */

struct raw_rail {
  const struct verbs *verbs;
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *completions;
  struct ibv_qp *queue;
  struct ibv_mr *registration;
  uint8_t not_ready_timer;      /* the specification's code, told to who finds no receive */
  uint32_t taken, immediates;   /* receives that were completed; those of writes with immediate */
  enum ibv_wc_status failure;   /* the first that was no success */
  unsigned count;               /* records that came and were not asked for yet, below */
  struct rdma_record heard[64]; /* in their order */
  uint8_t bytes[(RAIL_DEPTH + 2) * RDMA_RECORD]; /* of receives, and of one send, too long or not */
};

/* With so many receives, which are posted again as they are taken. */
void raw_rail_open(struct raw_rail *rail, unsigned receives);
/* The first receives of one that was opened without. */
void raw_rail_receive(struct raw_rail *rail, unsigned receives);
void raw_rail_close(struct raw_rail *rail);
/* What a greeting says of it. */
struct rdma_end raw_rail_end(const struct raw_rail *rail);
void raw_rail_connect(struct raw_rail *rail, const struct rdma_end *peer);
/* Memory of this process that the peer may reach. */
struct ibv_mr *raw_rail_register(struct raw_rail *rail, void *address, size_t length);
/* False when it failed. */
bool raw_rail_send(struct raw_rail *rail, const void *bytes, size_t length);
/* A write of no bytes with that immediate, without waiting for it. */
void raw_rail_tell(struct raw_rail *rail, uint32_t number);
bool raw_rail_say(struct raw_rail *rail, const struct rdma_record *record);
/* The next one of the type; others are skipped. Fails the test after 20 s. */
struct rdma_record raw_rail_hear(struct raw_rail *rail, enum rdma_record_type type);

#endif
