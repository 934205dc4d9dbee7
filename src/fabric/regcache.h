/* SPDX-License-Identifier: MIT
 * Registrations of memory, kept after their use: pinning pages and telling a NIC of them takes as
 * long as moving a megabyte, finding them again some nanoseconds. One cache for one registrar (a
 * protection domain); it knows nothing of how memory is registered.
 *
 * A registration covers whole pages. Memory that was announced is registered together with its
 * announced neighbours; what was neither announced nor asked for is never registered. Nothing here
 * looks at the memory itself.
 *
 * Lock rules. All calls may be made from any thread at once, but for regcache_close. The cache's
 * own lock is a leaf: nothing is taken after it, and the registrar is called without it. The
 * registrar may not call the cache. */
#ifndef HAUL_FABRIC_REGCACHE_H
#define HAUL_FABRIC_REGCACHE_H

#include <stdint.h>

struct regcache;

/* Bytes at an address in one of the registrar's address spaces.
 *
 * `kind` is the registrar's: the address space, and what else it takes to register memory there
 * (the access). Ranges of different kinds have nothing to do with each other.
 *
 * `buffer` is the driver's number for what lives at the address now, 0 where there is none. It is
 * compared, never looked at: another number for the same pages means that the memory was freed and
 * allocated again behind our back, and what is known of it under the old number is invalidated. */
struct regcache_range {
  uint64_t address, length; /* bytes */
  uint64_t buffer;
  uint32_t kind;
};

/* A reference to a live registration. `handle` is what the registrar gave; it is valid until
 * regcache_put. */
struct registration {
  void *handle;
};

struct regcache_ops {
  /* Registers whole pages; may take milliseconds. 0, or a negative HAUL_E… code with the detail. */
  int (*add)(void *user, const struct regcache_range *pages, void **handle);
  /* Cannot fail: what the NIC keeps then is the registrar's to count. */
  void (*remove)(void *user, void *handle);
};

struct regcache_limits {
  uint64_t bytes, entries; /* what is kept at most; 0 of either: nothing after its last use */
  uint64_t merge;          /* bytes of announced memory registered together; at most `bytes` */
};

/* Since the cache was opened, but for the last two. */
struct regcache_counters {
  uint64_t hits, misses;  /* calls of regcache_get that registered nothing, and the others */
  uint64_t registrations; /* that the registrar made */
  uint64_t evictions;     /* the limits, or a registrar without room */
  uint64_t invalidations;
  uint64_t replacements;   /* ended because a larger one came */
  uint64_t bytes, entries; /* registered now, or being registered: kept, in use, or both */
};

/* `ops` is kept by reference. HAUL_ENOMEM. */
int regcache_open(const struct regcache_ops *ops, void *user, const struct regcache_limits *limits,
                  struct regcache **cache);
/* Removes what is kept. Everything that was got has been put; NULL does nothing. */
void regcache_close(struct regcache *cache);

/* A registration that covers the range, with a reference that regcache_put gives back.
 *
 * One that covers it already costs a lookup. Else the pages of the range are registered, and with
 * them:
 *  - registrations that overlap them and are not larger than they are, which this one replaces;
 *  - announced memory that touches them, and what touches that, as long as all of it lies in one
 *    aligned block of `merge` bytes. This ends at a larger registration, so that no byte is
 *    registered more than some times while a buffer grows.
 * The calling thread blocks meanwhile, and so do others that ask for a part of the same pages.
 *
 * When the registrar refuses the larger range, the pages of the range alone are tried; when it
 * refuses these for want of room (HAUL_ENOMEM, HAUL_ELIMIT), they are tried once more without what
 * is kept and not in use. A larger range that was refused for want of room halves `merge`; one that
 * was refused for another reason is not tried again until it is announced again.
 *
 * To make room in the limits, the registrations that were got the longest time ago and are not in
 * use go first. Those in use stay and may exceed the limits; what exceeds them goes with its last
 * put. A registration that was in use when room was made counts as got then.
 *
 * HAUL_EINVAL for a length of 0 and for a range that does not end before the address space's last
 * page, HAUL_ENOMEM, and the registrar's codes. */
int regcache_get(struct regcache *cache, const struct regcache_range *range,
                 struct registration **registration);
/* From any thread. The last one of a registration that is not found any more removes it. */
void regcache_put(struct regcache *cache, struct registration *registration);

/* The range is the application's and stays so until regcache_invalidate. Registers nothing.
 * Announced memory that lies within other announced memory adds nothing. Announcing is an offer:
 * without it everything works, one registration a range. HAUL_EINVAL as above, HAUL_ENOMEM. */
int regcache_announce(struct regcache *cache, const struct regcache_range *range);

/* The memory is about to go, or has gone. From here on nobody finds a registration of any of its
 * pages, nor one that is being made; each is removed now when it is not in use, else with its last
 * put. Announcements that overlap the range are forgotten as a whole, the others that they
 * swallowed too. `buffer` does not matter. Needs no memory and cannot fail; a range that
 * regcache_get would refuse has no effect. */
void regcache_invalidate(struct regcache *cache, const struct regcache_range *range);

/* A snapshot. */
void regcache_counters(struct regcache *cache, struct regcache_counters *counters);

#endif
