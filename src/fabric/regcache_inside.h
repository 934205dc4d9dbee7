/* SPDX-License-Identifier: MIT
 * The registration cache, inside: what regcache.c, where registrations are found, and
 * regcache_life.c, where they are made and ended, share. "With the lock" is with the cache's. */
#ifndef HAUL_FABRIC_REGCACHE_INSIDE_H
#define HAUL_FABRIC_REGCACHE_INSIDE_H

#include "core/list.h"
#include "core/spin.h"
#include "fabric/announced.h"
#include "fabric/regcache.h"

#define LINE 64

/* A place for a registration; never freed before the cache is, so that the front may point to any.
 * It is live while it is in `ranges`: then it can be found. Later it is retired, until the last put
 * of those who still use it. All but `given` and `user` is guarded by the lock.
 *
 * References: `taken` counts the gets, `given` the puts, so that a put needs no lock. Who retires
 * the entry subtracts `taken` from `given`, which makes it 0 or less; the put that makes it 0 is
 * the last. While the entry is live no put makes it 0. Puts release and their last one acquires:
 * all use of the registration comes before its end. */
struct entry {
  struct registration user; /* first: this is what callers hold */
  uint64_t buffer;
  uint64_t used; /* the tick of its last get */
  uint64_t taken;
  _Atomic int64_t given;
  struct range pages; /* of nothing while it is not live */
  struct range age;   /* from the tick under which it is filed in `ages`, not after `used` */
  uint64_t length;    /* bytes registered */
  struct entry *next; /* of the free ones, or of those that are being ended */
} __attribute__((aligned(LINE)));

/* A registration that is being made, on the stack of the thread that makes it. */
struct making {
  struct list link;
  struct range asked, pages; /* those that there must be; those that are tried */
  uint64_t buffer;
  bool stale; /* invalidated meanwhile: nobody else may find it */
};

struct regcache {
  struct spin lock; /* all but what is atomic and what regcache_open sets */
  unsigned page_shift, set_shift;
  uint64_t tick; /* counts gets */
  uint64_t hits;
  struct set *sets;
  uint64_t top; /* ranges end there at the latest: the start of the last page */

  struct ranges ranges; /* the live entries' pages; those that overlap are of one buffer */
  struct ranges ages;   /* the same entries, by age */
  struct announced announced;
  struct list makings;
  struct entry *free;
  struct block *blocks;
  void *sets_block;
  struct regcache_counters counters;

  char apart[LINE]; /* from what every get writes */
  const struct regcache_ops *ops;
  void *user;
  struct regcache_limits limits;
  /* More is registered than the limits allow. Set before the entries are searched for some that are
   * not in use, read after each put, all of it sequentially consistent: of a search and a put at
   * the same time one sees the other. */
  _Atomic bool over;
  _Atomic uint32_t made; /* changes whenever a making has ended; its waiters sleep on it */
};

/* Entries and announcements to be ended when the lock is no longer held. */
struct ended {
  struct entry *entries;
  struct announcement *announcements;
};

static inline struct entry *entry_of_pages(struct range *range) {
  return list_entry(range, struct entry, pages);
}

/* With the lock. */
static inline void entry_free(struct regcache *cache, struct entry *entry) {
  entry->next = cache->free;
  cache->free = entry;
}

/* ---- regcache_life.c ---- */

/* Without the lock, by the last user of an entry that is retired. */
void entry_end(struct regcache *cache, struct entry *entry);
/* Without the lock. */
void ended_finish(struct regcache *cache, struct ended *ended);

/* Without the lock, after a put that found the cache over its limits. */
void regcache_trim(struct regcache *cache);
/* Without the lock: ends all that is not in use. Whether there was some. */
bool regcache_empty(struct regcache *cache);
/* With the lock: what is known of these pages, and of announced memory in `bytes`, but for that of
 * the buffer `*keep` when `keep` is not NULL. */
void regcache_forget(struct regcache *cache, const struct range *pages, const struct range *bytes,
                     const uint64_t *keep, struct ended *ended);

/* With the lock, and again with it: false at once when no other thread is about to register these
 * pages, else true when a making has ended. */
bool making_wait(struct regcache *cache, const struct making *wanted);
/* With the lock: how a miss begins. `bytes` are what was asked for; `making` has their pages and is
 * left with those to try. */
void making_begin(struct regcache *cache, struct making *making, const struct range *bytes,
                  struct ended *ended);
/* And how it goes on, without the lock. Takes the entry over, which is free. */
int making_run(struct regcache *cache, struct making *making, struct entry *entry,
               struct registration **registration);

#endif
