/* SPDX-License-Identifier: MIT */
#include "store.h"

#include <stdlib.h>
#include <string.h>

struct store store;
static bool uncommitted;

/* All keys that ever were, sorted, with their last change, counted from 1. */
static struct key {
  char *name;
  size_t last;
} * keys;
static size_t key_count, key_room;

#define BUCKETS 4096 /* of leases; a power of two */
static struct list buckets[BUCKETS];

void store_start(void) {
  store.revision = 1;
  list_init(&store.changed);
  list_init(&store.leases);
  for (size_t i = 0; i < BUCKETS; i++)
    list_init(&buckets[i]);
}

/* Where the key is, or belongs. */
static size_t place_of(const char *name) {
  size_t low = 0, count = key_count;
  while (low < count) {
    size_t middle = (low + count) / 2;
    if (strcmp(keys[middle].name, name) < 0)
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

static bool is_at(size_t place, const char *name) {
  return place < key_count && strcmp(keys[place].name, name) == 0;
}

/* The key's value at a revision; NULL: it was not there. */
static const struct change *value_at(const struct key *key, int64_t revision) {
  size_t at = key->last;
  while (at && store.changes[at - 1].revision > revision)
    at = store.changes[at - 1].previous;
  return at && store.changes[at - 1].value ? &store.changes[at - 1] : NULL;
}

size_t store_range(const char *from, const char *to, int64_t revision,
                   const struct change ***found) {
  size_t first = place_of(from), end = to ? place_of(to) : first + is_at(first, from), count = 0;
  *found = malloc((end > first ? end - first + 1 : 1) * sizeof(struct change *));
  for (size_t i = first; i < end; i++) {
    const struct change *change = value_at(&keys[i], revision);
    if (change)
      (*found)[count++] = change;
  }
  return count;
}

const struct change *store_find(const char *name) {
  size_t at = place_of(name);
  return is_at(at, name) ? value_at(&keys[at], INT64_MAX) : NULL;
}

static struct key *key_made(const char *name) {
  size_t at = place_of(name);
  if (is_at(at, name))
    return &keys[at];
  if (key_count == key_room) {
    key_room = key_room ? 2 * key_room : 256;
    keys = realloc(keys, key_room * sizeof *keys);
  }
  memmove(&keys[at + 1], &keys[at], (key_count++ - at) * sizeof *keys);
  keys[at] = (struct key){strdup(name), 0};
  return &keys[at];
}

static void add(const char *name, const char *value, int64_t lease) {
  struct key *key = key_made(name);
  const struct change *before = value_at(key, INT64_MAX);
  struct change change = {.revision = store.revision + 1,
                          .key = key->name,
                          .value = value ? strdup(value) : NULL,
                          .lease = lease,
                          .at = sim_now,
                          .previous = key->last};
  change.created = before ? before->created : change.revision;
  change.version = before ? before->version + 1 : 1;
  if (store.change_count == store.room) {
    store.room = store.room ? 2 * store.room : 256;
    store.changes = realloc(store.changes, store.room * sizeof *store.changes);
  }
  store.changes[store.change_count++] = change;
  key->last = store.change_count;
  uncommitted = true;
  sim_trace("etcd: revision %lld: %s %s", (long long)change.revision, name, value ? value : "gone");
}

void store_put(const char *key, const char *value, int64_t lease) {
  add(key, value, lease);
}

size_t store_delete(const char *from, const char *to) {
  const struct change **found;
  size_t count = store_range(from, to, INT64_MAX, &found);
  char **names = malloc((count + 1) * sizeof *names); /* the changes move */
  for (size_t i = 0; i < count; i++)
    names[i] = found[i]->key;
  for (size_t i = 0; i < count; i++)
    add(names[i], NULL, 0);
  free(names);
  free(found);
  return count;
}

void store_commit(void) {
  if (!uncommitted)
    return;
  uncommitted = false;
  store.revision++;
  queue_wake(&store.changed, SIZE_MAX);
}

static struct list *bucket_of(int64_t id) {
  return &buckets[(size_t)id % BUCKETS];
}

struct lease *store_lease(int64_t id) {
  list_each(item, bucket_of(id)) {
    struct lease *lease = list_entry(item, struct lease, same);
    if (lease->id == id)
      return lease;
  }
  return NULL;
}

struct lease *store_grant(int64_t seconds) {
  struct lease *lease = calloc(1, sizeof *lease);
  seconds = seconds < 2 ? 2 : seconds; /* etcd's least */
  lease->id = (int64_t)(sim_random() >> 2) + 1;
  lease->seconds = seconds;
  lease->expires = sim_now + seconds * S;
  list_append(&store.leases, &lease->link);
  list_append(bucket_of(lease->id), &lease->same);
  return lease;
}

void store_revoke(struct lease *lease) {
  for (size_t i = 0; i < key_count; i++) { /* no new ones */
    const struct change *change = &store.changes[keys[i].last - 1];
    if (change->value && change->lease == lease->id)
      add(keys[i].name, NULL, 0);
  }
  list_remove(&lease->link);
  list_remove(&lease->same);
  free(lease);
  store_commit();
}

void store_expire(void) {
  list_each_safe(item, &store.leases) {
    struct lease *lease = list_entry(item, struct lease, link);
    if (lease->expires <= sim_now)
      store_revoke(lease);
  }
}

void store_extend_leases(void) {
  list_each(item, &store.leases) {
    struct lease *lease = list_entry(item, struct lease, link);
    lease->expires = sim_now + lease->seconds * S;
  }
}
