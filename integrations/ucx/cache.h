/* SPDX-License-Identifier: MIT
 * An LRU cache with reference counts. Entries without references are evicted beyond the bound;
 * referenced entries stay, even beyond it. Each call takes the cache's lock, and calls `drop`
 * without it. */
#ifndef HAUL_UCX_CACHE_H
#define HAUL_UCX_CACHE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache_key {
  uint64_t words[3];
};

struct cache_entry {
  struct cache_key key;
  struct cache_entry *next;          /* in its bucket */
  struct cache_entry *newer, *older; /* in the order of use */
  unsigned references;
  bool listed; /* in the table; others are freed with the last reference */
  void *value;
};

struct cache_counters {
  uint64_t hits, misses, dropped;
  unsigned entries;
};

#define CACHE_BUCKETS 1024u

struct cache {
  pthread_mutex_t lock;
  unsigned most;
  void (*drop)(void *value);
  struct cache_entry *buckets[CACHE_BUCKETS];
  struct cache_entry *newest, *oldest;
  struct cache_counters counters;
};

void cache_open(struct cache *cache, unsigned most, void (*drop)(void *value));
/* Drops all entries; there are no references. */
void cache_close(struct cache *cache);
/* Returns the entry with a reference; NULL counts as a miss. */
struct cache_entry *cache_find(struct cache *cache, struct cache_key key);
/* Inserts a value and returns its entry with a reference. If another thread has inserted the same
 * key, drops the value and returns that entry. Without memory drops the value and returns NULL. */
struct cache_entry *cache_insert(struct cache *cache, struct cache_key key, void *value);
void cache_release(struct cache *cache, struct cache_entry *entry);
/* Removes it from the table; the caller keeps its reference. */
void cache_forget(struct cache *cache, struct cache_entry *entry);
struct cache_counters cache_counters_of(struct cache *cache);

#endif
