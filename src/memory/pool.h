/* SPDX-License-Identifier: MIT
 * Freed regions, kept for the next request of their size. A thread uses one of a few shards, so
 * that the shard's lock is seldom contended; a miss in its own shard tries the others.
 *
 * The lock is a plain spin lock. A lock biased to one thread (membarrier) was not faster:
 * allocating and freeing 1 MiB took 16 ns of CPU with it and 15 ns without (bench `pool`, medians
 * of 11 alternating runs of 4 million pairs, AMD EPYC). */
#ifndef HAUL_MEMORY_POOL_H
#define HAUL_MEMORY_POOL_H

#include "core/spin.h"
#include "memory/region.h"

#define POOL_SHARDS  8
#define POOL_CLASSES 130 /* 64 KiB, 1 MiB, and the multiples of 2 MiB up to 256 MiB */
#define POOL_KINDS   8   /* kinds and devices beyond these are not pooled */
#define POOL_DEVICES 16
#define POOL_STRIDE  256 /* between the slots of two places: a shift is faster than a product */
#define POOL_STACKS  (POOL_KINDS * 2 * POOL_STRIDE) /* each slot of the first device has its own */

struct pool_shard {
  char before[64];  /* keeps neighbours' cache lines apart wherever the heap begins */
  struct spin lock; /* guards the rest; atomic fields may be read without it */
  bool closed;
  _Atomic uint64_t budget; /* bytes of the pool's limit that this shard holds: kept, and room */
  _Atomic uint64_t room;   /* the part of the budget that is free */
  _Atomic uint64_t life;   /* generation of the last region it gave: shard number + 8 a region */
  _Atomic uint64_t born, freed, misses, trimmed;
  uint64_t swept; /* `life` at the last sweep */
  char after[64];
  struct haul_region *_Atomic stacks[POOL_STACKS]; /* by slot, a few of which share one */
};

struct pool {
  uint8_t classes;        /* size classes that fit the limit */
  _Atomic uint64_t spare; /* bytes of the limit in no shard's budget */
  _Atomic int64_t sweep_at;
  struct pool_shard shards[POOL_SHARDS];
};

/* Over zeroed memory. */
void pool_open(struct pool *pool, size_t limit);

/* The smallest class that holds the request: it wastes less than 2 MiB, the granularity of
 * shareable GPU memory. REGION_EXACT when three quarters or more would be wasted. */
uint8_t pool_class(const struct pool *pool, struct haul_place place, size_t length);
size_t pool_class_bytes(uint8_t size_class);

/* Sets slot and bytes of the region for the pool. Call it once, when its memory is known. A small
 * shareable block of a GPU takes 2 MiB. */
void pool_mark(struct haul_region *region);

/* A kept region of the class, with a new generation, or NULL; counts a hit or a miss. */
struct haul_region *pool_take(struct pool *pool, struct haul_place place, bool private,
                              uint8_t size_class);
/* Counts the region as freed and keeps it, in a full pool in place of regions unused for
 * long. Returns what the caller must destroy, linked by `next`: those, or the region without room.
 */
struct haul_region *pool_give(struct pool *pool, struct haul_region *region);
/* All kept regions, linked by `next`; with `close` nothing is kept from now on. In a forked child a
 * shard that another thread had locked is left out. */
struct haul_region *pool_empty(struct pool *pool, bool close);

/* Between the two no pool of the process keeps regions: an allocation waits for memory to return
 * to its provider. */
void pool_pause(void);
void pool_resume(void);

/* Fast paths for an uncontended shard, without a call. NULL or false: use the calls above. */
struct haul_region *pool_take_quickly(struct pool *pool, struct haul_place place, bool private,
                                      uint8_t size_class);
bool pool_give_quickly(struct pool *pool, struct haul_region *region);

/* Count regions that bypass the pool. pool_born returns the generation of the new region. */
uint64_t pool_born(struct pool *pool);
void pool_died(struct pool *pool);

void pool_counters(struct pool *pool, struct heap_counters *counters);

#endif
