/* SPDX-License-Identifier: MIT
 * What the processes of a run share: who can be reached where, and the model of what every byte has
 * to be. It lives in shared memory, so that it outlives a process that is killed.
 *
 * Each node owns one region of each kind, in which each node has a lane that it alone writes. A
 * lane is cut into blocks. Before a write of a block begins, its generation goes up and it is not
 * certain; when the write was reported complete it is. So a certain block has the pattern of its
 * generation, whoever was killed since, and one that is not may have anything. */
#ifndef HAUL_TESTS_CHAOS_BOARD_H
#define HAUL_TESTS_CHAOS_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "haul/haul.h"

#define NODES  5u
#define KINDS  4u /* enum memory_kind */
#define BLOCKS 24u

/* Of a region: a number that no other region of the run has, then the lanes. A lane begins with a
 * number that its writer adds to. */
#define HEADER 64u
#define NUMBER 64u

enum phase {
  RUN,
  SETTLE, /* begin nothing, wait for what is under way */
  VERIFY, /* look at the own regions */
  LEAVE   /* close, and see what is left */
};

struct block {
  _Atomic uint64_t generation;
  _Atomic bool certain;
};

struct lane {
  _Atomic uint64_t region; /* whose content this is; of another one nothing is known */
  _Atomic uint64_t adds_begun, adds_done;
  struct block blocks[BLOCKS];
};

/* What was seen of a node in a run. */
struct tally {
  _Atomic uint64_t writes, reads, adds, messages, bytes; /* that ended well */
  _Atomic uint64_t ended[32];                            /* otherwise, by -code */
  _Atomic uint64_t connected, verified;                  /* peers, blocks */
  _Atomic uint64_t cuts, refusals, shortages, replaced;  /* what the node did to itself */
};

struct seat {
  char addresses[2][160]; /* over a Unix socket and TCP; written before `ready` */
  _Atomic uint64_t ready; /* the life that can be connected to; 0: none */
  _Atomic uint64_t lives;
  _Atomic int phase_done; /* the last enum phase that was brought to its end */
  struct tally tally;
};

struct board {
  uint64_t seed;
  _Atomic int phase;
  _Atomic uint64_t regions; /* numbers that were given out */
  struct seat seats[NODES];
  struct lane lanes[NODES][NODES][KINDS]; /* writer, owner */
};

/* Shared memory, zero; its descriptor is inherited by children that are started. */
struct board *board_make(int *descriptor);
struct board *board_open(int descriptor);

size_t block_size(unsigned block);
/* In the region. */
uint64_t lane_offset(unsigned writer);
uint64_t block_offset(unsigned writer, unsigned block);
uint64_t region_size(void);
/* What the block has to be filled with. */
uint64_t block_seed(uint64_t region, unsigned writer, unsigned block, uint64_t generation);

/* Forgets what is known, as the region is another one. By the lane's writer. */
void lane_begin(struct lane *lane, uint64_t region);

/* Whether the bytes are the pattern; else *at is where they begin to differ. */
bool pattern_holds(const void *bytes, size_t length, uint64_t seed, size_t *at);

#endif
