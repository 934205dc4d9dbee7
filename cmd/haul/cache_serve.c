/* SPDX-License-Identifier: MIT
 * haul cache serve: a store until SIGINT, SIGTERM or SIGHUP. Threads of the library do all work;
 * this one waits for a signal. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <syslog.h>
#include <unistd.h>

#include <haul/cache.h>
#include <haul/directory.h>

#include "cache.h"
#include "common/fail.h"
#include "common/listening.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"

struct server {
  const struct cache_values *given;
  const char *file;
  struct haul_place device; /* kind 0: none */
  bool made, made_tier;     /* the files did not exist */
  haul_node *node;
  haul_cache_store *store;
  int signals; /* descriptor */
};

/* Before a file is made. Tests the directory's address, too, without a connection. */
static int open_node(struct server *server) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_directory *walk = NULL;
  const char *directory = server->given->directory;
  config.name = server->given->name;
  config.insecure = server->given->insecure;
  if (haul_node_open(&config, &server->node))
    return fail_library("cannot open a node");
  if (directory &&
      haul_directory_open(server->node, directory, haul_deadline_in(HAUL_SECOND), &walk))
    return fail_library("cannot register in %s", directory);
  haul_directory_close(walk);
  return EXIT_DONE;
}

static bool exists(const char *file) {
  return file && access(file, F_OK) == 0;
}

static int open_store(struct server *server) {
  struct haul_cache_store_config store = HAUL_CACHE_STORE_INIT;
  store.path = server->file;
  store.capacity = server->given->capacity;
  store.blocks = server->given->blocks;
  store.file_path = server->given->file_tier;
  store.file_capacity = server->given->file_capacity;
  store.device = server->device;
  store.device_capacity = server->given->device_capacity;
  server->made = !exists(store.path);
  server->made_tier = store.file_path && !exists(store.file_path);
  if (haul_cache_store_open(server->node, &store, &server->store))
    return fail_library("cannot open the store %s", server->file);
  return EXIT_DONE;
}

/* After a failure: removes empty files that this call made. The store still holds their locks. */
static void remove_files(const struct server *server) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  if (!server->store || haul_cache_store_stats(server->store, &stats) ||
      stats.device.puts + stats.memory.puts + stats.memory.blocks + stats.file.blocks > 0)
    return;
  if (server->made)
    unlink(server->file);
  if (server->made_tier)
    unlink(server->given->file_tier);
}

static int announce(const struct server *server) {
  struct haul_cache_stats stats = HAUL_CACHE_STATS_INIT;
  if (haul_cache_store_stats(server->store, &stats))
    return fail_library("cannot examine the store");
  unsigned long long restored = stats.memory.restored + stats.file.restored;
  unsigned long long dropped = stats.memory.dropped + stats.file.dropped;
  printf("%llu blocks restored, %llu damaged ones dropped, capacity %s\n", restored, dropped,
         size_text(stats.memory.capacity + stats.file.capacity + stats.device.capacity).text);
  return announce_node(server->node, server->given->ready_fd);
}

static int wait_for_signal(const struct server *server) {
  struct pollfd entry = {server->signals, POLLIN, 0};
  char text[160];
  if (TEMP_FAILURE_RETRY(poll(&entry, 1, -1)) < 0)
    return fail_system(errno, "cannot poll");
  int status = signals_describe(server->signals, text, sizeof(text));
  if (status == EXIT_DONE)
    log_line(LOG_INFO, "ended", text);
  return status;
}

/* What needs neither a node nor a file. */
static int check_values(const struct command *command, struct server *server) {
  const struct cache_values *given = server->given;
  char address[ADDRESS_MAX];
  if (given->ready_fd && fcntl((int)given->ready_fd, F_GETFD) < 0)
    return options_wrong(command, "invalid --ready-fd %u: the descriptor is not open",
                         given->ready_fd);
  if (given->file_capacity && !given->file_tier)
    return options_wrong(command, "--file-capacity needs --file-tier");
  if (!given->device != !given->device_capacity)
    return options_wrong(command, "--device and --device-capacity need each other");
  if (given->device && !options_place(command, given->device, &server->device))
    return EXIT_USAGE;
  for (size_t i = 0; i < given->listen.count; i++)
    if (!options_address(command, given->listen.items[i], DEFAULT_PORT, address))
      return EXIT_USAGE;
  if (given->directory && !directory_parse(given->directory, address))
    return options_wrong(command, "invalid --register '%s': expected etcd://HOST[:PORT]/PREFIX",
                         given->directory);
  return EXIT_DONE;
}

static int serve(struct server *server) {
  int status = open_node(server);
  if (status == EXIT_DONE)
    status = open_store(server);
  if (status == EXIT_DONE)
    status = listen_all(server->node, &server->given->listen);
  if (status == EXIT_DONE)
    status = register_node(server->node, server->given->directory, NULL, server->signals);
  if (status == EXIT_DONE)
    status = announce(server);
  if (status) {
    remove_files(server);
    return status;
  }
  service_notify("READY=1");
  status = wait_for_signal(server);
  service_notify("STOPPING=1");
  return status;
}

int cache_serve(const struct command *command, const struct cache_values *given, const char *file) {
  struct server server = {.given = given, .file = file};
  int status = check_values(command, &server);
  if (status == EXIT_DONE)
    status = log_begin(command, &given->log);
  if (status)
    return status;
  server.signals = signals_open(); /* before the node, whose threads inherit the mask */
  signals_explain_fatal("cache");
  status = server.signals < 0 ? EXIT_FAILED : serve(&server);
  haul_cache_store_close(server.store);
  haul_node_close(server.node);
  if (server.signals >= 0)
    close(server.signals);
  return status;
}
