/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cache.h"
#include "calls.h"
#include "cards.h"
#include "load.h"

#define CLOSING (5 * S)  /* for a close of a store: puts that wait for clients */
#define NOTICED (10 * S) /* more than the liveness timeout */

/* ---- Errors ---- */

/* A client that is killed or cut off during a put leaves room reserved until the store notices. */
static bool may_be_full(void) {
  bool notices = load.phase == FAULTY || sim_now < load.quiet_at + NOTICED;
  return keep_is_small() || (keep_plan.faults.kinds && notices);
}

void keep_count(const char *call, int code) {
  keep.done += code == 0;
  results_count(call, code, may_be_full());
}

/* ---- Nodes ---- */

haul_node *keep_open(struct keeper *keeper) {
  haul_node *node = NULL;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.name = keeper->base.name;
  config.insecure = 1;
  config.liveness_ns = keep_plan.liveness;
  config.copy_threads = plan.copy_threads;
  config.tcp_rails = plan.rails;
  config.pool_bytes = plan.pool;
  config.tcp_zero_copy = plan.zero_copy;
  config.key = plan.tls ? "/keys/all" : NULL;
  if (keeper->base.life > 1) /* others may still take it for away */
    trouble(sim_now, sim_now);
  while (load.phase != STOPPING) {
    int code = haul_node_open(&config, &node);
    if (code == 0)
      return node;
    keep_count("haul_node_open", code);
    pause_for(sim_between(MS, 200 * MS));
  }
  return NULL;
}

/* ---- Stores ---- */

static haul_cache_store *open_store(struct keeper *keeper, haul_node *node) {
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  haul_cache_store *store = NULL;
  config.path = keeper->path;
  config.capacity = keep_plan.capacity;
  config.blocks = config.file_blocks = 512;
  if (keep_plan.files) {
    config.file_path = keeper->file_path;
    config.file_capacity = keep_plan.file_capacity;
  }
  while (node && load.phase != STOPPING) {
    int code = haul_cache_store_open(node, &config, &store);
    keep_count("haul_cache_store_open", code);
    if (code == 0)
      return store;
    pause_for(sim_between(MS, 200 * MS));
  }
  return NULL;
}

static void listen_at(const struct keeper *keeper, haul_node *node) {
  int code;
  while ((code = haul_node_listen(node, keeper->base.address)) != 0 && load.phase != STOPPING) {
    keep_count("haul_node_listen", code);
    pause_for(sim_between(MS, 200 * MS));
  }
}

static void run(struct keeper *keeper) {
  haul_node *node = keep_open(keeper);
  haul_cache_store *store = open_store(keeper, node);
  if (store) {
    store_restored(keeper);
    listen_at(keeper, node);
    keeper->serves = true;
    while (!keeper->leaves && load.phase != STOPPING)
      pause_for(20 * MS);
    keeper->serves = false;
    struct limit limit = limit_begin("haul_cache_store_close", own_clock() + 60 * S + CLOSING);
    haul_cache_store_close(store);
    limit_end(&limit);
  }
  participant_close(&keeper->base, node, keep_plan.liveness);
}

void *keeper_main(void *argument) {
  struct keeper *keeper = argument;
  do {
    keeper->leaves = false;
    run(keeper);
    trouble(sim_now, sim_now);
  } while (load.phase != STOPPING);
  keeper->base.ended = true;
  return NULL;
}
