/* SPDX-License-Identifier: MIT
 * Shared memory of a run, which outlives killed processes: the addresses of the nodes, and a model
 * of the expected content of every byte.
 *
 * Each node owns one region of each kind. In each region every node has a lane that it alone
 * writes, cut into blocks. Before a write to a block begins, the block's generation goes up and it
 * is not known; it is known again when the write was reported complete. A known block holds the
 * pattern of its generation, whichever processes were killed since; another may hold anything. */
#ifndef HAUL_TESTS_CHAOS_SHARED_H
#define HAUL_TESTS_CHAOS_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "haul/haul.h"

#define NODES  5u
#define KINDS  4u /* enum memory_kind */
#define BLOCKS 24u

/* A region begins with its id, unique within the run; then come the lanes. A lane begins with a
 * counter that its writer adds to. Both in bytes. */
#define REGION_HEADER 64u
#define LANE_HEADER   64u

enum phase {
  RUN,
  SETTLE, /* begin nothing, wait for operations in flight */
  VERIFY, /* check the own regions */
  LEAVE   /* close, and check for leaks */
};

struct block {
  _Atomic uint64_t generation;
  _Atomic bool known;
};

struct lane {
  _Atomic uint64_t region; /* the id that this content belongs to; nothing is known of others */
  _Atomic uint64_t adds_begun, adds_done;
  struct block blocks[BLOCKS];
};

struct counts {
  _Atomic uint64_t writes, reads, adds, messages, bytes; /* of successful operations */
  _Atomic uint64_t failed[32];                           /* operations by -code */
  _Atomic uint64_t connected, verified;                  /* peers, blocks */
  _Atomic uint64_t cuts, refusals, shortages, replaced;  /* injected faults */
};

struct process {
  char addresses[2][160]; /* over a Unix socket and TCP; written before `ready` */
  _Atomic uint64_t ready; /* the life that accepts connections; 0: none */
  _Atomic uint64_t lives;
  _Atomic int phase_done; /* the last completed enum phase */
  struct counts counts;
};

struct shared {
  uint64_t seed;
  _Atomic int phase;
  _Atomic uint64_t region_ids; /* assigned so far */
  struct process processes[NODES];
  struct lane lanes[NODES][NODES][KINDS]; /* writer, owner */
};

/* Zeroed memory; children inherit the descriptor. */
struct shared *shared_create(int *descriptor);
struct shared *shared_open(int descriptor);

size_t block_size(unsigned block);
/* Offsets in the region. */
uint64_t lane_offset(unsigned writer);
uint64_t block_offset(unsigned writer, unsigned block);
uint64_t region_size(void);
/* The seed of the block's pattern. */
uint64_t block_seed(uint64_t region, unsigned writer, unsigned block, uint64_t generation);

/* Resets the lane for another region. By the lane's writer. */
void lane_begin(struct lane *lane, uint64_t region);

void rest(int64_t nanoseconds);

/* Whether the bytes are the pattern; else *at is the first different byte. */
bool pattern_holds(const void *bytes, size_t length, uint64_t seed, size_t *at);

#endif
