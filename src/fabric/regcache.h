/* SPDX-License-Identifier: MIT
 * A cache of memory registrations. Registering, which pins pages, takes as long as moving a
 * megabyte; a lookup takes nanoseconds. Each registrar (a protection domain) has its own cache.
 *
 * A registration covers whole pages, except in kinds of memory whose pages may be others' in part
 * (regcache_limits.exact). Announced neighbours are registered together (range merging);
 * memory neither announced nor requested is never registered. The cache never accesses the memory.
 *
 * Locks: any thread may make any call at any time, except regcache_close. A hit and a put take no
 * lock as a rule. The cache's lock is a leaf and is not held across calls of the registrar, which
 * must not call the cache. */
#ifndef HAUL_FABRIC_REGCACHE_H
#define HAUL_FABRIC_REGCACHE_H

#include <stdint.h>

struct regcache;

/* Bytes at an address in one of the registrar's address spaces.
 *
 * The registrar defines `kind`: the address space and the access, for example. Ranges of different
 * kinds are independent.
 *
 * `buffer` is the driver's number of the allocation at the address, or 0. Another
 * number for the same pages means that the memory was freed and allocated again: everything cached
 * under the old number is invalidated. */
struct regcache_range {
  uint64_t address, length; /* bytes */
  uint64_t buffer;
  uint32_t kind;
};

/* A reference to a live registration. `handle` is the registrar's, valid until regcache_put. */
struct registration {
  void *handle;
};

struct regcache_ops {
  /* Registers whole pages, or the bytes of an exact kind; may take milliseconds. 0, or a HAUL_E…
   * code with the detail. */
  int (*add)(void *user, const struct regcache_range *pages, void **handle);
  /* Cannot fail; the registrar counts memory that the NIC keeps. */
  void (*remove)(void *user, void *handle);
};

struct regcache_limits {
  uint64_t bytes, entries; /* cached at most; 0 of either: nothing after its last use */
  uint64_t merge;          /* bytes of announced memory registered together; at most `bytes` */
  uint32_t exact; /* kinds with one of these bits are registered from byte to byte, unannounced */
};

struct regcache_counters {
  uint64_t hits, misses;  /* calls of regcache_get that registered nothing, and the others */
  uint64_t registrations; /* successful calls of `add` */
  uint64_t evictions;     /* for the limits, or for a registrar without room */
  uint64_t invalidations;
  uint64_t replacements;   /* by a larger registration */
  uint64_t bytes, entries; /* now registered or being registered, in use or not */
};

/* `ops` is kept by reference. HAUL_ENOMEM. */
int regcache_open(const struct regcache_ops *ops, void *user, const struct regcache_limits *limits,
                  struct regcache **cache);
/* After the last put. NULL does nothing. */
void regcache_close(struct regcache *cache);

/* Gets a registration that covers the range, with a reference for regcache_put.
 *
 * A hit costs a lookup. A miss registers the range's pages, and together with them:
 *  - the pages of overlapping registrations that are not larger; the new one replaces those;
 *  - the run of announced ranges that touch the pages and each other, within one aligned block of
 *    `merge` bytes. It ends at a larger registration, which bounds how often a byte is registered
 *    while a buffer grows.
 * The caller blocks meanwhile, as do threads that ask for a part of the same pages.
 *
 * When the registrar refuses the wider range, the range's own pages are tried. When it refuses
 * those for lack of room (HAUL_ENOMEM, HAUL_ELIMIT), all idle registrations are evicted and the
 * pages tried once more. A wider range refused for lack of room halves `merge`; one refused for
 * another reason is not tried again until it is announced again.
 *
 * The limits evict idle registrations in the order of their making. One that was got since, or is
 * in use, gets a second chance: it goes behind the newest. Registrations in use may exceed the
 * limits until their last put.
 *
 * HAUL_EINVAL for a length of 0 and for a range that does not end before the address space's last
 * page, HAUL_ENOMEM, and the registrar's codes. */
int regcache_get(struct regcache *cache, const struct regcache_range *range,
                 struct registration **registration);
/* The last put of an evicted, replaced or invalidated registration removes it. */
void regcache_put(struct regcache *cache, struct registration *registration);

/* Offers the range for merging, until regcache_invalidate; registers nothing. A range within an
 * announced one adds nothing. HAUL_EINVAL as above, HAUL_ENOMEM. */
int regcache_announce(struct regcache *cache, const struct regcache_range *range);

/* The memory is being freed or has been. No later get finds a registration of its pages, finished
 * or pending; each is removed now if idle, else with its last put. Announced ranges that overlap it
 * are dropped as a whole, with the ranges that they absorbed. `buffer` does not matter. Allocates
 * nothing and cannot fail; an invalid range has no effect. */
void regcache_invalidate(struct regcache *cache, const struct regcache_range *range);

void regcache_counters(struct regcache *cache, struct regcache_counters *counters);

#endif
