/* SPDX-License-Identifier: MIT
 * A load that is known to the byte: many transfers of mixed sizes between the regions of one node
 * and the memories of its peers, each over a range of its own, and what is in every byte before and
 * after them. All sides make the same plan from the same numbers. For the bench `load` as well. */
#ifndef HAUL_TESTS_LOAD_H
#define HAUL_TESTS_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOAD_LEAST 64 /* bytes of a transfer; the most is the plan's */

/* One transfer. */
struct load_move {
  unsigned peer, region;
  bool to_node;         /* into the region: a write of the peer's, or a read of the node's */
  uint64_t here, there; /* where in the region, and in the peer's memory */
  uint64_t length;
};

struct load_plan {
  unsigned peers, regions, count;
  uint64_t seed;
  struct load_move *moves;                   /* `count` of them */
  uint64_t *region_lengths, *memory_lengths; /* bytes: of each region, of each peer's memory */
};

/* `count` is at least `regions`, so that each region has its part; `most` a power of two above
 * LOAD_LEAST. False: no memory. Release with load_plan_free. */
bool load_plan_make(struct load_plan *plan, unsigned peers, unsigned regions, unsigned count,
                    uint64_t most, uint64_t seed);
void load_plan_free(struct load_plan *plan);

/* What a region, and a peer's memory, hold before the round: other bytes in each round. */
void load_fill_region(const struct load_plan *plan, unsigned region, unsigned round, void *bytes);
void load_fill_memory(const struct load_plan *plan, unsigned peer, unsigned round, void *bytes);

/* Whether they hold what the round's moves leave there, also between these; *at: the first byte
 * that is wrong. */
bool load_check_region(const struct load_plan *plan, unsigned region, unsigned round,
                       const void *bytes, uint64_t *at);
bool load_check_memory(const struct load_plan *plan, unsigned peer, unsigned round,
                       const void *bytes, uint64_t *at);

/* The bytes that a round moves, in one direction. */
uint64_t load_bytes(const struct load_plan *plan, bool to_node);

#endif
