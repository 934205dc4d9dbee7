/* SPDX-License-Identifier: MIT
 * Freed regions, kept for the next request of their size. A thread uses one of a few shards, so
 * that its lock is hardly ever contended; what a shard lacks is looked for in the others.
 *
 * The lock is a plain spin lock. A lock biased to one thread (membarrier) was not faster:
 * allocating and freeing 1 MiB took 16 ns of CPU with it and 15 ns without (bench `pool`, medians
 * of 11 alternating runs of 4 million pairs, AMD EPYC). */
#ifndef HAUL_MEMORY_POOL_H
#define HAUL_MEMORY_POOL_H

#include "core/spin.h"
#include "memory/region.h"

#define POOL_SHARDS  8
#define POOL_CLASSES 4
#define POOL_KINDS   8 /* kinds and devices beyond these are not pooled */
#define POOL_DEVICES 16
#define POOL_SLOTS   (POOL_KINDS * POOL_DEVICES * 2 * POOL_CLASSES)

struct pool_shard {
  char before[64];    /* keeps neighbours' cache lines apart wherever the heap begins */
  struct spin lock; /* guards the rest; what is atomic may be read without it */
  bool closed;
  _Atomic uint64_t lent; /* of the pool's bytes to this shard: what it keeps, and room for more */
  _Atomic uint64_t room;
  _Atomic uint64_t life; /* of the last region it gave: the shard's number, and 8 for each so far */
  _Atomic uint64_t born, freed, misses, trimmed;
  char after[64];
  struct haul_region *_Atomic stacks[POOL_SLOTS];
};

struct pool {
  uint8_t classes;        /* that fit the limit */
  _Atomic uint64_t spare; /* of the limit: not lent to a shard */
  struct pool_shard shards[POOL_SHARDS];
};

/* Over zeroed memory. */
void pool_open(struct pool *pool, size_t limit);

/* The class for a request, or REGION_EXACT: the smallest that holds it, unless three quarters of it
 * or more would be wasted. */
uint8_t pool_class(const struct pool *pool, struct haul_place place, size_t length);
/* The same by the length alone. */
uint8_t pool_class_of(size_t length);
size_t pool_class_bytes(uint8_t size_class);

/* To be called before the region is given for the first time, once its memory is known. */
void pool_mark(struct haul_region *region);

/* A kept region of the class, in its next life, or NULL; counts a hit or a miss. */
struct haul_region *pool_take(struct pool *pool, struct haul_place place, bool private,
                              uint8_t size_class);
/* Keeps the region; false when there is no room: then it is still the caller's. Counts neither. */
bool pool_give(struct pool *pool, struct haul_region *region);
/* Everything that is kept, linked by `next`; with `close` nothing is kept from now on. In a forked
 * child it leaves out what another thread was at. */
struct haul_region *pool_empty(struct pool *pool, bool close);

/* Between the two, nothing is kept in any pool of the process: somebody waits for memory to come
 * back to its provider. */
void pool_shun(void);
void pool_resume(void);

/* The same without a call, as the way of who is alone with a shard: NULL, or false, says nothing
 * but that the other is to be asked. */
struct haul_region *pool_take_quickly(struct pool *pool, struct haul_place place, bool private,
                                      uint8_t size_class);
bool pool_give_quickly(struct pool *pool, struct haul_region *region);

/* For regions that do not come from the pool or do not return to it. pool_born gives the number of
 * the new life. */
uint64_t pool_born(struct pool *pool);
void pool_died(struct pool *pool);

void pool_counters(struct pool *pool, struct heap_counters *counters);

#endif
