/* SPDX-License-Identifier: MIT
 * A tier of a store: a mapped file with an index and blocks, or blocks in the memory of a device.
 */
#ifndef HAUL_CACHE_TIER_H
#define HAUL_CACHE_TIER_H

#include <haul/haul.h>

#include "cache/index.h"

/* As those of struct haul_cache_store_config. */
struct tier_config {
  const char *path;
  uint64_t capacity, blocks;
};

struct device_config {
  struct haul_place place;
  uint64_t capacity, blocks;
};

struct tier {
  haul_region *region;
  haul_region *blocks; /* in the memory of the device; NULL: they are in `region` */
  void *memory;
  uint64_t length;
  int file;     /* -1: none */
  bool created; /* by tier_open, for this process alone */
  struct index index;
};

/* Opens the file, or creates it. `*tier` is zero, with file -1. tier_close is due, also after a
 * failure. The errors are those of haul_cache_store_open. */
int tier_open(struct tier *tier, const struct tier_config *config);
/* The same for memory of a device. */
int device_tier_open(struct tier *tier, haul_node *node, const struct device_config *config);
int tier_publish(struct tier *tier, haul_node *node, const char *name);
void tier_close(struct tier *tier);

#endif
