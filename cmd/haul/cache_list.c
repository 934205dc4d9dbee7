/* SPDX-License-Identifier: MIT
 * haul cache ls and stat. */
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "common/fail.h"
#include "common/text.h"

static const char *priority_text(int priority) {
  return priority < 0 ? "low" : priority > 0 ? "high" : "normal";
}

struct listing {
  struct json *json;   /* or */
  struct table *table; /* one of them */
  const char *node;
};

static void print_entry(void *user, const struct haul_cache_entry *entry) {
  const struct listing *listing = user;
  if (!listing->json) {
    table_row(listing->table, entry->key, size_text(entry->length).text,
              priority_text(entry->priority), cache_tier_text(entry->tier), listing->node);
    return;
  }
  char checksum[17];
  snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)entry->checksum);
  json_object(listing->json, NULL);
  cache_key_json(listing->json, entry->key, entry->key_length);
  json_number(listing->json, "bytes", entry->length);
  json_text(listing->json, "priority", priority_text(entry->priority));
  json_text(listing->json, "checksum", checksum);
  json_text(listing->json, "tier", cache_tier_text(entry->tier));
  json_text(listing->json, "node", listing->node);
  json_end_object(listing->json);
}

static int list_all(const struct cache_client *client, struct listing *listing) {
  int status = EXIT_DONE;
  for (unsigned i = 0; (listing->node = haul_cache_member(client->cache, i)); i++)
    if (haul_cache_list(client->cache, i, cache_share(client, i), print_entry, listing))
      status = fail_library("cannot list all keys");
  return status;
}

int cache_ls(struct cache_client *client, char **operands) {
  struct listing listing = {NULL, NULL, NULL};
  struct json json;
  struct table table;
  (void)operands;
  if (!client->given->json) {
    table = table_begin("lrlll", "KEY", "SIZE", "PRIORITY", "TIER", "NODE");
    listing.table = &table;
    int status = list_all(client, &listing);
    table_end(&table);
    return status;
  }
  json = json_open();
  json_array(&json, "blocks");
  listing.json = &json;
  int status = list_all(client, &listing);
  json_end_array(&json);
  json_end_object(&json);
  return status;
}

static void tier_json(struct json *json, const struct haul_cache_tier_stats *tier) {
  json_number(json, "capacity", tier->capacity);
  json_number(json, "used", tier->used);
  json_number(json, "pinned", tier->pinned);
  json_number(json, "blocks", tier->blocks);
  json_number(json, "room", tier->room);
  json_number(json, "puts", tier->puts);
  json_number(json, "evictions", tier->evictions);
  json_number(json, "restored", tier->restored);
  json_number(json, "dropped", tier->dropped);
}

static void stats_json(struct json *json, const char *node, const struct haul_cache_stats *stats) {
  json_object(json, NULL);
  json_text(json, "node", node);
  tier_json(json, &stats->memory);
  json_object(json, "file");
  tier_json(json, &stats->file);
  json_end_object(json);
  json_object(json, "device");
  tier_json(json, &stats->device);
  json_end_object(json);
  json_end_object(json);
}

static void tier_row(struct table *table, const char *name,
                     const struct haul_cache_tier_stats *tier) {
  table_row(table, name, size_text(tier->capacity).text, size_text(tier->used).text,
            size_text(tier->pinned).text, number_text((long)tier->blocks).text,
            number_text((long)tier->puts).text, number_text((long)tier->evictions).text,
            number_text((long)tier->dropped).text);
}

static void stats_row(struct table *table, const char *node, const struct haul_cache_stats *stats) {
  tier_row(table, node, &stats->memory);
  if (stats->device.capacity > 0)
    tier_row(table, "  device tier", &stats->device);
  if (stats->file.capacity > 0)
    tier_row(table, "  file tier", &stats->file);
}

int cache_stat(struct cache_client *client, char **operands) {
  haul_cache *cache = client->cache;
  struct json json;
  struct table table;
  int status = EXIT_DONE;
  (void)operands;
  if (client->given->json) {
    json = json_open();
    json_array(&json, "stores");
  } else {
    table = table_begin("lrrrrrrr", "NODE", "CAPACITY", "USED", "PINNED", "BLOCKS", "PUTS",
                        "EVICTIONS", "DROPPED");
  }
  for (unsigned i = 0; haul_cache_member(cache, i); i++) {
    struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
    if (haul_cache_stat(cache, i, cache_share(client, i), &stats))
      status = fail_library("cannot examine all stores");
    else if (client->given->json)
      stats_json(&json, haul_cache_member(cache, i), &stats);
    else
      stats_row(&table, haul_cache_member(cache, i), &stats);
  }
  if (client->given->json) {
    json_end_array(&json);
    json_end_object(&json);
  } else {
    table_end(&table);
  }
  return status;
}
