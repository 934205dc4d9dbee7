/* SPDX-License-Identifier: MIT
 * Locations save the lookup of keys that were read before. They need not be right: each read
 * verifies the slot's sequence number. */
#include <string.h>

#include "cache/client.h"

#define REPORT_NS  HAUL_SECOND              /* between two reports of the use of a key */
#define COLLECT_NS (100 * HAUL_MILLISECOND) /* reports wait this long for more */

static struct location *place_of(struct haul_cache *cache, const void *key, size_t length) {
  return &cache->locations[key_hash(key, length) % LOCATIONS];
}

bool location_find(struct haul_cache *cache, const void *key, size_t length,
                   struct location *location) {
  pthread_mutex_lock(&cache->lock);
  const struct location *found = place_of(cache, key, length);
  bool same = slot_has_key(&found->slot, key, length);
  if (same)
    memcpy(location, found, sizeof *location);
  pthread_mutex_unlock(&cache->lock);
  return same;
}

void location_store(struct haul_cache *cache, const struct location *location) {
  pthread_mutex_lock(&cache->lock);
  memcpy(place_of(cache, location->slot.key, location->slot.key_length), location,
         sizeof *location);
  pthread_mutex_unlock(&cache->lock);
}

void location_forget(struct haul_cache *cache, const void *key, size_t length) {
  pthread_mutex_lock(&cache->lock);
  struct location *found = place_of(cache, key, length);
  if (slot_has_key(&found->slot, key, length))
    found->slot.key_length = 0;
  pthread_mutex_unlock(&cache->lock);
}

struct report {
  struct request request;
  struct used used[USED_MAX];
};

/* Takes the notes of the link if they are due. Holds the lock. */
static bool take_report(struct link *link, int64_t now, struct report *report) {
  if (link->used_count == 0 || (link->used_count < USED_MAX && now - link->used_since < COLLECT_NS))
    return false;
  report->request = (struct request){.kind = REQUEST_USED, .count = link->used_count};
  memcpy(report->used, link->used, link->used_count * sizeof *link->used);
  link->used_count = 0;
  return true;
}

void location_used(struct haul_cache *cache, struct link *link, struct location *location) {
  struct report report;
  int64_t now = haul_deadline_in(0);
  pthread_mutex_lock(&cache->lock);
  if (now - location->reported >= REPORT_NS && link->used_count < USED_MAX) {
    if (link->used_count == 0)
      link->used_since = now;
    link->used[link->used_count++] =
        (struct used){(uint32_t)location->slot_number, location->tier,
                      atomic_load_explicit(&location->slot.sequence, memory_order_relaxed)};
    location->reported = now;
  }
  bool due = take_report(link, now, &report);
  pthread_mutex_unlock(&cache->lock);
  /* A lost report only makes the order of eviction less exact. */
  if (due)
    haul_message_send(link->peer, CACHE_TAG << 48, &report,
                      sizeof report.request + report.request.count * sizeof *report.used,
                      HAUL_NO_WAIT);
}
