/* SPDX-License-Identifier: MIT
 * What the parts of `haul cache` share. */
#ifndef HAUL_COMMAND_CACHE_H
#define HAUL_COMMAND_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include <haul/cache.h>

#include "command.h"
#include "common/log.h"
#include "common/options.h"

struct cache_values {
  struct text_list listen;
  const char *name, *directory, *priority, *only, *file_tier, *device;
  uint64_t capacity, file_capacity, device_capacity;
  int64_t lease, timeout;
  unsigned blocks, replicas, ready_fd;
  int insecure, if_absent, json;
  struct log_values log;
};

/* Runs a store until a signal. Returns an exit status. */
int cache_serve(const struct command *command, const struct cache_values *given, const char *file);

/* "memory", "file", "device" */
const char *cache_tier_text(unsigned tier);

/* Print the blocks, or the numbers, of all nodes. Return an exit status. */
int cache_ls(haul_cache *cache, const struct cache_values *given, haul_deadline until);
int cache_stat(haul_cache *cache, const struct cache_values *given, haul_deadline until);

/* Prints blocks with too few replicas, and copies them unless `dry`. Returns an exit status. */
int cache_repair(haul_cache *cache, const struct cache_values *given, haul_deadline until,
                 bool dry);

#endif
