/* SPDX-License-Identifier: MIT
 * What the two ends of an rdma link say, on their channel and over their rails. */
#ifndef HAUL_FABRIC_RDMA_FRAME_H
#define HAUL_FABRIC_RDMA_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define RDMA_RECORD    512u /* bytes of a record on the channel; over a rail it ends sooner */
#define RDMA_RAILS_MAX 4u

enum rdma_record_type {
  RDMA_HELLO = 1,    /* both ways, first: the sender's rails, or why it has none */
  RDMA_READY = 2,    /* the sender's queue pairs receive */
  RDMA_ATTACH = 3,   /* what is behind this handle? */
  RDMA_ATTACHED = 4, /* its address and a key a rail, or why not */
  RDMA_DETACH = 5,   /* the sender uses the handle no more */
  RDMA_REVOKED = 6,  /* the handle is withdrawn: tell when nothing touches it */
  RDMA_QUIET = 7,    /* nothing of the sender's touches the handle any more */
  RDMA_BROKEN = 8,   /* the sender's queue pairs are in error: bring yours there, and tell */
  RDMA_SILENT = 9,   /* the sender's queue pairs are in error too: nothing arrives any more */
  /* From here on over a rail. */
  RDMA_SUM = 10,   /* are these bytes of the region the ones with this sum? */
  RDMA_LAND = 11,  /* copy from the loan to the region */
  RDMA_LIFT = 12,  /* copy from the region to the loan */
  RDMA_FENCE = 13, /* what the device wrote to the region is about to be read */
  RDMA_DONE = 14,  /* status of one of these four: 0, HAUL_ECHECKSUM, or why not */
  RDMA_FENCED = 15 /* the device sees what the next write with immediate brought, or why not */
};

/* One end of a queue pair. */
struct rdma_end {
  char nic[32];
  uint8_t ethernet; /* RoCE; else InfiniBand, by LID */
  uint8_t mtu;      /* enum ibv_mtu */
  uint8_t reads;    /* that it serves at a time */
  uint8_t receives; /* writes with immediate that it takes before it has answered one */
  uint8_t atomics;  /* enum ibv_atomic_cap: none, among themselves, with its processors' too */
  uint16_t lid;
  uint8_t gid[16];
  uint32_t queue_pair, packet; /* 24 bits each */
};

#define RDMA_SPANS 32u

struct rdma_span {
  uint64_t offset;
  uint32_t length;
};

/* Of ATTACHED. */
#define RDMA_STAGED        1u /* address and keys are the loan's: slots of WORK_BYTES_MAX each */
#define RDMA_FENCED_WRITES 2u /* writes end with an immediate, and are complete with FENCED */
#define RDMA_ATOMIC        4u /* the keys allow atomics */

struct rdma_record {
  uint16_t type;
  uint32_t
      request;     /* ATTACH, ATTACHED, the four questions, DONE; FENCED: the attachment's number */
  uint64_t handle; /* all but HELLO, READY, BROKEN, SILENT */
  int32_t status;  /* ATTACHED, DONE, FENCED: 0 or a code; ATTACHED's with a reason */
  uint64_t address, length;
  uint8_t rails; /* HELLO, ATTACHED; the questions, DONE, FENCED: which one */
  uint8_t flags, slots;
  uint32_t number; /* ATTACHED: what immediates name it by */
  struct rdma_end ends[RDMA_RAILS_MAX];
  uint32_t keys[RDMA_RAILS_MAX];
  char reason[128];
  uint64_t sum; /* SUM: XXH3-64 of the spans' sums, each XXH3-64 */
  uint64_t at;  /* LAND, LIFT: where in the loan the spans' bytes lie, one after the other */
  uint8_t span_count;
  struct rdma_span spans[RDMA_SPANS];
};

/* Returns how many of the bytes are used; the others are 0. */
size_t rdma_pack(const struct rdma_record *record, uint8_t bytes[RDMA_RECORD]);
/* 0 or HAUL_EPROTO: everything is foreign. */
int rdma_parse(const uint8_t bytes[RDMA_RECORD], struct rdma_record *record);

#endif
