/* SPDX-License-Identifier: MIT
 * The life of registrations: how they are made, what they replace, and how they end: evicted,
 * invalidated, replaced, with their last put. */
#include "core/error.h"
#include "core/futex.h"
#include "fabric/regcache_inside.h"

/* ---- ending ---- */

static void discount(struct regcache *cache, uint64_t bytes) {
  cache->counters.bytes -= bytes;
  cache->counters.entries--;
}

/* With the lock: no longer counted, and to be ended without it. */
static void take_out(struct regcache *cache, struct entry *entry, struct ended *ended) {
  discount(cache, entry->length);
  entry->next = ended->entries;
  ended->entries = entry;
}

/* With the lock: ends it, now or with its last put. */
static void retire(struct regcache *cache, struct entry *entry, struct ended *ended) {
  ranges_remove(&cache->ranges, &entry->pages);
  ranges_remove(&cache->ages, &entry->age);
  entry->pages = (struct range){0};
  int64_t taken = (int64_t)entry->taken;
  if (atomic_fetch_sub_explicit(&entry->given, taken, memory_order_acq_rel) == taken)
    take_out(cache, entry, ended);
}

void ended_finish(struct regcache *cache, struct ended *ended) {
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

void entry_end(struct regcache *cache, struct entry *entry) {
  struct ended ended = {NULL, NULL};
  spin_lock(&cache->lock);
  take_out(cache, entry, &ended);
  spin_unlock(&cache->lock);
  ended_finish(cache, &ended);
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

/* Few that are in use are passed, as the puts of the others come here too. */
void regcache_trim(struct regcache *cache) {
  struct ended ended = {NULL, NULL};
  spin_lock(&cache->lock);
  make_room(cache, &cache->limits, 8, &ended);
  spin_unlock(&cache->lock);
  ended_finish(cache, &ended);
}

bool regcache_empty(struct regcache *cache) {
  static const struct regcache_limits nothing = {0, 0, 0};
  struct ended ended = {NULL, NULL};
  spin_lock(&cache->lock);
  make_room(cache, &nothing, SIZE_MAX, &ended);
  spin_unlock(&cache->lock);
  bool some = ended.entries != NULL;
  ended_finish(cache, &ended);
  return some;
}

/* ---- invalidating ---- */

static bool overlaps(const struct range *one, const struct range *other) {
  return one->kind == other->kind && one->start < other->end && other->start < one->end;
}

void regcache_forget(struct regcache *cache, const struct range *pages, const struct range *bytes,
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

/* ---- making ---- */

static bool covers(const struct range *one, const struct range *other) {
  return one->kind == other->kind && one->start <= other->start && other->end <= one->end;
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

bool making_wait(struct regcache *cache, const struct making *wanted) {
  if (!is_being_made(cache, wanted))
    return false;
  uint32_t made = atomic_load(&cache->made);
  spin_unlock(&cache->lock);
  futex_wait(&cache->made, made, HAUL_FOREVER);
  spin_lock(&cache->lock);
  return true;
}

void making_begin(struct regcache *cache, struct making *making, const struct range *bytes,
                  struct ended *ended) {
  regcache_forget(cache, &making->pages, bytes, &making->buffer, ended);
  announced_widen(&cache->announced, &cache->ranges, making->buffer, &making->pages);
  /* Two buffers may share a page of what came with it. */
  regcache_forget(cache, &making->pages, bytes, &making->buffer, ended);
  list_append(&cache->makings, &making->link);
  cache->counters.misses++;
  cache->counters.bytes += range_length(&making->pages);
  cache->counters.entries++;
  if (is_over(cache, &cache->limits))
    make_room(cache, &cache->limits, SIZE_MAX, ended);
}

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
static void narrow(struct regcache *cache, struct making *making, int code) {
  spin_lock(&cache->lock);
  announced_refused(&cache->announced, &making->pages, is_for_room(code));
  cache->counters.bytes -= range_length(&making->pages) - range_length(&making->asked);
  making->pages = making->asked;
  spin_unlock(&cache->lock);
}

static int add_what_goes(struct regcache *cache, struct making *making, struct entry *entry) {
  int code = add(cache, making, entry);
  if (code && range_length(&making->pages) > range_length(&making->asked)) {
    narrow(cache, making, code);
    code = add(cache, making, entry);
  }
  if (is_for_room(code) && regcache_empty(cache))
    code = add(cache, making, entry);
  return code;
}

/* With the lock: makes it live. */
static void publish(struct regcache *cache, struct entry *entry, const struct range *pages) {
  entry->pages = *pages;
  ranges_add(&cache->ranges, &entry->pages);
  entry->age = (struct range){.start = entry->used, .end = entry->used + 1};
  ranges_add(&cache->ages, &entry->age);
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
  /* A stale one is retired from the start. */
  atomic_store_explicit(&entry->given, making->stale ? -1 : 0, memory_order_relaxed);
  if (making->stale)
    return &entry->user;
  struct range *wider = ranges_cover(&cache->ranges, pages->kind, pages->start, pages->end);
  if (wider) {
    struct entry *other = entry_of_pages(wider);
    cache->counters.replacements++;
    take_out(cache, entry, ended);
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

int making_run(struct regcache *cache, struct making *making, struct entry *entry,
               struct registration **registration) {
  struct ended ended = {NULL, NULL};
  int code = add_what_goes(cache, making, entry);
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
  ended_finish(cache, &ended);
  return code;
}
