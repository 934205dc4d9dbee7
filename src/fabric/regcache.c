/* SPDX-License-Identifier: MIT */
#include "fabric/regcache.h"

#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/list.h"
#include "core/spin.h"
#include "fabric/announced.h"
#include "memory/pages.h"

#define LINE          64
#define BLOCK_ENTRIES 32
#define WAYS          4
#define SETS_MIN      16
#define SETS_MAX      ((size_t)1 << 17) /* 8 MiB of address space, touched where it is used */

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

struct block {
  struct block *next;
  char entries[]; /* BLOCK_ENTRIES of them from the first line on */
};

/* A set of the front: the entries that last covered some pages, the latest first. A guess: what is
 * found here is looked at before it is believed. */
struct set {
  uint64_t pages[WAYS];
  struct entry *entries[WAYS];
} __attribute__((aligned(LINE)));

/* A registration that is being made, on the stack of the thread that makes it. */
struct making {
  struct list link;
  struct range pages;
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

static struct entry *entry_of_pages(struct range *range) {
  return list_entry(range, struct entry, pages);
}

/* ---- ranges ---- */

static inline bool is_valid(const struct regcache *cache, const struct regcache_range *range) {
  return range->length > 0 && range->address < cache->top &&
         range->length <= cache->top - range->address;
}

static int refuse(const struct regcache_range *range) {
  char object[64];
  snprintf(object, sizeof object, "0x%llx+0x%llx", (unsigned long long)range->address,
           (unsigned long long)range->length);
  return error_set(HAUL_EINVAL, 0, object,
                   "not a range of memory|its length is at least 1, and it ends within the address "
                   "space");
}

static struct range bytes_of(const struct regcache_range *range) {
  return (struct range){
      .start = range->address, .end = range->address + range->length, .kind = range->kind};
}

static struct range pages_of(const struct regcache *cache, const struct regcache_range *range) {
  uint64_t in_page = cache->announced.page - 1;
  struct range pages = bytes_of(range);
  pages.start &= ~in_page;
  pages.end = (pages.end + in_page) & ~in_page;
  return pages;
}

static bool overlaps(const struct range *one, const struct range *other) {
  return one->kind == other->kind && one->start < other->end && other->start < one->end;
}

static bool covers(const struct range *one, const struct range *other) {
  return one->kind == other->kind && one->start <= other->start && other->end <= one->end;
}

/* ---- finding (with the lock) ---- */

static inline uint64_t front_page(const struct regcache *cache,
                                  const struct regcache_range *range) {
  return range->address >> cache->page_shift ^ (uint64_t)range->kind << 52;
}

/* Mixed twice: pages at an even distance, multiplied once, crowd in few sets for some distances. */
static inline struct set *front_set(const struct regcache *cache, uint64_t page) {
  uint64_t mixed = page * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ mixed >> 32) * 0xbf58476d1ce4e5b9;
  return &cache->sets[mixed >> cache->set_shift];
}

static inline bool serves(const struct entry *entry, const struct regcache_range *range) {
  return entry->pages.start <= range->address &&
         range->address + range->length <= entry->pages.end && entry->pages.kind == range->kind &&
         entry->buffer == range->buffer;
}

static void front_put(struct set *set, uint64_t page, struct entry *entry) {
  size_t way = 0;
  while (way < WAYS - 1 && set->entries[way] && set->pages[way] != page)
    way++;
  for (; way > 0; way--) {
    set->pages[way] = set->pages[way - 1];
    set->entries[way] = set->entries[way - 1];
  }
  set->pages[0] = page;
  set->entries[0] = entry;
}

static struct entry *find_in_order(struct regcache *cache, const struct regcache_range *range) {
  struct range *pages =
      ranges_cover(&cache->ranges, range->kind, range->address, range->address + range->length);
  struct entry *entry = pages ? entry_of_pages(pages) : NULL;
  if (!entry || entry->buffer != range->buffer)
    return NULL;
  uint64_t page = front_page(cache, range);
  front_put(front_set(cache, page), page, entry);
  return entry;
}

/* Counts the hit. */
static inline struct registration *take(struct regcache *cache, struct entry *entry) {
  cache->hits++;
  entry->taken++;
  entry->used = ++cache->tick;
  return &entry->user;
}

static inline struct entry *find(struct regcache *cache, const struct regcache_range *range) {
  uint64_t page = front_page(cache, range);
  const struct set *set = front_set(cache, page);
  for (size_t way = 0; way < WAYS; way++)
    if (set->pages[way] == page && set->entries[way] && serves(set->entries[way], range))
      return set->entries[way];
  return find_in_order(cache, range);
}

/* ---- entries ---- */

static void *on_line(void *address) {
  return (void *)(((uintptr_t)address + LINE - 1) & ~(uintptr_t)(LINE - 1));
}

/* A free entry, or NULL when there is no memory. Without the lock. */
static struct entry *entry_new(struct regcache *cache) {
  spin_lock(&cache->lock);
  struct entry *entry = cache->free;
  if (entry)
    cache->free = entry->next;
  spin_unlock(&cache->lock);
  if (entry)
    return entry;
  struct block *block = alloc_zero(1, sizeof *block + LINE + BLOCK_ENTRIES * sizeof(struct entry));
  if (!block)
    return NULL;
  entry = on_line(block->entries);
  spin_lock(&cache->lock);
  block->next = cache->blocks;
  cache->blocks = block;
  for (size_t i = 1; i < BLOCK_ENTRIES; i++) {
    entry[i].next = cache->free;
    cache->free = &entry[i];
  }
  spin_unlock(&cache->lock);
  return entry;
}

/* With the lock. */
static void entry_free(struct regcache *cache, struct entry *entry) {
  entry->next = cache->free;
  cache->free = entry;
}

static void account(struct regcache *cache, uint64_t bytes) {
  cache->counters.bytes += bytes;
  cache->counters.entries++;
}

static void discount(struct regcache *cache, uint64_t bytes) {
  cache->counters.bytes -= bytes;
  cache->counters.entries--;
}

/* With the lock: makes it live. */
static void publish(struct regcache *cache, struct entry *entry, const struct range *pages) {
  entry->pages = *pages;
  ranges_add(&cache->ranges, &entry->pages);
  entry->age = (struct range){.start = entry->used, .end = entry->used + 1};
  ranges_add(&cache->ages, &entry->age);
}

/* With the lock: ends it, now or with its last put. */
static void retire(struct regcache *cache, struct entry *entry, struct ended *ended) {
  ranges_remove(&cache->ranges, &entry->pages);
  ranges_remove(&cache->ages, &entry->age);
  entry->pages = (struct range){0};
  int64_t taken = (int64_t)entry->taken;
  if (atomic_fetch_sub_explicit(&entry->given, taken, memory_order_acq_rel) != taken)
    return;
  discount(cache, entry->length);
  entry->next = ended->entries;
  ended->entries = entry;
}

/* Without the lock. */
static void finish(struct regcache *cache, struct ended *ended) {
  announced_free(ended->announcements);
  if (!ended->entries)
    return;
  for (struct entry *entry = ended->entries; entry; entry = entry->next)
    cache->ops->remove(cache->user, entry->user.handle);
  spin_lock(&cache->lock);
  while (ended->entries) {
    struct entry *entry = ended->entries;
    ended->entries = entry->next;
    entry_free(cache, entry);
  }
  spin_unlock(&cache->lock);
}

/* ---- limits (with the lock) ---- */

static bool is_over(const struct regcache *cache, const struct regcache_limits *limits) {
  return cache->counters.bytes > limits->bytes || cache->counters.entries > limits->entries;
}

static void file(struct regcache *cache, struct entry *entry) {
  ranges_remove(&cache->ages, &entry->age);
  entry->age.start = entry->used;
  entry->age.end = entry->used + 1;
  ranges_add(&cache->ages, &entry->age);
}

/* Retires what was got the longest time ago until the limits are kept, passing at most `busy`
 * entries that are in use. Entries are filed under their last get only here, when one comes up
 * whose age is no longer right; so a hit need not touch its neighbours in an order. */
static void make_room(struct regcache *cache, const struct regcache_limits *limits, size_t busy,
                      struct ended *ended) {
  uint64_t began = cache->tick;
  atomic_store(&cache->over, true);
  while (is_over(cache, limits) && cache->ages.first && cache->ages.first->start <= began) {
    struct entry *entry = list_entry(cache->ages.first, struct entry, age);
    if (entry->age.start != entry->used) {
      file(cache, entry);
    } else if ((int64_t)entry->taken != atomic_load(&entry->given)) {
      if (busy-- == 0)
        break;
      entry->used = ++cache->tick;
      file(cache, entry);
    } else {
      cache->counters.evictions++;
      retire(cache, entry, ended);
    }
  }
  atomic_store(&cache->over, is_over(cache, &cache->limits));
}

/* After a put. Few that are in use are passed, as the puts of the others come here too. */
static void trim(struct regcache *cache) {
  struct ended ended = {NULL, NULL};
  spin_lock(&cache->lock);
  make_room(cache, &cache->limits, 8, &ended);
  spin_unlock(&cache->lock);
  finish(cache, &ended);
}

/* Whether something went. Without the lock. */
static bool empty(struct regcache *cache) {
  static const struct regcache_limits nothing = {0, 0, 0};
  struct ended ended = {NULL, NULL};
  spin_lock(&cache->lock);
  make_room(cache, &nothing, SIZE_MAX, &ended);
  spin_unlock(&cache->lock);
  bool some = ended.entries != NULL;
  finish(cache, &ended);
  return some;
}

/* ---- invalidating ---- */

/* With the lock: what is known of these pages, and of announced memory in `bytes`, but for that of
 * the buffer `*keep` when `keep` is not NULL. */
static void forget(struct regcache *cache, const struct range *pages, const struct range *bytes,
                   const uint64_t *keep, struct ended *ended) {
  struct range *at = ranges_first_beyond(&cache->ranges, pages->kind, pages->start);
  while (at && at->start < pages->end) {
    struct range *after = range_after(at);
    if (!keep || entry_of_pages(at)->buffer != *keep) {
      cache->counters.invalidations++;
      retire(cache, entry_of_pages(at), ended);
    }
    at = after;
  }
  list_each(item, &cache->makings) {
    struct making *making = list_entry(item, struct making, link);
    if (!making->stale && overlaps(&making->pages, pages) && (!keep || making->buffer != *keep)) {
      cache->counters.invalidations++;
      making->stale = true;
    }
  }
  announced_forget(&cache->announced, bytes, keep, &ended->announcements);
}

void regcache_invalidate(struct regcache *cache, const struct regcache_range *range) {
  if (!is_valid(cache, range))
    return;
  struct ended ended = {NULL, NULL};
  struct range pages = pages_of(cache, range), bytes = bytes_of(range);
  spin_lock(&cache->lock);
  forget(cache, &pages, &bytes, NULL, &ended);
  spin_unlock(&cache->lock);
  finish(cache, &ended);
}

int regcache_announce(struct regcache *cache, const struct regcache_range *range) {
  if (!is_valid(cache, range))
    return refuse(range);
  struct announcement *announcement = alloc_zero(1, sizeof *announcement);
  if (!announcement)
    return error_memory("announced memory");
  announcement->range = bytes_of(range);
  announcement->buffer = range->buffer;
  struct ended ended = {NULL, NULL};
  struct range pages = pages_of(cache, range);
  spin_lock(&cache->lock);
  forget(cache, &pages, &announcement->range, &range->buffer, &ended);
  announced_add(&cache->announced, announcement, &ended.announcements);
  spin_unlock(&cache->lock);
  finish(cache, &ended);
  return 0;
}

/* ---- making ---- */

static bool is_for_room(int code) {
  return code == HAUL_ENOMEM || code == HAUL_ELIMIT;
}

static int add(struct regcache *cache, const struct making *making, struct entry *entry) {
  const struct regcache_range pages = {.address = making->pages.start,
                                       .length = range_length(&making->pages),
                                       .buffer = making->buffer,
                                       .kind = making->pages.kind};
  return cache->ops->add(cache->user, &pages, &entry->user.handle);
}

/* The pages that were asked for alone, after the wider ones were refused. Without the lock. */
static void narrow(struct regcache *cache, struct making *making, const struct range *asked,
                   int code) {
  spin_lock(&cache->lock);
  announced_refused(&cache->announced, &making->pages, is_for_room(code));
  cache->counters.bytes -= range_length(&making->pages) - range_length(asked);
  making->pages = *asked;
  spin_unlock(&cache->lock);
}

static int add_what_goes(struct regcache *cache, struct making *making, const struct range *asked,
                         struct entry *entry) {
  int code = add(cache, making, entry);
  if (code && range_length(&making->pages) > range_length(asked)) {
    narrow(cache, making, asked, code);
    code = add(cache, making, entry);
  }
  if (is_for_room(code) && empty(cache))
    code = add(cache, making, entry);
  return code;
}

/* With the lock: the live entry that the pages lie in, taken, or else `entry`, live from now on
 * instead of those that lie in it. */
static struct registration *settle(struct regcache *cache, const struct making *making,
                                   struct entry *entry, struct ended *ended) {
  const struct range *pages = &making->pages;
  cache->counters.registrations++;
  entry->buffer = making->buffer;
  entry->length = range_length(pages);
  entry->used = ++cache->tick;
  entry->taken = 1;
  atomic_store_explicit(&entry->given, 0, memory_order_relaxed);
  if (making->stale) {
    atomic_store_explicit(&entry->given, -1, memory_order_relaxed);
    return &entry->user;
  }
  struct range *wider = ranges_cover(&cache->ranges, pages->kind, pages->start, pages->end);
  if (wider) {
    struct entry *other = entry_of_pages(wider);
    cache->counters.replacements++;
    discount(cache, entry->length);
    entry->next = ended->entries;
    ended->entries = entry;
    other->taken++;
    other->used = cache->tick;
    return &other->user;
  }
  struct range *at = ranges_first_beyond(&cache->ranges, pages->kind, pages->start);
  while (at && at->start < pages->end) {
    struct range *after = range_after(at);
    if (covers(pages, at)) {
      cache->counters.replacements++;
      retire(cache, entry_of_pages(at), ended);
    }
    at = after;
  }
  publish(cache, entry, pages);
  return &entry->user;
}

/* With the lock: how a miss begins. */
static void begin(struct regcache *cache, const struct regcache_range *range, struct making *making,
                  struct ended *ended) {
  struct range bytes = bytes_of(range);
  forget(cache, &making->pages, &bytes, &range->buffer, ended);
  announced_widen(&cache->announced, &cache->ranges, range->buffer, &making->pages);
  /* Two buffers may share a page of what came with it. */
  forget(cache, &making->pages, &bytes, &range->buffer, ended);
  list_append(&cache->makings, &making->link);
  cache->counters.misses++;
  account(cache, range_length(&making->pages));
  if (is_over(cache, &cache->limits))
    make_room(cache, &cache->limits, SIZE_MAX, ended);
}

static int make(struct regcache *cache, struct making *making, const struct range *asked,
                struct entry *entry, struct registration **registration) {
  struct ended ended = {NULL, NULL};
  int code = add_what_goes(cache, making, asked, entry);
  spin_lock(&cache->lock);
  list_remove(&making->link);
  if (code == 0) {
    *registration = settle(cache, making, entry, &ended);
  } else {
    discount(cache, range_length(&making->pages));
    entry_free(cache, entry);
  }
  atomic_fetch_add(&cache->made, 1);
  spin_unlock(&cache->lock);
  futex_wake(&cache->made);
  finish(cache, &ended);
  return code;
}

/* With the lock: whether another thread is about to register these pages. */
static bool is_being_made(const struct regcache *cache, const struct making *wanted) {
  list_each(item, &cache->makings) {
    const struct making *making = list_entry(item, struct making, link);
    if (!making->stale && covers(&making->pages, &wanted->pages) &&
        making->buffer == wanted->buffer)
      return true;
  }
  return false;
}

/* With the lock, and again with it: the entry that another thread has made meanwhile, or NULL when
 * nobody is at it. */
static struct entry *wait_for_others(struct regcache *cache, const struct regcache_range *range,
                                     const struct making *making) {
  for (;;) {
    struct entry *entry = find(cache, range);
    if (entry || !is_being_made(cache, making))
      return entry;
    uint32_t made = atomic_load(&cache->made);
    spin_unlock(&cache->lock);
    futex_wait(&cache->made, made, HAUL_FOREVER);
    spin_lock(&cache->lock);
  }
}

static int get_slowly(struct regcache *cache, const struct regcache_range *range,
                      struct registration **registration) {
  struct entry *spare = entry_new(cache);
  if (!spare)
    return error_memory("registration");
  const struct range asked = pages_of(cache, range);
  struct making making = {.pages = asked, .buffer = range->buffer};
  struct ended ended = {NULL, NULL};
  spin_lock(&cache->lock);
  struct entry *found = wait_for_others(cache, range, &making);
  if (found) {
    *registration = take(cache, found);
    entry_free(cache, spare);
  } else {
    begin(cache, range, &making, &ended);
  }
  spin_unlock(&cache->lock);
  finish(cache, &ended);
  return found ? 0 : make(cache, &making, &asked, spare, registration);
}

/* ---- the calls ---- */

int regcache_get(struct regcache *cache, const struct regcache_range *range,
                 struct registration **registration) {
  if (__builtin_expect(!is_valid(cache, range), 0))
    return refuse(range);
  spin_lock(&cache->lock);
  struct entry *entry = find(cache, range);
  if (__builtin_expect(entry != NULL, 1))
    *registration = take(cache, entry);
  spin_unlock(&cache->lock);
  return __builtin_expect(entry != NULL, 1) ? 0 : get_slowly(cache, range, registration);
}

/* The last user of an entry that is retired. */
static void end(struct regcache *cache, struct entry *entry) {
  struct ended ended = {entry, NULL};
  entry->next = NULL;
  spin_lock(&cache->lock);
  discount(cache, entry->length);
  spin_unlock(&cache->lock);
  finish(cache, &ended);
}

void regcache_put(struct regcache *cache, struct registration *registration) {
  struct entry *entry = list_entry(registration, struct entry, user);
  if (__builtin_expect(atomic_fetch_add(&entry->given, 1) == -1, 0))
    end(cache, entry);
  else if (__builtin_expect(atomic_load(&cache->over), 0))
    trim(cache);
}

void regcache_counters(struct regcache *cache, struct regcache_counters *counters) {
  spin_lock(&cache->lock);
  *counters = cache->counters;
  counters->hits = cache->hits;
  spin_unlock(&cache->lock);
}

/* A set for every entry: then hardly one does not find a way in its own. */
static size_t set_count(const struct regcache_limits *limits) {
  size_t sets = SETS_MIN;
  while (sets < SETS_MAX && sets < limits->entries)
    sets *= 2;
  return sets;
}

int regcache_open(const struct regcache_ops *ops, void *user, const struct regcache_limits *limits,
                  struct regcache **out) {
  size_t sets = set_count(limits);
  struct regcache *cache = alloc_zero(1, sizeof *cache);
  void *sets_block = cache ? alloc_zero(1, (sets + 1) * sizeof(struct set)) : NULL;
  if (!sets_block) {
    alloc_free(cache);
    return error_memory("registration cache");
  }
  cache->sets_block = sets_block;
  cache->sets = on_line(sets_block);
  cache->set_shift = 64 - (unsigned)__builtin_ctzll(sets);
  cache->announced.page = page_size();
  cache->page_shift = (unsigned)__builtin_ctzll(cache->announced.page);
  cache->top = UINT64_MAX - (cache->announced.page - 1);
  cache->ops = ops;
  cache->user = user;
  cache->limits = *limits;
  uint64_t merge = limits->merge < limits->bytes ? limits->merge : limits->bytes;
  cache->announced.merge = merge & ~(cache->announced.page - 1);
  list_init(&cache->makings);
  *out = cache;
  return 0;
}

void regcache_close(struct regcache *cache) {
  if (!cache)
    return;
  struct ended ended = {NULL, NULL};
  while (cache->ranges.first)
    retire(cache, entry_of_pages(cache->ranges.first), &ended);
  while (cache->announced.ranges.first)
    announced_forget(&cache->announced, cache->announced.ranges.first, NULL, &ended.announcements);
  finish(cache, &ended);
  while (cache->blocks) {
    struct block *next = cache->blocks->next;
    alloc_free(cache->blocks);
    cache->blocks = next;
  }
  alloc_free(cache->sets_block);
  alloc_free(cache);
}
