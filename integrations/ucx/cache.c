/* SPDX-License-Identifier: MIT */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

static unsigned bucket_of(struct cache_key key) {
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof key.words / sizeof key.words[0]; i++)
    hash = (hash ^ key.words[i]) * UINT64_C(0x9e3779b97f4a7c15);
  return (unsigned)(hash >> 32) % CACHE_BUCKETS;
}

void cache_open(struct cache *cache, unsigned most, void (*drop)(void *value)) {
  *cache = (struct cache){.most = most, .drop = drop};
  pthread_mutex_init(&cache->lock, NULL);
}

/* ---- All with the lock ---- */

static struct cache_entry **place_of(struct cache *cache, const struct cache_entry *entry) {
  struct cache_entry **link = &cache->buckets[bucket_of(entry->key)];
  while (*link != entry)
    link = &(*link)->next;
  return link;
}

static void use(struct cache *cache, struct cache_entry *entry) {
  entry->older = cache->newest;
  entry->newer = NULL;
  *(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
  cache->newest = entry;
}

static void unuse(struct cache *cache, struct cache_entry *entry) {
  *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
  *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void unlist(struct cache *cache, struct cache_entry *entry) {
  if (!entry->listed)
    return;
  *place_of(cache, entry) = entry->next;
  unuse(cache, entry);
  entry->listed = false;
  cache->counters.entries--;
}

static struct cache_entry *find(struct cache *cache, struct cache_key key) {
  struct cache_entry *entry = cache->buckets[bucket_of(key)];
  while (entry && memcmp(&entry->key, &key, sizeof key) != 0)
    entry = entry->next;
  if (!entry)
    return NULL;
  unuse(cache, entry);
  use(cache, entry);
  entry->held++;
  return entry;
}

static void list(struct cache *cache, struct cache_entry *entry) {
  struct cache_entry **bucket = &cache->buckets[bucket_of(entry->key)];
  entry->next = *bucket;
  *bucket = entry;
  use(cache, entry);
  entry->listed = true;
  cache->counters.entries++;
}

/* What has to go, so that the bound holds, chained by `next`. */
static struct cache_entry *take_surplus(struct cache *cache) {
  struct cache_entry *surplus = NULL;
  struct cache_entry *entry = cache->oldest;
  while (entry && cache->counters.entries > cache->most) {
    struct cache_entry *newer = entry->newer;
    if (entry->held == 0) {
      unlist(cache, entry);
      cache->counters.dropped++;
      entry->next = surplus;
      surplus = entry;
    }
    entry = newer;
  }
  return surplus;
}

/* ---- Without it ---- */

static void end(struct cache *cache, struct cache_entry *entry) {
  while (entry) {
    struct cache_entry *next = entry->next;
    cache->drop(entry->value);
    free(entry);
    entry = next;
  }
}

void cache_close(struct cache *cache) {
  cache->most = 0;
  end(cache, take_surplus(cache));
  pthread_mutex_destroy(&cache->lock);
}

struct cache_entry *cache_find(struct cache *cache, struct cache_key key) {
  pthread_mutex_lock(&cache->lock);
  struct cache_entry *entry = find(cache, key);
  *(entry ? &cache->counters.hits : &cache->counters.misses) += 1;
  pthread_mutex_unlock(&cache->lock);
  return entry;
}

struct cache_entry *cache_put(struct cache *cache, struct cache_key key, void *value) {
  struct cache_entry *made = calloc(1, sizeof *made);
  if (!made) {
    cache->drop(value);
    return NULL;
  }
  *made = (struct cache_entry){.key = key, .held = 1, .value = value};
  pthread_mutex_lock(&cache->lock);
  struct cache_entry *there = find(cache, key);
  if (!there)
    list(cache, made);
  struct cache_entry *surplus = take_surplus(cache);
  pthread_mutex_unlock(&cache->lock);
  end(cache, surplus);
  if (there)
    end(cache, made);
  return there ? there : made;
}

void cache_give(struct cache *cache, struct cache_entry *entry) {
  pthread_mutex_lock(&cache->lock);
  struct cache_entry *surplus = NULL;
  if (--entry->held == 0 && !entry->listed) {
    entry->next = NULL;
    surplus = entry;
  } else if (entry->held == 0) {
    surplus = take_surplus(cache);
  }
  pthread_mutex_unlock(&cache->lock);
  end(cache, surplus);
}

void cache_forget(struct cache *cache, struct cache_entry *entry) {
  pthread_mutex_lock(&cache->lock);
  unlist(cache, entry);
  pthread_mutex_unlock(&cache->lock);
}

struct cache_counters cache_counted(struct cache *cache) {
  pthread_mutex_lock(&cache->lock);
  struct cache_counters counters = cache->counters;
  pthread_mutex_unlock(&cache->lock);
  return counters;
}
