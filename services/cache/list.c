/* SPDX-License-Identifier: MIT
 * list and stat: what a store's region tells. */
#include <string.h>

#include "cache/client.h"
#include "common/fail.h"
#include "common/owner.h"

#define CHUNK_SLOTS 1024

struct listing {
  const struct link *link;
  unsigned member, tier;
  haul_region *region; /* CHUNK_SLOTS slots */
  struct haul_transfer_options options;
};

static int begin(struct haul_cache *cache, struct link *link, unsigned member, haul_deadline until,
                 struct listing *listing) {
  const struct haul_place host = {HAUL_HOST, 0};
  *listing =
      (struct listing){.link = link, .member = member, .options = HAUL_TRANSFER_OPTIONS_INIT};
  listing->options.deadline = until;
  listing->options.only = cache->only;
  return haul_region_alloc(cache->node, host, CHUNK_SLOTS * sizeof(struct slot),
                           HAUL_REGION_PRIVATE, &listing->region);
}

static int read_at(const struct listing *listing, uint64_t offset, uint64_t length) {
  const struct haul_piece piece = {0, offset, length};
  return haul_read(listing->region, listing->link->remotes[listing->tier], &piece, 1,
                   &listing->options, NULL);
}

/* The slots that the region holds, from number `first` on. */
static int visit_chunk(const struct listing *listing, uint64_t first, uint64_t count,
                       slot_visitor *each, void *context) {
  const struct slot *slots = haul_region_address(listing->region);
  struct location location = {
      .link = listing->link->number, .member = listing->member, .tier = listing->tier};
  int code = 0;
  for (uint64_t i = 0; i < count && code == 0; i++) {
    if (!slot_is_whole(&slots[i]) ||
        !slot_is_sound(&slots[i], &listing->link->headers[listing->tier]))
      continue;
    memcpy(&location.slot, &slots[i], sizeof location.slot);
    location.slot_number = first + i;
    code = each(context, &location);
  }
  return code;
}

static int visit_tier(const struct listing *listing, slot_visitor *each, void *context) {
  uint64_t total = listing->link->headers[listing->tier].buckets * BUCKET_SLOTS;
  int code = 0;
  for (uint64_t at = 0; at < total && code == 0; at += CHUNK_SLOTS) {
    uint64_t count = total - at < CHUNK_SLOTS ? total - at : CHUNK_SLOTS;
    code =
        read_at(listing, bucket_offset(0) + at * sizeof(struct slot), count * sizeof(struct slot));
    if (code == 0)
      code = visit_chunk(listing, at, count, each, context);
  }
  return code;
}

/* The caller's deadline says nothing about the store. */
static bool is_store_failure(int code, haul_deadline until) {
  return is_link_failure(code) && (code != HAUL_ETIMEDOUT || haul_deadline_in(0) < until);
}

int slots_visit(struct haul_cache *cache, unsigned member, haul_deadline until, slot_visitor *each,
                void *context) {
  struct link *link;
  struct listing listing;
  int code = link_get(cache, member, until, &link);
  if (code)
    return code;
  code = begin(cache, link, member, until, &listing);
  if (code == 0) {
    for (unsigned i = 0; i < link->tiers && code == 0; i++) {
      listing.tier = link->order[i];
      code = visit_tier(&listing, each, context);
    }
    haul_region_release(listing.region);
  }
  if (is_store_failure(code, until))
    link_failed(cache, member, link, code, INT64_MAX);
  link_put(cache, link);
  return code;
}

static int check(haul_cache *cache, const char *call, unsigned member, const void *out) {
  if (!cache || !out)
    return fail(HAUL_EINVAL, call, NULL, "pass both", "cache or the last argument is NULL");
  if (member >= cache->member_count)
    return fail(HAUL_ERANGE, call, NULL, "count from 0", "there are %u members",
                cache->member_count);
  return owner_check(cache->owner, call);
}

/* Adds the node to the detail of a failure of haul. */
static int name_member(haul_cache *cache, const char *call, unsigned member, int code) {
  struct haul_error error = *haul_error_last();
  if (code == 0)
    return 0;
  return fail(code, call, cache->members[member].address,
              *error.hint ? error.hint : "start the store", "%s",
              *error.text ? error.text : haul_error_text(code));
}

struct teller {
  void (*each)(void *user, const struct haul_cache_entry *entry);
  void *user;
};

void entry_of_slot(const struct location *location, struct haul_cache_entry *entry) {
  const struct slot *slot = &location->slot;
  *entry = (struct haul_cache_entry){.key_length = slot->key_length,
                                     .length = slot->length,
                                     .checksum = slot->checksum,
                                     .version = slot->version,
                                     .priority = slot->priority,
                                     .tier = location->tier};
  memcpy(entry->key, slot->key, slot->key_length);
}

static int tell(void *context, const struct location *location) {
  const struct teller *teller = context;
  struct haul_cache_entry entry;
  entry_of_slot(location, &entry);
  teller->each(teller->user, &entry);
  return 0;
}

int haul_cache_list(haul_cache *cache, unsigned member, haul_deadline until,
                    void (*each)(void *user, const struct haul_cache_entry *entry), void *user) {
  struct teller teller = {each, user};
  int code = check(cache, "haul_cache_list", member, each ? cache : NULL);
  if (code || !each)
    return code;
  code = slots_visit(cache, member, until, tell, &teller);
  return name_member(cache, "haul_cache_list", member, code);
}

int haul_cache_stat(haul_cache *cache, unsigned member, haul_deadline until,
                    struct haul_cache_stats *stats) {
  struct link *link;
  struct listing listing;
  int code = check(cache, "haul_cache_stat", member, stats);
  if (code)
    return code;
  if (stats->size != sizeof *stats)
    return fail(HAUL_EINVAL, "haul_cache_stat", "stats", "start from HAUL_CACHE_STATS_INIT",
                "the stats have an unknown size");
  code = link_get(cache, member, until, &link);
  if (code)
    return name_member(cache, "haul_cache_stat", member, code);
  code = begin(cache, link, member, until, &listing);
  if (code == 0) {
    *stats = (struct haul_cache_stats)HAUL_CACHE_STATS_INIT;
    for (unsigned i = 0; i < link->tiers && code == 0; i++) {
      listing.tier = link->order[i];
      code = read_at(&listing, 0, sizeof(struct header));
      if (code == 0)
        header_stats(haul_region_address(listing.region), listing.tier, stats);
    }
    haul_region_release(listing.region);
  }
  if (is_store_failure(code, until))
    link_failed(cache, member, link, code, INT64_MAX);
  link_put(cache, link);
  return name_member(cache, "haul_cache_stat", member, code);
}
