/* SPDX-License-Identifier: MIT
 * The client of the actions of haul cache. */
#include <string.h>

#include "cache.h"
#include "common/fail.h"
#include "common/text.h"

#define TIMEOUT_NS INT64_C(60000000000)
#define CONNECT_NS INT64_C(5000000000)
#define ASK_FROM   (UINT64_C(16) << 20) /* shorter blocks are refused soon enough by the store */

/* Splits NODE[,NODE...], or copies the address of a directory. */
static int parse_nodes(const struct command *command, struct cache_client *client) {
  const char *text = client->nodes;
  if (!*text)
    return options_wrong(command, "NODES is empty: check for an empty shell variable");
  if (directory_parse(text, client->directory))
    return EXIT_DONE;
  while (*text) {
    char node[ADDRESS_MAX];
    size_t length = strcspn(text, ",");
    if (length == 0 || length >= sizeof node || client->count == HAUL_CACHE_MEMBERS_MAX)
      return options_wrong(command, "expected up to %d nodes, separated by commas: '%s'",
                           HAUL_CACHE_MEMBERS_MAX, client->nodes);
    memcpy(node, text, length);
    node[length] = '\0';
    if (!options_address(command, node, DEFAULT_PORT, client->addresses[client->count++]))
      return EXIT_USAGE;
    text += length;
    text += *text == ',';
  }
  return EXIT_DONE;
}

int cache_client_open(const struct command *command, struct cache_client *client) {
  struct haul_cache_config config = HAUL_CACHE_INIT;
  const char *members[HAUL_CACHE_MEMBERS_MAX];
  int status = parse_nodes(command, client);
  if (status)
    return status;
  for (size_t i = 0; i < client->count; i++)
    members[i] = client->addresses[i];
  client->until = haul_deadline_in(client->given->timeout ? client->given->timeout : TIMEOUT_NS);
  client->node = open_client_node();
  if (!client->node)
    return EXIT_FAILED;
  config.members = members;
  config.member_count = client->count;
  config.directory = client->count ? NULL : client->directory;
  config.replicas = client->given->replicas;
  config.only = client->given->only;
  config.connect_ns = CONNECT_NS;
  if (haul_cache_open(client->node, &config, client->until, &client->cache))
    return fail_library("cannot use the nodes %s", client->nodes);
  return EXIT_DONE;
}

void cache_client_close(struct cache_client *client) {
  haul_cache_close(client->cache);
  haul_node_close(client->node);
}

haul_deadline cache_share(const struct cache_client *client, unsigned member) {
  haul_deadline now = haul_deadline_in(0);
  bool last = !haul_cache_member(client->cache, member + 1);
  return last ? client->until : now + (client->until - now) / 2;
}

/* Asks stores until one takes blocks of `length` bytes. */
static void ask_stores(struct cache_client *client, uint64_t length) {
  for (; client->largest < length && haul_cache_member(client->cache, client->asked);
       client->asked++) {
    struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
    if (haul_cache_stat(client->cache, client->asked, cache_share(client, client->asked), &stats))
      continue;
    uint64_t capacity = stats.device.capacity ? stats.device.capacity : stats.memory.capacity;
    client->largest = capacity > client->largest ? capacity : client->largest;
  }
}

int cache_check_length(struct cache_client *client, const char *file, uint64_t length) {
  if (length <= ASK_FROM)
    return EXIT_DONE;
  ask_stores(client, length);
  if (length <= client->largest)
    return EXIT_DONE;
  if (client->largest == 0)
    return fail_library("cannot put %s", file);
  return fail_because("put less, or raise the capacity: haul cache serve --capacity",
                      "cannot put %s: it has more than %s, the capacity of the largest store that "
                      "can be reached",
                      file, size_text(client->largest).text);
}

struct haul_cache_item cache_item(const char *key) {
  return (struct haul_cache_item){.key = key, .key_length = strlen(key)};
}
