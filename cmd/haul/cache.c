/* SPDX-License-Identifier: MIT
 * haul cache: blocks by key in the memories of several nodes. */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/fail.h"
#include "common/outfile.h"
#include "common/output.h"
#include "common/session.h"
#include "common/source.h"
#include "common/text.h"

#define TIMEOUT_NS INT64_C(60000000000)
#define LEASE_MOST INT64_C(86400000000000)

static struct cache_values given;

static const struct option_spec options[] = {
    {"capacity", OPTION_LENGTH, offsetof(struct cache_values, capacity), "SIZE",
     "serve: keep this many bytes of blocks; needed for a new file"},
    {"blocks", OPTION_COUNT, offsetof(struct cache_values, blocks), "N",
     "serve: plan a new file for N blocks (default: one for each 64 KiB)"},
    {"file-tier", OPTION_TEXT, offsetof(struct cache_values, file_tier), "FILE",
     "serve: keep evicted blocks in this second file, for example on an NVMe drive"},
    {"file-capacity", OPTION_LENGTH, offsetof(struct cache_values, file_capacity), "SIZE",
     "serve: keep this many bytes of blocks there; needed for a new file"},
    {"device", OPTION_TEXT, offsetof(struct cache_values, device), "PLACE",
     "serve: put blocks into memory at PLACE (cuda:0), from where they are evicted to FILE"},
    {"device-capacity", OPTION_LENGTH, offsetof(struct cache_values, device_capacity), "SIZE",
     "serve: keep this many bytes of blocks there"},
    {"listen", OPTION_LIST, offsetof(struct cache_values, listen), "ADDRESS",
     "serve: listen on this address; repeatable (default: tcp://127.0.0.1:" DEFAULT_PORT ")"},
    {"name", OPTION_TEXT, offsetof(struct cache_values, name), "NAME",
     "serve: set the name of this node for peers"},
    {"register", OPTION_TEXT, offsetof(struct cache_values, directory), "DIRECTORY",
     "serve: register this node in etcd://HOST[:PORT]/PREFIX, which is then the NODES of clients"},
    {"insecure", OPTION_FLAG, offsetof(struct cache_values, insecure), NULL,
     "serve: listen on network addresses without a key"},
    {"ready-fd", OPTION_COUNT, offsetof(struct cache_values, ready_fd), "N",
     "serve: write the addresses to this descriptor once ready, and close it"},
    {"log", OPTION_TEXT, offsetof(struct cache_values, log.level), "LEVEL",
     "serve: " LOG_LEVEL_HELP},
    {"log-format", OPTION_TEXT, offsetof(struct cache_values, log.format), "FORMAT",
     "serve: " LOG_FORMAT_HELP},
    {"replicas", OPTION_COUNT, offsetof(struct cache_values, replicas), "N",
     "keep each block on N nodes (default: 1); all clients use the same number"},
    {"if-absent", OPTION_FLAG, offsetof(struct cache_values, if_absent), NULL,
     "put: fail if the key exists"},
    {"priority", OPTION_TEXT, offsetof(struct cache_values, priority), "LEVEL",
     "put: low, normal (default) or high; lower ones are evicted first"},
    {"lease", OPTION_SECONDS, offsetof(struct cache_values, lease), "SECONDS",
     "put, pin: keep the block from eviction this long, at most a day"},
    {"only", OPTION_TEXT, offsetof(struct cache_values, only), "PATH",
     "use only this path (map, rdma, tcp), and fail if it is closed"},
    {"timeout", OPTION_SECONDS, offsetof(struct cache_values, timeout), "SECONDS",
     "limit the time of the command (default: 60)"},
    {"json", OPTION_FLAG, offsetof(struct cache_values, json), NULL, "print JSON"},
    {0},
};

/* ---- The client ---- */

struct client {
  const char *nodes; /* as on the command line */
  haul_node *node;
  haul_cache *cache;
  haul_deadline until;
  char directory[ADDRESS_MAX]; /* or */
  size_t count;
  char addresses[LIST_MAX][ADDRESS_MAX];
};

/* Splits NODE[,NODE...], or copies the address of a directory. */
static int parse_nodes(const struct command *command, struct client *client, const char *text) {
  if (directory_parse(text, client->directory))
    return EXIT_DONE;
  while (*text) {
    char node[ADDRESS_MAX];
    size_t length = strcspn(text, ",");
    if (length == 0 || length >= sizeof node || client->count == LIST_MAX)
      return options_wrong(command,
                           "invalid nodes '%s': expected up to %d addresses, separated by "
                           "commas",
                           client->nodes, LIST_MAX);
    memcpy(node, text, length);
    node[length] = '\0';
    if (!options_address(command, node, DEFAULT_PORT, client->addresses[client->count++]))
      return EXIT_USAGE;
    text += length;
    text += *text == ',';
  }
  return EXIT_DONE;
}

static int client_open(struct client *client) {
  struct haul_cache_config config = HAUL_CACHE_INIT;
  const char *members[LIST_MAX];
  for (size_t i = 0; i < client->count; i++)
    members[i] = client->addresses[i];
  client->until = haul_deadline_in(given.timeout ? given.timeout : TIMEOUT_NS);
  client->node = open_client_node();
  if (!client->node)
    return EXIT_FAILED;
  config.members = members;
  config.member_count = client->count;
  config.directory = client->count ? NULL : client->directory;
  config.replicas = given.replicas;
  config.only = given.only;
  config.connect_ns = INT64_C(5000000000);
  if (haul_cache_open(client->node, &config, client->until, &client->cache))
    return fail_library("cannot use the nodes %s", client->nodes);
  return EXIT_DONE;
}

static void client_close(struct client *client) {
  haul_cache_close(client->cache);
  haul_node_close(client->node);
}

static struct haul_cache_item item_of(const char *key) {
  return (struct haul_cache_item){.key = key, .key_length = key ? strlen(key) : 0};
}

/* ---- put ---- */

struct content {
  uint8_t *bytes;
  size_t length;
};

/* Up to the end; waits for input, and for the writer of a FIFO, until the deadline. */
static int read_all(const struct source *source, haul_deadline until, struct content *content) {
  size_t room = 0;
  for (ssize_t got = 1; got != 0;) {
    if (content->length == room) {
      room = room ? room * 2 : 65536;
      content->bytes = must_realloc(content->bytes, room);
    }
    int status = source_wait(source, NULL, until);
    if (status)
      return status;
    got = read(source->descriptor, content->bytes + content->length, room - content->length);
    if (got < 0 && errno != EINTR && errno != EAGAIN)
      return fail_system(errno, "cannot read %s", source->label);
    content->length += got > 0 ? (size_t)got : 0;
  }
  return EXIT_DONE;
}

static int read_content(const char *file, haul_deadline until, struct content *content) {
  struct source source;
  int status = source_open(&source, file);
  if (status == EXIT_DONE)
    status = read_all(&source, until, content);
  source_close(&source);
  if (status == EXIT_DONE && content->length == 0)
    return fail_because("put at least one byte", "cannot put %s: it is empty", file);
  return status;
}

static bool parse_priority(const char *text, int *priority) {
  static const char *const levels[] = {"low", "normal", "high"};
  for (int i = 0; i < 3; i++)
    if (!text || strcmp(text, levels[i]) == 0) {
      *priority = text ? i + HAUL_PRIORITY_LOW : HAUL_PRIORITY_NORMAL;
      return true;
    }
  return false;
}

static unsigned lease_seconds(void) {
  return (unsigned)((given.lease + 999999999) / 1000000000);
}

static void print_put(const struct client *client, const struct haul_cache_item *item) {
  const char *node = haul_cache_member(client->cache, item->member);
  if (given.json) {
    struct json json = json_open();
    json_text(&json, "key", item->key);
    json_number(&json, "bytes", item->length);
    json_text(&json, "node", node);
    json_number(&json, "replicas", item->replicas);
    json_end_object(&json);
    return;
  }
  print_clean(stdout, "put %s (%s) at %s, %u of %u replicas", (const char *)item->key,
              size_text(item->length).text, node, item->replicas,
              given.replicas ? given.replicas : 1);
}

static int put_region(struct client *client, const char *key, haul_region *region, int priority) {
  struct haul_cache_item item = item_of(key);
  item.length = haul_region_length(region);
  if (haul_cache_attach(client->cache, region) ||
      haul_cache_put(client->cache, region, &item, 1, given.if_absent ? HAUL_CACHE_IF_ABSENT : 0,
                     priority, client->until))
    return fail_library("cannot put %s", key);
  struct haul_cache_item pinned = item_of(key);
  if (given.lease && haul_cache_pin(client->cache, &pinned, 1, lease_seconds(), client->until))
    return fail_library("%s is put, but cannot be pinned", key);
  print_put(client, &item);
  return EXIT_DONE;
}

static int run_put(struct client *client, char **operands, int priority) {
  struct content content = {NULL, 0};
  haul_region *region = NULL;
  int status = read_content(operands[1], client->until, &content);
  if (status == EXIT_DONE && haul_region_wrap(client->node, content.bytes, content.length, &region))
    status = fail_library("cannot use the bytes of %s", operands[1]);
  if (status == EXIT_DONE)
    status = put_region(client, operands[0], region, priority);
  if (region) {
    haul_cache_detach(client->cache, region);
    haul_region_release(region);
  }
  free(content.bytes);
  return status;
}

/* ---- get ---- */

/* Reads the block into a region of its length, which may change meanwhile. */
static int get_region(struct client *client, struct haul_cache_item *item, haul_region **region) {
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

static void print_get(const struct client *client, const struct haul_cache_item *item,
                      const char *file) {
  const char *node = haul_cache_member(client->cache, item->member);
  if (given.json) {
    struct json json = json_open();
    json_text(&json, "key", item->key);
    json_number(&json, "bytes", item->length);
    json_text(&json, "node", node);
    json_text(&json, "tier", cache_tier_text(item->tier));
    json_text(&json, "file", file);
    json_end_object(&json);
    return;
  }
  print_clean(file && strcmp(file, "-") == 0 ? stderr : stdout, "get %s (%s) from %s, %s",
              (const char *)item->key, size_text(item->length).text, node, file);
}

static int run_get(struct client *client, char **operands) {
  struct outfile file = {.descriptor = -1};
  struct haul_cache_item item = item_of(operands[0]);
  haul_region *region = NULL;
  int status = get_region(client, &item, &region);
  if (status == EXIT_DONE)
    status = outfile_open(&file, operands[1], item.length, given.timeout);
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

/* ---- rm, pin ---- */

static int run_keys(struct client *client, char **operands, bool pins) {
  struct haul_cache_item items[LIST_MAX];
  size_t count = 0;
  for (; operands[count]; count++)
    items[count] = item_of(operands[count]);
  int code = pins ? haul_cache_pin(client->cache, items, count, lease_seconds(), client->until)
                  : haul_cache_remove(client->cache, items, count, client->until);
  return code ? fail_library("cannot %s all keys", pins ? "pin" : "remove") : EXIT_DONE;
}

/* ---- Actions ---- */

enum action { PUT, GET, LS, RM, PIN, STAT, CHECK, REPAIR };

static const struct {
  const char *name;
  int least, most; /* operands after the nodes */
} actions[] = {{"put", 2, 2},
               {"get", 2, 2},
               {"ls", 0, 0},
               {"rm", 1, LIST_MAX - 2},
               {"pin", 1, LIST_MAX - 2},
               {"stat", 0, 0},
               {"check", 0, 0},
               {"repair", 0, 0}};

static int run_action(enum action action, struct client *client, char **operands, int priority) {
  switch (action) {
  case PUT:
    return run_put(client, operands, priority);
  case GET:
    return run_get(client, operands);
  case LS:
    return cache_ls(client->cache, &given, client->until);
  case STAT:
    return cache_stat(client->cache, &given, client->until);
  case CHECK:
  case REPAIR:
    return cache_repair(client->cache, &given, client->until, action == CHECK);
  default:
    return run_keys(client, operands, action == PIN);
  }
}

static int start_action(const struct command *self, enum action action, char **operands) {
  static struct client client;
  int count = 0, priority;
  while (operands[1 + count])
    count++;
  if (count < actions[action].least || count > actions[action].most)
    return options_wrong(self, "wrong number of operands for %s", actions[action].name);
  if (!parse_priority(given.priority, &priority))
    return options_wrong(self, "invalid --priority '%s': expected low, normal or high",
                         given.priority);
  if (given.lease > LEASE_MOST)
    return options_wrong(self, "invalid --lease: expected at most 86400 seconds");
  if (action == GET && given.json && operands[2] && strcmp(operands[2], "-") == 0)
    return options_wrong(self, "--json and '-' cannot be combined: both write to standard output");
  client = (struct client){.nodes = operands[0]};
  int status = parse_nodes(self, &client, operands[0]);
  if (status == EXIT_DONE)
    status = client_open(&client);
  if (status == EXIT_DONE)
    status = run_action(action, &client, operands + 1, priority);
  client_close(&client);
  return status;
}

static int run_cache(const struct command *self, char **operands) {
  if (strcmp(operands[0], "serve") == 0)
    return operands[2] ? options_wrong(self, "too many operands: '%s'", operands[2])
                       : cache_serve(self, &given, operands[1]);
  for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
    if (strcmp(operands[0], actions[i].name) == 0)
      return start_action(self, (enum action)i, operands + 1);
  return options_wrong(self,
                       "invalid action '%s': expected serve, put, get, ls, rm, pin, stat, "
                       "check or repair",
                       operands[0]);
}

const struct command cache_command = {
    .name = "cache",
    .summary = "Keep blocks by key in the memories of several nodes",
    .usage = "serve FILE | put|get NODES KEY FILE | rm|pin NODES KEY... | "
             "ls|stat|check|repair NODES [OPTIONS]",
    .about = "`serve` keeps blocks in FILE, which is memory in /dev/shm, until SIGINT, SIGTERM or "
             "SIGHUP;\n"
             "started again, it has them again. The other actions name all nodes of the cache, as "
             "NODE[,NODE...];\n"
             "each key has its place on them. `put` and `get` copy a file ('-': standard input, "
             "standard "
             "output),\n"
             "`pin` keeps blocks from eviction for --lease seconds, or ends that. `check` lists "
             "blocks with fewer\n"
             "than --replicas replicas, and `repair` copies them.",
    .options = options,
    .examples = "  haul cache serve /dev/shm/cache --capacity 8G --listen tcp://127.0.0.1:7500\n"
                "  haul cache put 127.0.0.1:7500 prompt-1 kv.bin --if-absent\n"
                "  haul cache get 127.0.0.1:7500 prompt-1 copy.bin\n"
                "  haul cache put 10.0.0.1,10.0.0.2,10.0.0.3 prompt-2 kv.bin --replicas 2\n"
                "  haul cache ls 127.0.0.1:7500 --json\n",
    .values = &given,
    .least = 2,
    .most = LIST_MAX,
    .run = run_cache,
};
