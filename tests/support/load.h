/* SPDX-License-Identifier: MIT
 * A load whose result is known for each byte: many transfers of mixed sizes between the regions of
 * a node and the memories of its peers, in disjoint ranges. All processes derive the same plan
 * from the same numbers. Also used by the bench `load`. */
#ifndef HAUL_TESTS_LOAD_H
#define HAUL_TESTS_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOAD_LEAST 64 /* least bytes of a transfer; the plan has the maximum */

/* One transfer. */
struct load_move {
  unsigned peer, region;
  bool to_node;         /* into the region: the peer writes, or the node reads */
  uint64_t here, there; /* offsets in the region and in the peer's memory */
  uint64_t length;
};

struct load_plan {
  unsigned peers, regions, count;
  uint64_t seed;
  struct load_move *moves;                   /* `count` of them */
  uint64_t *region_lengths, *memory_lengths; /* bytes of each region, of each peer's memory */
};

/* `count` is at least `regions`, so that each region has its part; `most` a power of two above
 * LOAD_LEAST. False: no memory. Release with load_plan_free. */
bool load_plan_make(struct load_plan *plan, unsigned peers, unsigned regions, unsigned count,
                    uint64_t most, uint64_t seed);
void load_plan_free(struct load_plan *plan);

/* Contents of a region and of a peer's memory before a round; they differ by round. */
void load_fill_region(const struct load_plan *plan, unsigned region, unsigned round, void *bytes);
void load_fill_memory(const struct load_plan *plan, unsigned peer, unsigned round, void *bytes);

/* Do they hold the result of the round's moves, and unmodified bytes elsewhere? *at: the first
 * wrong byte. */
bool load_check_region(const struct load_plan *plan, unsigned region, unsigned round,
                       const void *bytes, uint64_t *at);
bool load_check_memory(const struct load_plan *plan, unsigned peer, unsigned round,
                       const void *bytes, uint64_t *at);

/* Bytes that a round moves in one direction. */
uint64_t load_bytes(const struct load_plan *plan, bool to_node);

#endif
