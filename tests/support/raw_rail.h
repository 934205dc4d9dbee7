/* SPDX-License-Identifier: MIT
 * A peer's end of an rdma rail by hand: a queue pair of the mock, over which a test sends records
 * that no node would send. */
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
  uint8_t not_ready_timer;        /* the RNR NAK timer, as the InfiniBand specification codes it */
  uint32_t taken, immediates;     /* completed receives; those of writes with immediate */
  enum ibv_wc_status failure;     /* of the first completion that failed */
  unsigned count;                 /* records in `heard` */
  struct rdma_record heard[1024]; /* received and not yet taken, in order */
  uint8_t bytes[(RAIL_DEPTH + 2) * RDMA_RECORD]; /* of the receives, then of one send */
};

/* With this many receives, each posted again when it completes. */
void raw_rail_open(struct raw_rail *rail, unsigned receives);
/* Posts the first receives of a rail that was opened without. */
void raw_rail_receive(struct raw_rail *rail, unsigned receives);
void raw_rail_close(struct raw_rail *rail);
/* Its description in a hello. */
struct rdma_end raw_rail_end(const struct raw_rail *rail);
void raw_rail_connect(struct raw_rail *rail, const struct rdma_end *peer);
/* Memory of this process that the peer may reach. */
struct ibv_mr *raw_rail_register(struct raw_rail *rail, void *address, size_t length);
/* False when the send failed. */
bool raw_rail_send(struct raw_rail *rail, const void *bytes, size_t length);
/* Posts a write of 0 bytes with this immediate, and does not wait for its completion. */
void raw_rail_tell(struct raw_rail *rail, uint32_t number);
bool raw_rail_say(struct raw_rail *rail, const struct rdma_record *record);
/* Receives the next record of the type, and skips others. Fails the test after 20 s. */
struct rdma_record raw_rail_hear(struct raw_rail *rail, enum rdma_record_type type);

#endif
