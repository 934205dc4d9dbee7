/* SPDX-License-Identifier: MIT
 * Records between the two ends of an rdma link, on the channel and over rails. */
#ifndef HAUL_FABRIC_RDMA_FRAME_H
#define HAUL_FABRIC_RDMA_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_RECORD    512u /* bytes of a record on the channel; shorter over a rail */
#define RDMA_RAILS_MAX 16u
#define RDMA_ENDS      4u /* of a record; a hello may take several records */

/* Version of the protocol in which the acceptor pairs the ends. In the one before it a hello is one
 * record, and ends are paired by their number. */
#define RDMA_PAIRS_VERSION 7u

/* "The sender" is the sender of the record. */
enum rdma_record_type {
  RDMA_HELLO = 1,      /* first, both ways: the sender's rails, or why it has none */
  RDMA_READY = 2,      /* the sender's queue pairs receive */
  RDMA_ATTACH = 3,     /* requests access to a handle's region */
  RDMA_ATTACHED = 4,   /* response: the address and a key a rail, or why not */
  RDMA_DETACH = 5,     /* the sender uses the handle no more */
  RDMA_REVOKED = 6,    /* the handle is withdrawn; REVOKE_ACK follows */
  RDMA_REVOKE_ACK = 7, /* no work request of the sender uses the handle any more */
  RDMA_BROKEN = 8,     /* the sender destroyed its queue pairs: destroy yours; BROKEN_ACK follows */
  RDMA_BROKEN_ACK = 9, /* the sender destroyed its queue pairs too: no bytes arrive any more */
  /* From here on over a rail. */
  RDMA_CHECKSUM = 10, /* requests a comparison of the region's spans with `sum` */
  RDMA_COPY_IN = 11,  /* requests a copy from the staging area to the region */
  RDMA_COPY_OUT = 12, /* requests a copy from the region to the staging area */
  RDMA_FENCE = 13,    /* requests a fence of the device before the region is read */
  RDMA_RESPONSE = 14, /* to these four, with status: 0, HAUL_ECHECKSUM, or why not */
  RDMA_FENCED = 15    /* the device sees the bytes of the next write with immediate, or why not */
};

/* One end of a queue pair. */
struct rdma_end {
  char nic[32];
  uint8_t ethernet; /* RoCE; else InfiniBand, by LID */
  uint8_t mtu;      /* enum ibv_mtu */
  uint8_t reads;    /* served at a time */
  uint8_t receives; /* writes with immediate that it takes without a response */
  uint8_t atomics;  /* enum ibv_atomic_cap */
  uint16_t lid;
  uint8_t gid[16];
  uint32_t queue_pair, packet; /* 24 bits each */
};

#define RDMA_SPANS 32u

struct rdma_span {
  uint64_t offset;
  uint32_t length;
};

/* Flags of ATTACHED. */
#define RDMA_STAGED        1u /* address and keys of the staging area: slots of WORK_BYTES_MAX */
#define RDMA_FENCED_WRITES 2u /* writes carry an immediate, and are complete with FENCED */
#define RDMA_ATOMIC        4u /* the keys allow atomics */
#define RDMA_RETRIES       8u /* staged for a shortage: a later ATTACH may get the region's keys */

/* The ends of all records of a hello. */
struct rdma_greeting {
  unsigned count, left; /* those that came, and those that have to follow */
  struct rdma_end ends[RDMA_RAILS_MAX];
};

struct rdma_record {
  uint16_t type;
  uint32_t request; /* of all requests and responses; FENCED: the attachment's number */
  uint64_t handle;  /* all but HELLO, READY, BROKEN, BROKEN_ACK */
  int32_t status;   /* ATTACHED, RESPONSE, FENCED: 0 or a code; ATTACHED's with a reason, also of
                       staging */
  uint64_t address, length;
  uint8_t rails; /* HELLO: ends in the record; ATTACHED: rails; over a rail: its number */
  uint8_t flags, slots;
  uint32_t number; /* ATTACHED: its name in immediates */
  struct rdma_end ends[RDMA_ENDS];
  uint8_t restores; /* HELLO: the sender connects broken rails again */
  uint8_t more;     /* HELLO: ends in the records that follow it */
  uint16_t paired;  /* HELLO of the acceptor: bits of the initiator's ends, to which its own belong
                       in this order; 0: they belong to the first ones */
  uint32_t keys[RDMA_RAILS_MAX];
  uint8_t atomic_rail; /* ATTACHED: the rail for atomics, if they are allowed */
  uint16_t missing;    /* ATTACHED: bits of the rails without a key */
  char reason[128];
  uint64_t sum; /* CHECKSUM: XXH3-64 of the spans' XXH3-64 checksums */
  uint64_t at;  /* COPY_IN, COPY_OUT: offset of the packed spans in the staging area */
  uint8_t span_count;
  struct rdma_span spans[RDMA_SPANS];
};

/* Returns the number of bytes used; the others are 0. */
size_t rdma_pack(const struct rdma_record *record, uint8_t bytes[RDMA_RECORD]);
/* 0 or HAUL_EPROTO. Checks all fields, as they are foreign input. */
int rdma_parse(const uint8_t bytes[RDMA_RECORD], struct rdma_record *record);

#endif
