/* SPDX-License-Identifier: MIT
 * The life cycle of registrations: made, replaced, evicted, invalidated, ended by the last put. */
#include "core/error.h"
#include "core/futex.h"
#include "fabric/regcache_internal.h"

static void discount(struct regcache *cache, uint64_t bytes) {
  cache->counters.bytes -= bytes;
  cache->counters.entries--;
}

/* With the lock. */
static void remove_entry(struct regcache *cache, struct entry *entry, struct removed *removed) {
  discount(cache, entry->length);
  entry->next = removed->entries;
  removed->entries = entry;
}

/* With the lock. */
static void count_level(struct regcache *cache, const struct entry *entry, uint32_t more) {
  unsigned level = level_of(cache, entry->length);
  uint32_t bit = (uint32_t)1 << level, levels = atomic_load(&cache->levels);
  cache->live[level] += more;
  atomic_store_explicit(&cache->levels, cache->live[level] ? levels | bit : levels & ~bit,
                        memory_order_relaxed);
}

/* With the lock: removes the entry now or with its last put. */
static void retire(struct regcache *cache, struct entry *entry, struct removed *removed) {
  ranges_remove(&cache->ranges, &entry->pages);
  list_remove(&entry->queued);
  count_level(cache, entry, (uint32_t)-1);
  int64_t gets = atomic_fetch_or(&entry->gets, RETIRED);
  if (atomic_fetch_sub_explicit(&entry->puts, gets, memory_order_acq_rel) == gets)
    remove_entry(cache, entry, removed);
}

void removed_finish(struct regcache *cache, struct removed *removed) {
  merge_free(removed->announced);
  if (!removed->entries)
    return;
  for (struct entry *entry = removed->entries; entry; entry = entry->next)
    cache->ops->remove(cache->user, entry->registration.handle);
  spin_lock(&cache->lock);
  while (removed->entries) {
    struct entry *entry = removed->entries;
    removed->entries = entry->next;
    entry_free(cache, entry);
  }
  spin_unlock(&cache->lock);
}

void entry_end(struct regcache *cache, struct entry *entry) {
  struct removed removed = {NULL, NULL};
  spin_lock(&cache->lock);
  remove_entry(cache, entry, &removed);
  spin_unlock(&cache->lock);
  removed_finish(cache, &removed);
}

static bool is_over(const struct regcache *cache, const struct regcache_limits *limits) {
  return cache->counters.bytes > limits->bytes || cache->counters.entries > limits->entries;
}

/* With the lock: retires idle entries until the limits hold, passing at most `busy` entries in use.
 * A hit does not touch the order: an entry that was got since it was queued is queued again here,
 * when its turn comes. Each gets a turn twice at most. */
static void evict(struct regcache *cache, const struct regcache_limits *limits, size_t busy,
                  struct removed *removed) {
  uint64_t turns = 2 * cache->counters.entries;
  atomic_store(&cache->over, true);
  while (is_over(cache, limits) && !list_empty(&cache->queue) && turns-- > 0) {
    struct entry *entry = list_entry(cache->queue.next, struct entry, queued);
    bool in_use = atomic_load(&entry->gets) != atomic_load(&entry->puts);
    if (in_use && busy-- == 0)
      break;
    if (in_use || atomic_load_explicit(&entry->recent, memory_order_relaxed)) {
      atomic_store_explicit(&entry->recent, false, memory_order_relaxed);
      list_remove(&entry->queued);
      list_append(&cache->queue, &entry->queued);
    } else {
      cache->counters.evictions++;
      retire(cache, entry, removed);
    }
  }
  atomic_store(&cache->over, is_over(cache, &cache->limits));
}

/* Passes few entries in use: their puts call this too. */
void regcache_trim(struct regcache *cache) {
  struct removed removed = {NULL, NULL};
  spin_lock(&cache->lock);
  evict(cache, &cache->limits, 8, &removed);
  spin_unlock(&cache->lock);
  removed_finish(cache, &removed);
}

bool regcache_empty(struct regcache *cache) {
  static const struct regcache_limits nothing = {0};
  struct removed removed = {NULL, NULL};
  spin_lock(&cache->lock);
  evict(cache, &nothing, SIZE_MAX, &removed);
  spin_unlock(&cache->lock);
  bool some = removed.entries != NULL;
  removed_finish(cache, &removed);
  return some;
}

static bool overlaps(const struct range *one, const struct range *other) {
  return one->kind == other->kind && one->start < other->end && other->start < one->end;
}

void regcache_drop(struct regcache *cache, const struct range *pages, const struct range *bytes,
                   const uint64_t *keep, struct removed *removed) {
  struct range *at = ranges_first_beyond(&cache->ranges, pages->kind, pages->start);
  while (at && at->start < pages->end) {
    struct range *after = range_after(at);
    if (!keep || entry_of_pages(at)->buffer != *keep) {
      cache->counters.invalidations++;
      retire(cache, entry_of_pages(at), removed);
    }
    at = after;
  }
  list_each(item, &cache->pending) {
    struct pending *pending = list_entry(item, struct pending, link);
    if (!pending->stale && overlaps(&pending->pages, pages) &&
        (!keep || pending->buffer != *keep)) {
      cache->counters.invalidations++;
      pending->stale = true;
    }
  }
  merge_drop(&cache->merge, bytes, keep, &removed->announced);
}

static bool covers(const struct range *one, const struct range *other) {
  return one->kind == other->kind && one->start <= other->start && other->end <= one->end;
}

bool pending_wait(struct regcache *cache, const struct pending *wanted) {
  bool found = false;
  list_each(item, &cache->pending) {
    const struct pending *pending = list_entry(item, struct pending, link);
    found |= !pending->stale && covers(&pending->pages, &wanted->pages) &&
             pending->buffer == wanted->buffer;
  }
  if (!found)
    return false;
  uint32_t completed = atomic_load(&cache->completed);
  spin_unlock(&cache->lock);
  futex_wait(&cache->completed, completed, HAUL_FOREVER);
  spin_lock(&cache->lock);
  return true;
}

void pending_begin(struct regcache *cache, struct pending *pending, const struct range *bytes,
                   struct removed *removed) {
  regcache_drop(cache, &pending->pages, bytes, &pending->buffer, removed);
  merge_widen(&cache->merge, &cache->ranges, pending->buffer, &pending->pages);
  if (range_length(&pending->pages) > range_length(&pending->requested)) /* perhaps shared, too */
    regcache_drop(cache, &pending->pages, bytes, &pending->buffer, removed);
  list_append(&cache->pending, &pending->link);
  cache->counters.misses++;
  cache->counters.bytes += range_length(&pending->pages);
  cache->counters.entries++;
  if (is_over(cache, &cache->limits))
    evict(cache, &cache->limits, SIZE_MAX, removed);
}

static bool lacks_room(int code) {
  return code == HAUL_ENOMEM || code == HAUL_ELIMIT;
}

static int register_pages(struct regcache *cache, const struct pending *pending,
                          struct entry *entry) {
  const struct regcache_range pages = {.address = pending->pages.start,
                                       .length = range_length(&pending->pages),
                                       .buffer = pending->buffer,
                                       .kind = pending->pages.kind};
  return cache->ops->add(cache->user, &pages, &entry->registration.handle);
}

static int register_with_fallback(struct regcache *cache, struct pending *pending,
                                  struct entry *entry) {
  int code = register_pages(cache, pending, entry);
  uint64_t added = range_length(&pending->pages) - range_length(&pending->requested);
  if (code && added > 0) { /* goes back to the caller's pages */
    spin_lock(&cache->lock);
    merge_refused(&cache->merge, &pending->pages, lacks_room(code));
    cache->counters.bytes -= added;
    pending->pages = pending->requested;
    spin_unlock(&cache->lock);
    code = register_pages(cache, pending, entry);
  }
  if (lacks_room(code) && regcache_empty(cache))
    code = register_pages(cache, pending, entry);
  return code;
}

static void replace_covered(struct regcache *cache, const struct range *pages,
                            struct removed *removed) {
  struct range *at = ranges_first_beyond(&cache->ranges, pages->kind, pages->start);
  while (at && at->start < pages->end) {
    struct range *after = range_after(at);
    if (covers(pages, at)) {
      cache->counters.replacements++;
      retire(cache, entry_of_pages(at), removed);
    }
    at = after;
  }
}

/* With the lock: makes the entry live. */
static void add_entry(struct regcache *cache, struct entry *entry, const struct range *pages) {
  entry->pages = *pages;
  ranges_add(&cache->ranges, &entry->pages);
  list_append(&cache->queue, &entry->queued);
  count_level(cache, entry, 1);
  atomic_store_explicit(&entry->start, pages->start, memory_order_relaxed);
  atomic_store_explicit(&entry->end, pages->end, memory_order_relaxed);
  atomic_store_explicit(&entry->kind, pages->kind, memory_order_relaxed);
  atomic_store_explicit(&entry->recent, false, memory_order_relaxed);
  int64_t gets = atomic_load(&entry->gets) & ~RETIRED;
  atomic_store_explicit(&entry->puts, gets, memory_order_relaxed);
  atomic_store_explicit(&entry->gets, gets + 1, memory_order_release);
  cache->counters.hits--; /* the get that missed */
}

/* With the lock: publishes the entry in place of those that its pages cover. Where a live entry
 * covers the pages already, gets that one instead. */
static struct registration *entry_publish(struct regcache *cache, const struct pending *pending,
                                          struct entry *entry, struct removed *removed) {
  const struct range *pages = &pending->pages;
  cache->counters.registrations++;
  atomic_store_explicit(&entry->buffer, pending->buffer, memory_order_relaxed);
  entry->length = range_length(pages);
  if (pending->stale) { /* retired from the start */
    atomic_store_explicit(&entry->puts, -1, memory_order_relaxed);
    return &entry->registration;
  }
  struct range *wider = ranges_cover(&cache->ranges, pages->kind, pages->start, pages->end);
  if (wider) {
    struct entry *other = entry_of_pages(wider);
    cache->counters.replacements++;
    remove_entry(cache, entry, removed);
    atomic_fetch_add_explicit(&other->gets, 1, memory_order_acquire);
    atomic_store_explicit(&other->recent, true, memory_order_relaxed);
    cache->counters.hits--;
    return &other->registration;
  }
  replace_covered(cache, pages, removed);
  add_entry(cache, entry, pages);
  return &entry->registration;
}

int pending_run(struct regcache *cache, struct pending *pending, struct entry *entry,
                struct registration **registration) {
  struct removed removed = {NULL, NULL};
  int code = register_with_fallback(cache, pending, entry);
  spin_lock(&cache->lock);
  list_remove(&pending->link);
  if (code == 0) {
    *registration = entry_publish(cache, pending, entry, &removed);
  } else {
    discount(cache, range_length(&pending->pages));
    entry_free(cache, entry);
  }
  atomic_fetch_add(&cache->completed, 1);
  spin_unlock(&cache->lock);
  futex_wake(&cache->completed);
  removed_finish(cache, &removed);
  return code;
}
