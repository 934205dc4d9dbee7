/* SPDX-License-Identifier: MIT
 * Shared by the registration cache's sources: regcache.c finds registrations, regcache_lifecycle.c
 * makes and ends them, regcache_merge.c decides which ranges are registered together. "The lock" is
 * the cache's. */
#ifndef HAUL_FABRIC_REGCACHE_INTERNAL_H
#define HAUL_FABRIC_REGCACHE_INTERNAL_H

#include "core/list.h"
#include "core/ranges.h"
#include "core/spin.h"
#include "fabric/regcache.h"

#define LINE 64

/* A range that the application announced. */
struct announced {
  struct range range; /* bytes, not pages */
  uint64_t buffer;
  bool alone; /* the registrar refused it together with its neighbours */
  struct announced *next;
};

struct range_merge {
  struct ranges ranges; /* announced; overlapping ones belong to one buffer */
  uint64_t page;        /* bytes, a power of two */
  uint64_t block;       /* bytes registered together at most, a multiple of the page */
};

/* A registration, live or retired, or a free place for one. Places are freed with the cache, so
 * that the front may point to any of them. A live entry is in `ranges`, where it is found; a
 * retired one waits for its last put. The lock guards what is not on the first line.
 *
 * The first line is all that a hit touches. `gets` counts over all lives of the place, and is
 * negative while it is not live. A get reads it, looks at the fields and then counts, provided that
 * the count is still the same: then the fields were those of the present life, and they do not
 * change while there is a reference. They are stored before the count, which releases them, and
 * each get acquires it.
 *
 * Retiring an entry subtracts `gets` from `puts`, which leaves 0 or less; the put that then reaches
 * 0 is the last. Before that no put reaches 0. Puts release and the last one acquires: all uses of
 * the registration precede its end. */
struct entry {
  struct registration registration; /* first: the caller's handle */
  _Atomic uint64_t start, end, buffer;
  _Atomic uint32_t kind;
  _Atomic bool recent; /* got since `queue` last passed it */
  _Atomic int64_t gets, puts;
  struct range pages; /* the same as above; searches do not read what gets write */
  uint64_t length;    /* bytes registered */
  struct list queued; /* in `queue` while it is live */
  struct entry *next; /* in the free list, or in struct removed */
} __attribute__((aligned(LINE)));

#define RETIRED INT64_MIN

/* A registration in progress, on the stack of the registering thread. */
struct pending {
  struct list link;
  struct range requested, pages; /* the caller's pages; the pages now tried */
  uint64_t buffer;
  bool stale; /* invalidated meanwhile: no other thread may find it */
};

/* At level n the front looks by blocks of 16^n pages for entries of 16^n to 16^(n+1) - 1 pages. */
#define LEVELS 16

struct regcache {
  struct spin lock;     /* guards all but the atomics and what regcache_open sets */
  struct ranges ranges; /* the live entries' pages; overlapping ones belong to one buffer */
  struct list queue;    /* the same entries, in the order in which evict() looks at them */
  struct range_merge merge;
  struct list pending;
  struct entry *free;
  struct block *blocks;
  void *sets_block;
  uint32_t live[LEVELS];             /* entries of each level */
  struct regcache_counters counters; /* its hits: minus the gets that were none */

  char apart[LINE]; /* keeps the fields below, which each get reads, off the lock's line */
  unsigned page_shift, set_shift;
  struct set *sets;
  uint64_t top; /* the start of the last page: ranges end there at the latest */
  const struct regcache_ops *ops;
  void *user;
  struct regcache_limits limits;
  _Atomic uint32_t levels; /* a bit for each with entries. Stored with the lock */
  /* More is registered than the limits allow. Set before the search for idle entries and read after
   * each put, both sequentially consistent: of a concurrent search and put, one sees the other. */
  _Atomic bool over;
  _Atomic uint32_t completed; /* changes when a pending registration ends; a futex */
};

/* Entries and announced ranges to free once the lock is released. */
struct removed {
  struct entry *entries;
  struct announced *announced;
};

static inline struct entry *entry_of_pages(struct range *range) {
  return list_entry(range, struct entry, pages);
}

static inline unsigned level_of(const struct regcache *cache, uint64_t length) {
  return (63 - (unsigned)__builtin_clzll(length >> cache->page_shift | 1)) / 4;
}

/* With the lock. */
static inline void entry_free(struct regcache *cache, struct entry *entry) {
  entry->next = cache->free;
  cache->free = entry;
}

/* Without the lock, by the last put of a retired entry. */
void entry_end(struct regcache *cache, struct entry *entry);
/* Without the lock. */
void removed_finish(struct regcache *cache, struct removed *removed);
/* Without the lock, after a put that found the cache over its limits. */
void regcache_trim(struct regcache *cache);
/* Without the lock: ends all idle entries; returns whether there were any. */
bool regcache_empty(struct regcache *cache);
/* With the lock: invalidates entries that overlap `pages` and announced ranges that overlap
 * `bytes`, except those of the buffer `*keep` (NULL: no exception). */
void regcache_drop(struct regcache *cache, const struct range *pages, const struct range *bytes,
                   const uint64_t *keep, struct removed *removed);

/* With the lock, released meanwhile: waits until a pending registration ends. False at once when no
 * other thread is registering these pages. */
bool pending_wait(struct regcache *cache, const struct pending *wanted);
/* With the lock: starts a miss. `bytes` is the caller's range; widens pending->pages. */
void pending_begin(struct regcache *cache, struct pending *pending, const struct range *bytes,
                   struct removed *removed);
/* Without the lock: registers and publishes. Takes over the entry, which is free. */
int pending_run(struct regcache *cache, struct pending *pending, struct entry *entry,
                struct registration **registration);

/* regcache_merge.c: with the lock, except merge_free */

/* Takes over the range, or chains it to `out` when it lies within another. Ranges that overlap it
 * belong to its buffer. */
void merge_add(struct range_merge *merge, struct announced *announced, struct announced **out);
/* Moves announced ranges that overlap the range to `out`, except those of `*keep` (NULL: none). */
void merge_drop(struct range_merge *merge, const struct range *range, const uint64_t *keep,
                struct announced **out);
/* Widens the pages to register, as regcache_get describes. `live`: the registered pages; those that
 * overlap `pages` belong to `buffer`. */
void merge_widen(const struct range_merge *merge, const struct ranges *live, uint64_t buffer,
                 struct range *pages);
/* The registrar refused these pages together; `room`: for lack of memory. */
void merge_refused(struct range_merge *merge, const struct range *pages, bool room);
void merge_free(struct announced *chain);

#endif
