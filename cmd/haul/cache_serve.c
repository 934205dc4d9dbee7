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
  haul_node *node;
  haul_cache_store *store;
  int signals; /* descriptor */
};

static int open_store(struct server *server) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  struct haul_cache_store_config store = HAUL_CACHE_STORE_INIT;
  config.name = server->given->name;
  config.insecure = server->given->insecure;
  store.path = server->file;
  store.capacity = server->given->capacity;
  store.blocks = server->given->blocks;
  store.file_path = server->given->file_tier;
  store.file_capacity = server->given->file_capacity;
  store.device = server->device;
  store.device_capacity = server->given->device_capacity;
  if (haul_node_open(&config, &server->node))
    return fail_library("cannot open a node");
  if (haul_cache_store_open(server->node, &store, &server->store))
    return fail_library("cannot open the store %s", server->file);
  return EXIT_DONE;
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

int cache_serve(const struct command *command, const struct cache_values *given, const char *file) {
  struct server server = {.given = given, .file = file};
  if (given->ready_fd && fcntl((int)given->ready_fd, F_GETFD) < 0)
    return options_wrong(command, "invalid --ready-fd %u: the descriptor is not open",
                         given->ready_fd);
  if (given->file_capacity && !given->file_tier)
    return options_wrong(command, "--file-capacity needs --file-tier");
  if (!given->device != !given->device_capacity)
    return options_wrong(command, "--device and --device-capacity need each other");
  if (given->device && !options_place(command, given->device, &server.device))
    return EXIT_USAGE;
  int status = log_begin(command, &given->log);
  if (status)
    return status;
  server.signals = signals_open(); /* before the node, whose threads inherit the mask */
  signals_explain_fatal("cache");
  status = server.signals < 0 ? EXIT_FAILED : open_store(&server);
  if (status == EXIT_DONE)
    status = listen_all(server.node, &given->listen);
  if (status == EXIT_DONE)
    status = register_node(server.node, given->directory, NULL, server.signals);
  if (status == EXIT_DONE)
    status = announce(&server);
  if (status == EXIT_DONE) {
    service_notify("READY=1");
    status = wait_for_signal(&server);
    service_notify("STOPPING=1");
  }
  haul_cache_store_close(server.store);
  haul_node_close(server.node);
  if (server.signals >= 0)
    close(server.signals);
  return status;
}
