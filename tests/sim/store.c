/* SPDX-License-Identifier: MIT */
#include "store.h"

#include <stdlib.h>
#include <string.h>

struct store store;
static bool uncommitted;

void store_start(void) {
  store.revision = 1;
  list_init(&store.changed);
}

/* ---- Keys ---- */

static bool is_within(const char *key, const char *from, const char *to) {
  return to ? strcmp(key, from) >= 0 && strcmp(key, to) < 0 : strcmp(key, from) == 0;
}

/* Where the key is, or belongs. */
static size_t place_of(const struct change **sorted, size_t count, const char *key) {
  size_t low = 0;
  while (low < count) {
    size_t middle = (low + count) / 2;
    if (strcmp(sorted[middle]->key, key) < 0)
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

size_t store_range(const char *from, const char *to, int64_t revision,
                   const struct change ***found) {
  const struct change **sorted = malloc((store.change_count + 1) * sizeof *sorted);
  size_t count = 0;
  for (size_t i = 0; i < store.change_count && store.changes[i].revision <= revision; i++) {
    const struct change *change = &store.changes[i];
    if (!is_within(change->key, from, to))
      continue;
    size_t at = place_of(sorted, count, change->key);
    bool there = at < count && strcmp(sorted[at]->key, change->key) == 0;
    size_t behind = count - at - there;
    if (!change->value && there)
      memmove(&sorted[at], &sorted[at + 1], behind * sizeof *sorted);
    if (change->value && !there)
      memmove(&sorted[at + 1], &sorted[at], behind * sizeof *sorted);
    if (change->value)
      sorted[at] = change;
    count = at + behind + (change->value != NULL);
  }
  *found = sorted;
  return count;
}

const struct change *store_find(const char *key) {
  for (size_t i = store.change_count; i-- > 0;)
    if (strcmp(store.changes[i].key, key) == 0)
      return store.changes[i].value ? &store.changes[i] : NULL;
  return NULL;
}

static void add(const char *key, const char *value, int64_t lease) {
  const struct change *before = store_find(key);
  struct change change = {.revision = store.revision + 1,
                          .key = strdup(key),
                          .value = value ? strdup(value) : NULL,
                          .lease = lease,
                          .at = sim_now};
  change.created = before ? before->created : change.revision;
  change.version = before ? before->version + 1 : 1;
  if (store.change_count == store.room) {
    store.room = store.room ? 2 * store.room : 256;
    store.changes = realloc(store.changes, store.room * sizeof *store.changes);
  }
  store.changes[store.change_count++] = change;
  uncommitted = true;
  sim_trace("etcd: revision %lld: %s %s", (long long)change.revision, key, value ? value : "gone");
}

void store_put(const char *key, const char *value, int64_t lease) {
  add(key, value, lease);
}

size_t store_delete(const char *from, const char *to) {
  const struct change **found;
  size_t count = store_range(from, to, INT64_MAX, &found);
  char **keys = malloc((count + 1) * sizeof *keys); /* the changes move */
  for (size_t i = 0; i < count; i++)
    keys[i] = found[i]->key;
  for (size_t i = 0; i < count; i++)
    add(keys[i], NULL, 0);
  free(keys);
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

/* ---- Leases ---- */

struct lease *store_lease(int64_t id) {
  for (size_t i = 0; i < store.lease_count; i++)
    if (id && store.leases[i].id == id)
      return &store.leases[i];
  return NULL;
}

struct lease *store_grant(int64_t seconds) {
  if (store.lease_count == store.lease_room) {
    store.lease_room = store.lease_room ? 2 * store.lease_room : 64;
    store.leases = realloc(store.leases, store.lease_room * sizeof *store.leases);
  }
  struct lease *lease = &store.leases[store.lease_count++];
  seconds = seconds < 2 ? 2 : seconds; /* etcd's least */
  *lease = (struct lease){(int64_t)(sim_random() >> 2) + 1, seconds, sim_now + seconds * S};
  return lease;
}

void store_revoke(struct lease *lease) {
  const struct change **found;
  size_t count = store_range("", "\x7f", INT64_MAX, &found), mine = 0;
  char **keys = malloc((count + 1) * sizeof *keys);
  for (size_t i = 0; i < count; i++)
    if (found[i]->lease == lease->id)
      keys[mine++] = found[i]->key;
  for (size_t i = 0; i < mine; i++)
    add(keys[i], NULL, 0);
  free(keys);
  free(found);
  *lease = store.leases[--store.lease_count];
  store_commit();
}

void store_expire(void) {
  for (size_t i = store.lease_count; i-- > 0;)
    if (store.leases[i].expires <= sim_now)
      store_revoke(&store.leases[i]);
}

void store_extend_leases(void) {
  for (size_t i = 0; i < store.lease_count; i++)
    store.leases[i].expires = sim_now + store.leases[i].seconds * S;
}
