/* SPDX-License-Identifier: MIT
 * A bounded cache of what is expensive to make, by key. What nobody holds is dropped when there is
 * no room, the least lately used one first; what is held is never dropped, and may go over the
 * bound. The caller locks nothing: each call takes the cache's lock, and calls `drop` without it.
 */
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
  struct cache_entry *next;          /* of its bucket */
  struct cache_entry *newer, *older; /* in the order of use */
  unsigned held;
  bool listed; /* can be found; one that was forgotten ends with its last holder */
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
/* Drops all; nothing is held any more. */
void cache_close(struct cache *cache);
/* The entry, held; NULL: it is not there, which is counted as a miss. */
struct cache_entry *cache_find(struct cache *cache, struct cache_key key);
/* Puts a value there, and holds it. Another thread may have put one under the same key meanwhile:
 * then that one is returned and the value dropped. NULL: no memory, and the value is dropped. */
struct cache_entry *cache_put(struct cache *cache, struct cache_key key, void *value);
void cache_give(struct cache *cache, struct cache_entry *entry);
/* It is found no more; the caller still holds it. */
void cache_forget(struct cache *cache, struct cache_entry *entry);
struct cache_counters cache_counted(struct cache *cache);

#endif
