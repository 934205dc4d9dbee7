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

static void lru_insert(struct cache *cache, struct cache_entry *entry) {
  entry->older = cache->newest;
  entry->newer = NULL;
  *(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
  cache->newest = entry;
}

static void lru_remove(struct cache *cache, struct cache_entry *entry) {
  *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
  *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void remove_entry(struct cache *cache, struct cache_entry *entry) {
  struct cache_entry **link = &cache->buckets[bucket_of(entry->key)];
  if (!entry->listed)
    return;
  while (*link != entry)
    link = &(*link)->next;
  *link = entry->next;
  lru_remove(cache, entry);
  entry->listed = false;
  cache->counters.entries--;
}

static struct cache_entry *find_entry(struct cache *cache, struct cache_key key) {
  struct cache_entry *entry = cache->buckets[bucket_of(key)];
  while (entry && memcmp(&entry->key, &key, sizeof key) != 0)
    entry = entry->next;
  if (!entry)
    return NULL;
  lru_remove(cache, entry);
  lru_insert(cache, entry);
  entry->references++;
  return entry;
}

static void insert_entry(struct cache *cache, struct cache_entry *entry) {
  struct cache_entry **bucket = &cache->buckets[bucket_of(entry->key)];
  entry->next = *bucket;
  *bucket = entry;
  lru_insert(cache, entry);
  entry->listed = true;
  cache->counters.entries++;
}

/* Removes entries beyond the bound; returns them chained by `next`. */
static struct cache_entry *take_surplus(struct cache *cache) {
  struct cache_entry *surplus = NULL;
  struct cache_entry *entry = cache->oldest;
  while (entry && cache->counters.entries > cache->most) {
    struct cache_entry *newer = entry->newer;
    if (entry->references == 0) {
      remove_entry(cache, entry);
      cache->counters.dropped++;
      entry->next = surplus;
      surplus = entry;
    }
    entry = newer;
  }
  return surplus;
}

static void drop_all(struct cache *cache, struct cache_entry *entry) {
  while (entry) {
    struct cache_entry *next = entry->next;
    cache->drop(entry->value);
    free(entry);
    entry = next;
  }
}

void cache_close(struct cache *cache) {
  cache->most = 0;
  drop_all(cache, take_surplus(cache));
  pthread_mutex_destroy(&cache->lock);
}

struct cache_entry *cache_find(struct cache *cache, struct cache_key key) {
  pthread_mutex_lock(&cache->lock);
  struct cache_entry *entry = find_entry(cache, key);
  *(entry ? &cache->counters.hits : &cache->counters.misses) += 1;
  pthread_mutex_unlock(&cache->lock);
  return entry;
}

struct cache_entry *cache_insert(struct cache *cache, struct cache_key key, void *value) {
  struct cache_entry *made = calloc(1, sizeof *made);
  if (!made) {
    cache->drop(value);
    return NULL;
  }
  *made = (struct cache_entry){.key = key, .references = 1, .value = value};
  pthread_mutex_lock(&cache->lock);
  struct cache_entry *there = find_entry(cache, key);
  if (!there)
    insert_entry(cache, made);
  struct cache_entry *surplus = take_surplus(cache);
  pthread_mutex_unlock(&cache->lock);
  drop_all(cache, surplus);
  if (there)
    drop_all(cache, made);
  return there ? there : made;
}

void cache_release(struct cache *cache, struct cache_entry *entry) {
  pthread_mutex_lock(&cache->lock);
  struct cache_entry *surplus = NULL;
  if (--entry->references == 0 && !entry->listed) {
    entry->next = NULL;
    surplus = entry;
  } else if (entry->references == 0) {
    surplus = take_surplus(cache);
  }
  pthread_mutex_unlock(&cache->lock);
  drop_all(cache, surplus);
}

void cache_forget(struct cache *cache, struct cache_entry *entry) {
  pthread_mutex_lock(&cache->lock);
  remove_entry(cache, entry);
  pthread_mutex_unlock(&cache->lock);
}

struct cache_counters cache_counters_of(struct cache *cache) {
  pthread_mutex_lock(&cache->lock);
  struct cache_counters counters = cache->counters;
  pthread_mutex_unlock(&cache->lock);
  return counters;
}
