/* SPDX-License-Identifier: MIT
 * haul cache ls and stat. */
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "common/fail.h"
#include "common/output.h"
#include "common/text.h"

const char *cache_tier_text(unsigned tier) {
  return tier == HAUL_CACHE_DEVICE ? "device" : tier == HAUL_CACHE_FILE ? "file" : "memory";
}

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
  char key[HAUL_CACHE_KEY_MAX + 1];
  memcpy(key, entry->key, sizeof key);
  text_clean(key);
  if (!listing->json) {
    table_row(listing->table, key, size_text(entry->length).text, priority_text(entry->priority),
              listing->node);
    return;
  }
  char checksum[17];
  snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)entry->checksum);
  json_object(listing->json, NULL);
  json_text(listing->json, "key", key);
  json_number(listing->json, "bytes", entry->length);
  json_text(listing->json, "priority", priority_text(entry->priority));
  json_text(listing->json, "checksum", checksum);
  json_text(listing->json, "tier", cache_tier_text(entry->tier));
  json_text(listing->json, "node", listing->node);
  json_end_object(listing->json);
}

static int list_all(haul_cache *cache, haul_deadline until, struct listing *listing) {
  int status = EXIT_DONE;
  for (unsigned i = 0; (listing->node = haul_cache_member(cache, i)); i++)
    if (haul_cache_list(cache, i, until, print_entry, listing))
      status = fail_library("cannot list all keys");
  return status;
}

int cache_ls(haul_cache *cache, const struct cache_values *given, haul_deadline until) {
  struct listing listing = {NULL, NULL, NULL};
  struct json json;
  struct table table;
  if (!given->json) {
    table = table_begin("lrll", "KEY", "SIZE", "PRIORITY", "NODE");
    listing.table = &table;
    int status = list_all(cache, until, &listing);
    table_end(&table);
    return status;
  }
  json = json_open();
  json_array(&json, "blocks");
  listing.json = &json;
  int status = list_all(cache, until, &listing);
  json_end_array(&json);
  json_end_object(&json);
  return status;
}

static void stats_json(struct json *json, const char *node, const struct haul_cache_stats *stats) {
  json_object(json, NULL);
  json_text(json, "node", node);
  json_number(json, "capacity", stats->capacity);
  json_number(json, "used", stats->used);
  json_number(json, "pinned", stats->pinned);
  json_number(json, "blocks", stats->blocks);
  json_number(json, "room", stats->room);
  json_number(json, "puts", stats->puts);
  json_number(json, "evictions", stats->evictions);
  json_number(json, "restored", stats->restored);
  json_number(json, "dropped", stats->dropped);
  json_object(json, "file");
  json_number(json, "capacity", stats->file_capacity);
  json_number(json, "used", stats->file_used);
  json_number(json, "blocks", stats->file_blocks);
  json_number(json, "puts", stats->file_puts);
  json_number(json, "evictions", stats->file_evictions);
  json_number(json, "restored", stats->file_restored);
  json_number(json, "dropped", stats->file_dropped);
  json_end_object(json);
  json_object(json, "device");
  json_number(json, "capacity", stats->device_capacity);
  json_number(json, "used", stats->device_used);
  json_number(json, "pinned", stats->device_pinned);
  json_number(json, "blocks", stats->device_blocks);
  json_number(json, "puts", stats->device_puts);
  json_number(json, "evictions", stats->device_evictions);
  json_end_object(json);
  json_end_object(json);
}

static void stats_row(struct table *table, const char *node, const struct haul_cache_stats *stats) {
  table_row(table, node, size_text(stats->capacity).text, size_text(stats->used).text,
            size_text(stats->pinned).text, number_text((long)stats->blocks).text,
            number_text((long)stats->puts).text, number_text((long)stats->evictions).text,
            number_text((long)stats->dropped).text);
  if (stats->device_capacity > 0)
    table_row(table, "  device tier", size_text(stats->device_capacity).text,
              size_text(stats->device_used).text, size_text(stats->device_pinned).text,
              number_text((long)stats->device_blocks).text,
              number_text((long)stats->device_puts).text,
              number_text((long)stats->device_evictions).text, "-");
  if (stats->file_capacity > 0)
    table_row(table, "  file tier", size_text(stats->file_capacity).text,
              size_text(stats->file_used).text, "-", number_text((long)stats->file_blocks).text,
              number_text((long)stats->file_puts).text,
              number_text((long)stats->file_evictions).text,
              number_text((long)stats->file_dropped).text);
}

int cache_stat(haul_cache *cache, const struct cache_values *given, haul_deadline until) {
  struct json json;
  struct table table;
  int status = EXIT_DONE;
  if (given->json) {
    json = json_open();
    json_array(&json, "stores");
  } else {
    table = table_begin("lrrrrrrr", "NODE", "CAPACITY", "USED", "PINNED", "BLOCKS", "PUTS",
                        "EVICTIONS", "DROPPED");
  }
  for (unsigned i = 0; haul_cache_member(cache, i); i++) {
    struct haul_cache_stats stats;
    if (haul_cache_stat(cache, i, until, &stats))
      status = fail_library("cannot examine all stores");
    else if (given->json)
      stats_json(&json, haul_cache_member(cache, i), &stats);
    else
      stats_row(&table, haul_cache_member(cache, i), &stats);
  }
  if (given->json) {
    json_end_array(&json);
    json_end_object(&json);
  } else {
    table_end(&table);
  }
  return status;
}
