/* SPDX-License-Identifier: MIT
 * haul cache exists, rm, pin and unpin. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "common/fail.h"
#include "common/output.h"
#include "common/text.h"

struct keys {
  struct haul_cache_item *items;
  size_t count;
};

/* The caller frees the items. */
static struct keys take_keys(char **operands) {
  struct keys keys = {NULL, 0};
  while (operands[keys.count])
    keys.count++;
  keys.items = must_realloc(NULL, keys.count * sizeof *keys.items);
  for (size_t i = 0; i < keys.count; i++)
    keys.items[i] = cache_item(operands[i]);
  return keys;
}

int cache_rm(struct cache_client *client, char **operands) {
  struct keys keys = take_keys(operands);
  int code = haul_cache_remove(client->cache, keys.items, keys.count, client->until);
  free(keys.items);
  return code ? fail_library("cannot remove all keys") : EXIT_DONE;
}

unsigned cache_lease_seconds(const struct cache_values *given) {
  return (unsigned)((given->lease + 999999999) / 1000000000);
}

static int pin_all(struct cache_client *client, char **operands, unsigned seconds) {
  struct keys keys = take_keys(operands);
  int code = haul_cache_pin(client->cache, keys.items, keys.count, seconds, client->until);
  free(keys.items);
  return code ? fail_library("cannot %s all keys", seconds ? "pin" : "unpin") : EXIT_DONE;
}

int cache_pin(struct cache_client *client, char **operands) {
  return pin_all(client, operands, cache_lease_seconds(client->given));
}

int cache_unpin(struct cache_client *client, char **operands) {
  return pin_all(client, operands, 0);
}

/* ---- exists ---- */

static void print_found_json(const struct cache_client *client, const struct keys *keys) {
  struct json json = json_open();
  json_array(&json, "keys");
  for (size_t i = 0; i < keys->count; i++) {
    const struct haul_cache_item *item = &keys->items[i];
    json_object(&json, NULL);
    cache_key_json(&json, item->key, item->key_length);
    if (item->code == 0 || item->code == HAUL_ENAME)
      json_bool(&json, "exists", item->code == 0);
    else
      json_null(&json, "exists");
    if (item->code == 0) {
      json_number(&json, "bytes", item->length);
      json_text(&json, "tier", cache_tier_text(item->tier));
      json_text(&json, "node", haul_cache_member(client->cache, item->member));
    }
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

static void print_found(const struct cache_client *client, const struct keys *keys) {
  struct table table = table_begin("lrll", "KEY", "SIZE", "TIER", "NODE");
  for (size_t i = 0; i < keys->count; i++) {
    const struct haul_cache_item *item = &keys->items[i];
    const char *none = item->code == HAUL_ENAME ? "absent" : "not known";
    if (item->code == 0)
      table_row(&table, item->key, size_text(item->length).text, cache_tier_text(item->tier),
                haul_cache_member(client->cache, item->member));
    else
      table_row(&table, item->key, none, "-", "-");
  }
  table_end(&table);
}

int cache_exists(struct cache_client *client, char **operands) {
  struct keys keys = take_keys(operands);
  int code = haul_cache_exists(client->cache, keys.items, keys.count, client->until);
  size_t missing = 0;
  for (size_t i = 0; i < keys.count; i++)
    missing += keys.items[i].code != 0;
  if (client->given->json)
    print_found_json(client, &keys);
  else
    print_found(client, &keys);
  int status = code ? fail_library("cannot find %zu of %zu keys", missing, keys.count) : EXIT_DONE;
  free(keys.items);
  return status;
}
