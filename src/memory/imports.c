/* SPDX-License-Identifier: MIT */
#include "memory/imports.h"

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

void imports_open(struct imports *imports, bool keeps) {
  pthread_mutex_init(&imports->lock, NULL);
  for (unsigned i = 0; i < IMPORTS_BUCKETS; i++)
    list_init(&imports->buckets[i]);
  list_init(&imports->idle);
  imports->closed = !keeps;
}

static struct list *imports_bucket(struct imports *imports, const uint8_t identity[16]) {
  return &imports->buckets[identity[0] % IMPORTS_BUCKETS];
}

/* With the lock: moves an unused import to `dead`. */
static void discard(struct imports *imports, struct import *import, struct list *dead) {
  list_remove(&import->idle);
  imports->idle_count--;
  list_remove(&import->link);
  list_append(dead, &import->link);
}

void imports_close(struct imports *imports, struct list *dead) {
  pthread_mutex_lock(&imports->lock);
  imports->closed = true;
  while (!list_empty(&imports->idle))
    discard(imports, list_entry(imports->idle.next, struct import, idle), dead);
  pthread_mutex_unlock(&imports->lock);
}

/* The fields that tickets of one region with equal rights share; no padding. */
static struct import_key key_of(const struct ticket *ticket) {
  struct import_key key = {.rights = ticket->rights, .kind = ticket->place.kind};
  memcpy(key.identity, ticket->identity, sizeof key.identity);
  memcpy(key.extra, ticket->extra, sizeof key.extra);
  return key;
}

/* With the lock. */
static struct import *imports_find(struct imports *imports, const struct import_key *key) {
  list_each(item, imports_bucket(imports, key->identity)) {
    struct import *import = list_entry(item, struct import, link);
    if (memcmp(&import->key, key, sizeof *key) == 0)
      return import;
  }
  return NULL;
}

struct import *imports_add(struct imports *imports, const struct ticket *ticket,
                           const struct memory *memory) {
  struct import *import = alloc_zero(1, sizeof *import);
  if (!import) {
    error_memory("an import");
    return NULL;
  }
  import->key = key_of(ticket);
  import->users = 1;
  import->memory = *memory;
  list_init(&import->link);
  list_init(&import->idle);
  pthread_mutex_lock(&imports->lock);
  /* If the key exists already, mark both imports. One check is enough: older ones of the key are
   * marked, or there is only one. */
  struct import *other = memory->provider->proven ? NULL : imports_find(imports, &import->key);
  if (other)
    other->contested = import->contested = true;
  list_prepend(imports_bucket(imports, ticket->identity), &import->link);
  pthread_mutex_unlock(&imports->lock);
  return import;
}

static int imports_check(const struct import *import, const struct ticket *ticket) {
  if (!import)
    return error_set(
        HAUL_ETICKET, 0, NULL, "send its descriptor too",
        "the ticket's memory is not imported in this process, and it came without a descriptor");
  if (import->contested)
    return error_set(
        HAUL_ETICKET, 0, NULL, "send its descriptor too",
        "this ticket's GPU memory was imported more than once, and the owner's import is "
        "unknown");
  if (import->memory.length != ticket->length)
    return error_set(HAUL_ETICKET, 0, NULL,
                     "send the 256 bytes from haul_region_export as they are",
                     "the ticket does not match the memory that was imported under its identity");
  if (!memory_alive(&import->memory))
    return error_released(NULL);
  return 0;
}

struct import *imports_take(struct imports *imports, const struct ticket *ticket) {
  struct import_key key = key_of(ticket);
  pthread_mutex_lock(&imports->lock);
  struct import *import = imports_find(imports, &key);
  bool good = imports_check(import, ticket) == 0;
  if (good && import->users++ == 0) {
    list_remove(&import->idle);
    imports->idle_count--;
  }
  pthread_mutex_unlock(&imports->lock);
  if (good)
    atomic_fetch_add_explicit(&imports->shared, 1, memory_order_relaxed);
  return good ? import : NULL;
}

/* With the lock. */
static void imports_keep(struct imports *imports, struct import *import, struct list *dead) {
  import->ends_at = clock_after(clock_now(), IMPORTS_KEEP_NS);
  list_append(&imports->idle, &import->idle);
  imports->idle_count++;
  if (imports->closed || !memory_alive(&import->memory))
    discard(imports, import, dead);
  else if (imports->idle_count > IMPORTS_IDLE)
    discard(imports, list_entry(imports->idle.next, struct import, idle), dead);
}

bool imports_put(struct imports *imports, struct import *import, struct list *dead) {
  pthread_mutex_lock(&imports->lock);
  bool kept = imports->idle_count > 0;
  if (--import->users == 0)
    imports_keep(imports, import, dead);
  bool keeps = imports->idle_count > 0;
  pthread_mutex_unlock(&imports->lock);
  return keeps && !kept;
}

int64_t imports_expire(struct imports *imports, int64_t now, struct list *dead) {
  int64_t next = HAUL_FOREVER;
  pthread_mutex_lock(&imports->lock);
  while (!list_empty(&imports->idle)) {
    struct import *import = list_entry(imports->idle.next, struct import, idle);
    if (import->ends_at > now) {
      next = import->ends_at;
      break;
    }
    discard(imports, import, dead);
    atomic_fetch_add_explicit(&imports->expired, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&imports->lock);
  return next;
}
