/* SPDX-License-Identifier: MIT
 * haul cache check and repair. */
#include <stdio.h>

#include "cache.h"
#include "common/fail.h"
#include "common/text.h"

struct printer {
  struct json *json;   /* or */
  struct table *table; /* one of them */
};

static void print_block(void *user, const struct haul_cache_entry *entry, unsigned stores,
                        unsigned copies) {
  const struct printer *printer = user;
  if (!printer->json) {
    table_row(printer->table, entry->key, size_text(entry->length).text, number_text(stores).text,
              number_text(copies).text);
    return;
  }
  json_object(printer->json, NULL);
  cache_key_json(printer->json, entry->key, entry->key_length);
  json_number(printer->json, "bytes", entry->length);
  json_number(printer->json, "replicas", stores);
  json_number(printer->json, "copied", copies);
  json_end_object(printer->json);
}

static void print_json_sums(struct json *json, const struct haul_cache_repair *result) {
  json_end_array(json);
  json_number(json, "blocks", result->blocks);
  json_number(json, "copied", result->copies);
  json_number(json, "bytes", result->bytes);
  json_number(json, "missing", result->missing);
  json_number(json, "changed", result->changed);
  json_number(json, "away", result->away);
  json_end_object(json);
}

static void print_sums(const struct haul_cache_repair *result) {
  printf("%llu blocks, %llu copied (%s), %llu replicas missing, %u nodes away\n",
         (unsigned long long)result->blocks, (unsigned long long)result->copies,
         size_text(result->bytes).text, (unsigned long long)result->missing, result->away);
  if (result->changed > 0)
    printf("%llu blocks changed meanwhile, and were passed over: run it again\n",
           (unsigned long long)result->changed);
}

/* A store that could not be read may have blocks that no other has: then the result is a failure.
 */
static int judge(const struct haul_cache_repair *result, bool dry) {
  static const char away[] = "%u stores could not be read, and what they have is not counted";
  unsigned long long missing = result->missing;
  if (missing == 0 && result->away == 0)
    return EXIT_DONE;
  if (missing == 0)
    return fail_because("start them, or leave those that are lost out of NODES", away,
                        result->away);
  if (result->away > 0)
    fail_note(away, result->away);
  if (dry)
    return fail_because("copy blocks: haul cache repair", "%llu replicas are missing", missing);
  return fail_because("raise the capacity of the nodes, or start more",
                      "%llu replicas are missing: %s", missing,
                      result->code ? haul_error_text(result->code) : "too few nodes are there");
}

static int look(struct cache_client *client, bool dry) {
  struct haul_cache_repair result = HAUL_CACHE_REPAIR_INIT;
  struct json json;
  struct table table;
  struct printer printer = {NULL, NULL};
  if (client->given->json) {
    json = json_open();
    json_array(&json, "short");
    printer.json = &json;
  } else {
    table = table_begin("lrrr", "KEY", "SIZE", "REPLICAS", "COPIED");
    printer.table = &table;
  }
  int code = haul_cache_repair(client->cache, dry ? HAUL_CACHE_DRY_RUN : 0, client->until,
                               print_block, &printer, &result);
  int status = code ? fail_library("cannot examine all blocks") : EXIT_DONE;
  if (client->given->json) {
    print_json_sums(&json, &result);
  } else {
    table_end(&table);
    print_sums(&result);
  }
  return status ? status : judge(&result, dry);
}

int cache_check(struct cache_client *client, char **operands) {
  (void)operands;
  return look(client, true);
}

int cache_repair(struct cache_client *client, char **operands) {
  (void)operands;
  return look(client, false);
}
