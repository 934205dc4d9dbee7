/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cache.h"
#include "calls.h"
#include "cards.h"
#include "load.h"

#define AFTERMATH (30 * S) /* until what faults did has ended */
#define CLOSING   (5 * S)  /* for a close of a store: puts that wait for clients */

/* ---- Errors ---- */

void keep_count(const char *call, int code) {
  static const int defects[] = {HAUL_EPROTO,  HAUL_EINVAL,    HAUL_EADDRESS,
                                HAUL_EACCESS, HAUL_EINSECURE, HAUL_EVERSION,
                                HAUL_ERANGE,  HAUL_ECLOSED,   HAUL_ECHECKSUM};
  /* Without memory OpenSSL is not opened, or rejects its peer. */
  bool is_short = code == HAUL_ENOMEM || code == HAUL_ELIMIT || code == HAUL_ESYSTEM ||
                  (plan.tls && (code == HAUL_EAUTH || code == HAUL_ENOTSUP));
  bool expected = keep.short_until && sim_now < keep.short_until + AFTERMATH;
  bool wrong = is_short && !expected && !(code == HAUL_ELIMIT && keep_plan.evicts);
  *(code ? &keep.failed : &keep.done) += 1;
  if (code < 0 && code > -64)
    keep.codes[-code]++;
  sim_hash(400, (uint64_t)(int64_t)code);
  if (code)
    sim_trace("%s: %s, %s", call, haul_error_name(code), haul_error_last()->text);
  for (size_t i = 0; i < sizeof defects / sizeof *defects; i++)
    wrong |= code == defects[i];
  if (wrong)
    sim_fail("codes", "%s: %s (%s; %s)", call, haul_error_name(code), haul_error_last()->text,
             haul_error_last()->object);
}

/* ---- Nodes ---- */

haul_node *keep_open(struct keeper *keeper) {
  haul_node *node = NULL;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char name[32];
  snprintf(name, sizeof name, "%s%u", keeper->is_store ? "store" : "client", keeper->number);
  config.name = name;
  config.insecure = 1;
  config.liveness_ns = keep_plan.liveness;
  config.copy_threads = plan.copy_threads;
  config.tcp_rails = plan.rails;
  config.pool_bytes = plan.pool;
  config.tcp_zero_copy = plan.zero_copy;
  config.key = plan.tls ? "/keys/all" : NULL;
  while (load.phase != STOPPING) {
    int code = haul_node_open(&config, &node);
    if (code == 0)
      return node;
    keep_count("haul_node_open", code);
    pause_for(sim_between(MS, 200 * MS));
  }
  return NULL;
}

void keep_close(struct keeper *keeper, haul_node *node) {
  if (node) {
    struct limit limit = limit_begin("haul_node_close", own_clock() + keep_plan.liveness + 10 * S);
    haul_node_close(node);
    limit_end(&limit);
  }
  pause_for(S); /* for threads that close descriptors */
  files_check_closed(keeper->process);
}

/* ---- Stores ---- */

static haul_cache_store *open_store(struct keeper *keeper, haul_node *node) {
  struct haul_cache_store_config config = HAUL_CACHE_STORE_INIT;
  haul_cache_store *store = NULL;
  config.path = keeper->path;
  config.capacity = keep_plan.capacity;
  config.blocks = 512;
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
  while ((code = haul_node_listen(node, keeper->address)) != 0 && load.phase != STOPPING) {
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
  keep_close(keeper, node);
}

void *keeper_main(void *argument) {
  struct keeper *keeper = argument;
  do {
    keeper->leaves = false;
    run(keeper);
    trouble(sim_now, sim_now);
  } while (load.phase != STOPPING);
  keeper->ended = true;
  return NULL;
}
