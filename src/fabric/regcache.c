/* SPDX-License-Identifier: MIT
 * The cache's calls, and the lookup in the path of each get. */
#include "fabric/regcache_internal.h"

#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "memory/pages.h"

#define BLOCK_ENTRIES 32
#define WAYS          4
#define SETS_MIN      16
#define SETS_MAX      ((size_t)1 << 17) /* 8 MiB of address space, touched where it is used */

struct block {
  struct block *next;
  char entries[]; /* BLOCK_ENTRIES entries, from the first cache line on */
};

/* A set of the front, a set-associative cache from a block to the entries that last covered parts
 * of it, latest first. It is changed with the lock and read without: what a get finds here may be
 * out of date, or of two changes, and is checked. */
struct set {
  _Atomic uint64_t keys[WAYS];
  struct entry *_Atomic entries[WAYS];
} __attribute__((aligned(LINE)));

static inline bool is_valid(const struct regcache *cache, const struct regcache_range *range) {
  return range->length > 0 && range->address < cache->top &&
         range->length <= cache->top - range->address;
}

static int refuse_range(const struct regcache_range *range) {
  char object[64];
  snprintf(object, sizeof object, "0x%llx+0x%llx", (unsigned long long)range->address,
           (unsigned long long)range->length);
  return error_set(HAUL_EINVAL, 0, object, "pass at least 1 byte, ending within the address space",
                   "not a range of memory");
}

static struct range bytes_of(const struct regcache_range *range) {
  return (struct range){
      .start = range->address, .end = range->address + range->length, .kind = range->kind};
}

static struct range pages_of(const struct regcache *cache, const struct regcache_range *range) {
  uint64_t in_page = cache->merge.page - 1;
  struct range pages = bytes_of(range);
  if (range->kind & cache->limits.exact)
    return pages;
  pages.start &= ~in_page;
  pages.end = (pages.end + in_page) & ~in_page;
  return pages;
}

static inline uint64_t front_key(const struct regcache *cache, const struct regcache_range *range,
                                 unsigned level) {
  return range->address >> (cache->page_shift + 4 * level) ^
         ((uint64_t)range->kind * LEVELS + level) << 52;
}

/* One multiplication spreads neighbouring blocks evenly, but blocks at some distances over few
 * sets; the fold breaks up the latter. */
static inline struct set *front_set(const struct regcache *cache, uint64_t key) {
  return &cache->sets[(key ^ key >> 12) * 0x9e3779b97f4a7c15 >> cache->set_shift];
}

#define PEEK(place) atomic_load_explicit(place, memory_order_relaxed)

static inline bool serves(struct entry *entry, const struct regcache_range *range) {
  return PEEK(&entry->start) <= range->address &&
         range->address + range->length <= PEEK(&entry->end) && PEEK(&entry->kind) == range->kind &&
         PEEK(&entry->buffer) == range->buffer;
}

/* With the lock. */
static void front_put(struct regcache *cache, uint64_t key, struct entry *entry) {
  struct set *set = front_set(cache, key);
  size_t way = 0;
  while (way < WAYS - 1 && PEEK(&set->entries[way]) &&
         (PEEK(&set->entries[way]) != entry || PEEK(&set->keys[way]) != key))
    way++;
  for (; way > 0; way--) {
    atomic_store_explicit(&set->keys[way], PEEK(&set->keys[way - 1]), memory_order_relaxed);
    atomic_store_explicit(&set->entries[way], PEEK(&set->entries[way - 1]), memory_order_release);
  }
  atomic_store_explicit(&set->keys[0], key, memory_order_relaxed);
  atomic_store_explicit(&set->entries[0], entry, memory_order_release);
}

/* Gets the entry if it is live and serves the range. */
static inline bool take(struct entry *entry, const struct regcache_range *range) {
  int64_t gets = atomic_load_explicit(&entry->gets, memory_order_acquire);
  while (gets >= 0 && serves(entry, range))
    if (atomic_compare_exchange_weak_explicit(&entry->gets, &gets, gets + 1, memory_order_acquire,
                                              memory_order_acquire)) {
      if (!PEEK(&entry->recent))
        atomic_store_explicit(&entry->recent, true, memory_order_relaxed);
      return true;
    }
  return false;
}

static inline struct entry *find_in_front(struct regcache *cache,
                                          const struct regcache_range *range) {
  for (uint32_t levels = PEEK(&cache->levels); levels; levels &= levels - 1) {
    uint64_t key = front_key(cache, range, (unsigned)__builtin_ctz(levels));
    struct set *set = front_set(cache, key);
    for (size_t way = 0; way < WAYS; way++) {
      if (PEEK(&set->keys[way]) != key)
        continue;
      struct entry *entry = atomic_load_explicit(&set->entries[way], memory_order_acquire);
      if (entry && take(entry, range))
        return entry;
    }
  }
  return NULL;
}

/* With the lock. */
static struct entry *find_in_ranges(struct regcache *cache, const struct regcache_range *range) {
  struct range *pages =
      ranges_cover(&cache->ranges, range->kind, range->address, range->address + range->length);
  struct entry *entry = pages ? entry_of_pages(pages) : NULL;
  if (!entry || !take(entry, range))
    return NULL;
  front_put(cache, front_key(cache, range, level_of(cache, entry->length)), entry);
  return entry;
}

static void *on_line(void *address) {
  return (void *)(((uintptr_t)address + LINE - 1) & ~(uintptr_t)(LINE - 1));
}

/* Adds free entries; false without memory. With the lock, released meanwhile. */
static bool add_block(struct regcache *cache) {
  spin_unlock(&cache->lock);
  struct block *block = alloc_zero(1, sizeof *block + LINE + BLOCK_ENTRIES * sizeof(struct entry));
  spin_lock(&cache->lock);
  if (!block)
    return false;
  struct entry *entry = on_line(block->entries);
  block->next = cache->blocks;
  cache->blocks = block;
  for (size_t i = 0; i < BLOCK_ENTRIES; i++) {
    atomic_store_explicit(&entry[i].gets, RETIRED, memory_order_relaxed);
    entry_free(cache, &entry[i]);
  }
  return true;
}

/* With the lock, released meanwhile: an entry that serves the range, with a get, or takes a free
 * one for the pages that `wanted` asks for, which no thread is registering. Both NULL: no memory.
 */
static struct entry *find_or_reserve(struct regcache *cache, const struct regcache_range *range,
                                     const struct pending *wanted, struct entry **reserved) {
  *reserved = NULL;
  for (;;) {
    struct entry *entry = find_in_ranges(cache, range);
    if (entry)
      return entry;
    if (!cache->free) {
      if (!add_block(cache))
        return NULL;
    } else if (!pending_wait(cache, wanted)) {
      *reserved = cache->free;
      cache->free = cache->free->next;
      return NULL;
    }
  }
}

static __attribute__((noinline, cold)) int get_slow(struct regcache *cache,
                                                    const struct regcache_range *range,
                                                    struct registration **registration) {
  const struct range bytes = bytes_of(range), pages = pages_of(cache, range);
  struct pending pending = {.requested = pages, .pages = pages, .buffer = range->buffer};
  struct removed removed = {NULL, NULL};
  struct entry *reserved;
  spin_lock(&cache->lock);
  struct entry *found = find_or_reserve(cache, range, &pending, &reserved);
  if (reserved)
    pending_begin(cache, &pending, &bytes, &removed);
  spin_unlock(&cache->lock);
  if (found) {
    *registration = &found->registration;
    return 0;
  }
  if (!reserved)
    return error_memory("registration");
  removed_finish(cache, &removed);
  return pending_run(cache, &pending, reserved, registration);
}

int regcache_get(struct regcache *cache, const struct regcache_range *range,
                 struct registration **registration) {
  if (__builtin_expect(!is_valid(cache, range), 0))
    return refuse_range(range);
  struct entry *entry = find_in_front(cache, range);
  if (__builtin_expect(!entry, 0))
    return get_slow(cache, range, registration);
  *registration = &entry->registration;
  return 0;
}

void regcache_put(struct regcache *cache, struct registration *registration) {
  struct entry *entry = list_entry(registration, struct entry, registration);
  if (__builtin_expect(atomic_fetch_add(&entry->puts, 1) == -1, 0))
    entry_end(cache, entry);
  else if (__builtin_expect(atomic_load(&cache->over), 0))
    regcache_trim(cache);
}

__attribute__((cold)) int regcache_announce(struct regcache *cache,
                                            const struct regcache_range *range) {
  if (!is_valid(cache, range))
    return refuse_range(range);
  struct announced *announced = alloc_zero(1, sizeof *announced);
  if (!announced)
    return error_memory("announced memory");
  announced->range = bytes_of(range);
  announced->buffer = range->buffer;
  struct removed removed = {NULL, NULL};
  struct range pages = pages_of(cache, range);
  spin_lock(&cache->lock);
  regcache_drop(cache, &pages, &announced->range, &range->buffer, &removed);
  merge_add(&cache->merge, announced, &removed.announced);
  spin_unlock(&cache->lock);
  removed_finish(cache, &removed);
  return 0;
}

__attribute__((cold)) void regcache_invalidate(struct regcache *cache,
                                               const struct regcache_range *range) {
  if (!is_valid(cache, range))
    return;
  struct removed removed = {NULL, NULL};
  struct range pages = pages_of(cache, range), bytes = bytes_of(range);
  spin_lock(&cache->lock);
  regcache_drop(cache, &pages, &bytes, NULL, &removed);
  spin_unlock(&cache->lock);
  removed_finish(cache, &removed);
}

__attribute__((cold)) void regcache_counters(struct regcache *cache,
                                             struct regcache_counters *counters) {
  spin_lock(&cache->lock);
  *counters = cache->counters;
  for (struct block *block = cache->blocks; block; block = block->next) {
    const struct entry *entry = on_line(block->entries);
    for (size_t i = 0; i < BLOCK_ENTRIES; i++)
      counters->hits += (uint64_t)(PEEK(&entry[i].gets) & ~RETIRED);
  }
  spin_unlock(&cache->lock);
}

__attribute__((cold)) int regcache_open(const struct regcache_ops *ops, void *user,
                                        const struct regcache_limits *limits,
                                        struct regcache **out) {
  size_t sets = SETS_MIN; /* one for each entry, so that collisions are rare */
  while (sets < SETS_MAX && sets < limits->entries)
    sets *= 2;
  struct regcache *cache = alloc_zero(1, sizeof *cache);
  void *sets_block = cache ? alloc_zero(1, (sets + 1) * sizeof(struct set)) : NULL;
  if (!sets_block) {
    alloc_free(cache);
    return error_memory("registration cache");
  }
  cache->sets_block = sets_block;
  cache->sets = on_line(sets_block);
  cache->set_shift = 64 - (unsigned)__builtin_ctzll(sets);
  cache->merge.page = page_size();
  cache->page_shift = (unsigned)__builtin_ctzll(cache->merge.page);
  cache->top = UINT64_MAX - (cache->merge.page - 1);
  cache->ops = ops;
  cache->user = user;
  cache->limits = *limits;
  uint64_t merge = limits->merge < limits->bytes ? limits->merge : limits->bytes;
  cache->merge.block = merge & ~(cache->merge.page - 1);
  list_init(&cache->pending);
  list_init(&cache->queue);
  *out = cache;
  return 0;
}

__attribute__((cold)) void regcache_close(struct regcache *cache) {
  if (!cache)
    return;
  regcache_empty(cache);
  struct announced *out = NULL;
  while (cache->merge.ranges.first)
    merge_drop(&cache->merge, cache->merge.ranges.first, NULL, &out);
  merge_free(out);
  while (cache->blocks) {
    struct block *next = cache->blocks->next;
    alloc_free(cache->blocks);
    cache->blocks = next;
  }
  alloc_free(cache->sets_block);
  alloc_free(cache);
}
