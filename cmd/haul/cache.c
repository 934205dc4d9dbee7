/* SPDX-License-Identifier: MIT
 * haul cache: blocks by key in the memories of several nodes. */
#include "cache.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/session.h"

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
    {"lease", OPTION_LEASE, offsetof(struct cache_values, lease), "SECONDS",
     "put, pin: keep the blocks from eviction this long, at most a day"},
    {"only", OPTION_PATH, offsetof(struct cache_values, only), "PATH",
     "use only this path (map, rdma, tcp), and fail if it is closed"},
    {"timeout", OPTION_SECONDS, offsetof(struct cache_values, timeout), "SECONDS",
     "limit the time of the command (default: 60)"},
    {"json", OPTION_FLAG, offsetof(struct cache_values, json), NULL,
     "print JSON, which put, get, exists, ls, stat, check and repair have"},
    {0},
};

/* ---- Actions ---- */

enum { SERVE, PUT, GET, EXISTS, LS, RM, PIN, UNPIN, STAT, CHECK, REPAIR };

static const struct action {
  const char *name;
  int least, most; /* operands after FILE or NODES */
  cache_action *run;
} actions[] = {
    [SERVE] = {"serve", 0, 0, NULL},
    [PUT] = {"put", 2, 2, cache_put},
    [GET] = {"get", 2, 2, cache_get},
    [EXISTS] = {"exists", 1, INT_MAX, cache_exists},
    [LS] = {"ls", 0, 0, cache_ls},
    [RM] = {"rm", 1, INT_MAX, cache_rm},
    [PIN] = {"pin", 1, INT_MAX, cache_pin},
    [UNPIN] = {"unpin", 1, INT_MAX, cache_unpin},
    [STAT] = {"stat", 0, 0, cache_stat},
    [CHECK] = {"check", 0, 0, cache_check},
    [REPAIR] = {"repair", 0, 0, cache_repair},
};
#define ACTION_COUNT (sizeof actions / sizeof *actions)

#define OF(action) (1u << (action))
#define CLIENTS    (~OF(SERVE))

/* The actions of each option. */
static const struct {
  const char *option;
  unsigned actions;
} uses[] = {
    {"capacity", OF(SERVE)},      {"blocks", OF(SERVE)},
    {"file-tier", OF(SERVE)},     {"file-capacity", OF(SERVE)},
    {"device", OF(SERVE)},        {"device-capacity", OF(SERVE)},
    {"listen", OF(SERVE)},        {"name", OF(SERVE)},
    {"register", OF(SERVE)},      {"insecure", OF(SERVE)},
    {"ready-fd", OF(SERVE)},      {"log", OF(SERVE)},
    {"log-format", OF(SERVE)},    {"replicas", CLIENTS & ~OF(LS) & ~OF(STAT)},
    {"if-absent", OF(PUT)},       {"priority", OF(PUT)},
    {"lease", OF(PUT) | OF(PIN)}, {"only", CLIENTS},
    {"timeout", CLIENTS},         {"json", CLIENTS & ~OF(RM) & ~OF(PIN) & ~OF(UNPIN)},
};

static bool has_option(const struct action *action, const char *option) {
  size_t i = 0;
  while (i < sizeof uses / sizeof *uses && strcmp(uses[i].option, option) != 0)
    i++;
  return i < sizeof uses / sizeof *uses && uses[i].actions & OF(action - actions);
}

static const struct action *find_action(const char *name) {
  for (size_t i = 0; i < ACTION_COUNT; i++)
    if (strcmp(name, actions[i].name) == 0)
      return &actions[i];
  return NULL;
}

/* "serve, put, ... or repair" */
static void list_actions(char *text, size_t size) {
  size_t length = 0;
  for (size_t i = 0; i < ACTION_COUNT && length < size; i++)
    length += (size_t)snprintf(text + length, size - length, "%s%s",
                               i == 0                  ? ""
                               : i + 1 == ACTION_COUNT ? " or "
                                                       : ", ",
                               actions[i].name);
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

static int check_options(const struct command *self, const struct action *action) {
  for (const struct option_spec *spec = options; spec->name; spec++)
    if (options_given(self, spec) && !has_option(action, spec->name))
      return options_wrong(self, "%s has no option --%s", action->name, spec->name);
  if (action == &actions[PIN] && !given.lease)
    return options_wrong(self, "pin needs --lease SECONDS; unpin ends pins");
  return EXIT_DONE;
}

static int check_operands(const struct command *self, const struct action *action,
                          char **operands) {
  int count = 0;
  while (operands[1 + count])
    count++;
  if (count > action->most)
    return options_wrong(self, "too many operands for %s: '%s'", action->name,
                         operands[1 + action->most]);
  if (count < action->least)
    return options_wrong(self, "too few operands for %s", action->name);
  if (action == &actions[GET] && given.json && strcmp(operands[2], "-") == 0)
    return options_wrong(self, "--json and '-' cannot be combined: both write to standard output");
  return EXIT_DONE;
}

static int run_client(const struct command *self, const struct action *action, char **operands) {
  static struct cache_client client;
  client = (struct cache_client){.given = &given, .nodes = operands[0]};
  if (!parse_priority(given.priority, &client.priority))
    return options_wrong(self, "invalid --priority '%s': expected low, normal or high",
                         given.priority);
  int status = cache_client_open(self, &client);
  if (status == EXIT_DONE)
    status = action->run(&client, operands + 1);
  cache_client_close(&client);
  return status;
}

static int run_cache(const struct command *self, char **operands) {
  char names[128];
  list_actions(names, sizeof names);
  if (!operands[0])
    return options_wrong(self, "missing action: expected %s", names);
  const struct action *action = find_action(operands[0]);
  if (!action)
    return options_wrong(self, "invalid action '%s': expected %s", operands[0], names);
  if (!operands[1])
    return options_wrong(self, "missing operand %s of %s", action->run ? "NODES" : "FILE",
                         action->name);
  int status = check_options(self, action);
  if (status == EXIT_DONE)
    status = check_operands(self, action, operands + 1);
  if (status)
    return status;
  return action->run ? run_client(self, action, operands + 1)
                     : cache_serve(self, &given, operands[1]);
}

const struct command cache_command = {
    .name = "cache",
    .summary = "Keep blocks by key in the memories of several nodes",
    .usage = "serve FILE | put|get NODES KEY FILE | exists|rm|pin|unpin NODES KEY... | "
             "ls|stat|check|repair NODES [OPTIONS]",
    .about =
        "`serve` keeps blocks in FILE, which is memory in /dev/shm, until SIGINT, SIGTERM or "
        "SIGHUP;\n"
        "started again, it has them again. The other actions name all nodes of the cache, as "
        "NODE[,NODE...];\n"
        "each key has its place on them. `put` and `get` copy a file ('-': standard input, "
        "standard output),\n"
        "`exists` looks keys up, `pin` keeps blocks from eviction for --lease seconds, and `unpin` "
        "ends that.\n"
        "`check` lists blocks with fewer than --replicas replicas, and `repair` copies them.",
    .options = options,
    .examples = "  haul cache serve /dev/shm/cache --capacity 8G --listen tcp://127.0.0.1:7500\n"
                "  haul cache put 127.0.0.1:7500 prompt-1 kv.bin --if-absent\n"
                "  haul cache get 127.0.0.1:7500 prompt-1 copy.bin\n"
                "  haul cache put 10.0.0.1,10.0.0.2,10.0.0.3 prompt-2 kv.bin --replicas 2\n"
                "  haul cache ls 127.0.0.1:7500 --json\n",
    .values = &given,
    .least = 0,
    .most = INT_MAX,
    .run = run_cache,
};
