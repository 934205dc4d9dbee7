/* SPDX-License-Identifier: MIT
 * haul cache put and get. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache.h"
#include "common/fail.h"
#include "common/outfile.h"
#include "common/output.h"
#include "common/source.h"
#include "common/text.h"

#define READ_MOST ((size_t)1 << 20) /* between two looks at the length */

/* ---- put ---- */

struct content {
  uint8_t *bytes;
  size_t length;
};

/* Up to the end; waits for input, and for the writer of a FIFO, until the deadline. */
static int read_all(struct cache_client *client, const struct source *source,
                    struct content *content) {
  size_t room = 0;
  for (ssize_t got = 1; got != 0;) {
    if (content->length == room) {
      room = room ? room * 2 : 65536;
      content->bytes = must_realloc(content->bytes, room);
    }
    int status = source_wait(source, NULL, client->until);
    if (status)
      return status;
    size_t left = room - content->length;
    got = read(source->descriptor, content->bytes + content->length,
               left < READ_MOST ? left : READ_MOST);
    if (got < 0 && errno != EINTR && errno != EAGAIN)
      return fail_system(errno, "cannot read %s", source->label);
    content->length += got > 0 ? (size_t)got : 0;
    status = cache_check_length(client, source->label, content->length);
    if (status)
      return status;
  }
  return EXIT_DONE;
}

static int read_content(struct cache_client *client, const char *file, struct content *content) {
  struct source source;
  int status = source_open(&source, file);
  if (status == EXIT_DONE && source.length != SOURCE_LENGTH_UNKNOWN)
    status = cache_check_length(client, source.label, source.length);
  if (status == EXIT_DONE)
    status = read_all(client, &source, content);
  source_close(&source);
  if (status == EXIT_DONE && content->length == 0)
    return fail_because("put at least one byte", "cannot put %s: it is empty", file);
  return status;
}

static void print_put(const struct cache_client *client, const struct haul_cache_item *item) {
  const char *node = haul_cache_member(client->cache, item->member);
  unsigned wanted = client->given->replicas ? client->given->replicas : 1;
  if (client->given->json) {
    struct json json = json_open();
    cache_key_json(&json, item->key, item->key_length);
    json_number(&json, "bytes", item->length);
    json_text(&json, "node", node);
    json_number(&json, "replicas", item->replicas);
    json_number(&json, "wanted", wanted);
    json_end_object(&json);
  } else {
    print_clean(stdout, "put %s (%s) at %s, %u of %u replicas", (const char *)item->key,
                size_text(item->length).text, node, item->replicas, wanted);
  }
  if (item->replicas < wanted)
    fail_note("warning: %s has %u of %u replicas: stores are away, full or too few; `haul cache "
              "repair` makes the others later",
              (const char *)item->key, item->replicas, wanted);
}

static int put_region(struct cache_client *client, const char *key, haul_region *region) {
  const struct cache_values *given = client->given;
  struct haul_cache_item item = cache_item(key), pinned = cache_item(key);
  item.length = haul_region_length(region);
  if (haul_cache_attach(client->cache, region) ||
      haul_cache_put(client->cache, region, &item, 1, given->if_absent ? HAUL_CACHE_IF_ABSENT : 0,
                     client->priority, client->until))
    return fail_library("cannot put %s", key);
  if (given->lease &&
      haul_cache_pin(client->cache, &pinned, 1, cache_lease_seconds(given), client->until))
    return fail_library("%s is put, but cannot be pinned", key);
  print_put(client, &item);
  return EXIT_DONE;
}

int cache_put(struct cache_client *client, char **operands) {
  struct content content = {NULL, 0};
  haul_region *region = NULL;
  int status = read_content(client, operands[1], &content);
  if (status == EXIT_DONE && haul_region_wrap(client->node, content.bytes, content.length, &region))
    status = fail_library("cannot use the bytes of %s", operands[1]);
  if (status == EXIT_DONE)
    status = put_region(client, operands[0], region);
  if (region) {
    haul_cache_detach(client->cache, region);
    haul_region_release(region);
  }
  free(content.bytes);
  return status;
}

/* ---- get ---- */

/* Reads the block into a region of its length, which may change meanwhile. */
static int get_region(struct cache_client *client, struct haul_cache_item *item,
                      haul_region **region) {
  const struct haul_place host = {HAUL_HOST, 0};
  int code = haul_cache_exists(client->cache, item, 1, client->until);
  while (code == 0) {
    code = haul_region_alloc(client->node, host, item->length, 0, region);
    if (code == 0)
      code = haul_cache_get(client->cache, *region, item, 1, client->until);
    if (code == 0)
      return EXIT_DONE;
    haul_region_release(*region);
    *region = NULL;
    if (code == HAUL_ERANGE)
      code = 0;
  }
  return fail_library("cannot get %s", (const char *)item->key);
}

static void print_get(const struct cache_client *client, const struct haul_cache_item *item,
                      const char *file) {
  const char *node = haul_cache_member(client->cache, item->member);
  if (client->given->json) {
    struct json json = json_open();
    cache_key_json(&json, item->key, item->key_length);
    json_number(&json, "bytes", item->length);
    json_text(&json, "node", node);
    json_text(&json, "tier", cache_tier_text(item->tier));
    json_text(&json, "file", file);
    json_end_object(&json);
    return;
  }
  print_clean(file && strcmp(file, "-") == 0 ? stderr : stdout, "get %s (%s) from %s (%s), %s",
              (const char *)item->key, size_text(item->length).text, node,
              cache_tier_text(item->tier), file);
}

int cache_get(struct cache_client *client, char **operands) {
  struct outfile file = {.descriptor = -1};
  struct haul_cache_item item = cache_item(operands[0]);
  haul_region *region = NULL;
  int status = get_region(client, &item, &region);
  if (status == EXIT_DONE)
    status = outfile_open(&file, operands[1], item.length, client->given->timeout);
  if (status == EXIT_DONE)
    status = outfile_write(&file, haul_region_address(region), item.length);
  if (status == EXIT_DONE)
    status = outfile_commit(&file);
  if (status == EXIT_DONE)
    print_get(client, &item, operands[1]);
  outfile_discard(&file);
  haul_region_release(region);
  return status;
}
