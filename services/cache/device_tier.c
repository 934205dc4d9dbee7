/* SPDX-License-Identifier: MIT
 * The tier in the memory of a device. Its slots are in host memory, where processors and clients
 * change and read them. It ends with the process. */
#include <string.h>

#include "cache/tier.h"
#include "common/fail.h"

#define OPEN    "haul_cache_store_open"
#define COPY_NS (10 * HAUL_SECOND)

/* Shows that host memory can be copied to the device, as puts need it. */
static int try_copy(const struct tier *tier) {
  return haul_region_copy(tier->blocks, 0, tier->region, 0, UNIT, haul_deadline_in(COPY_NS));
}

static int allocate(struct tier *tier, haul_node *node, const struct device_config *config,
                    uint64_t length) {
  const struct haul_place host = {HAUL_HOST, 0};
  uint64_t capacity = (config->capacity + UNIT - 1) / UNIT * UNIT;
  int code = haul_region_alloc(node, config->place, capacity, 0, &tier->blocks);
  if (code == 0)
    code = haul_region_alloc(node, host, length, 0, &tier->region);
  if (code)
    return code;
  memset(haul_region_address(tier->region), 0, length);
  return try_copy(tier);
}

int device_tier_open(struct tier *tier, haul_node *node, const struct device_config *config) {
  char place[16];
  uint64_t length = index_slots_length(config->capacity, config->blocks);
  haul_place_format(config->place, place, sizeof place);
  if (config->place.kind == HAUL_HOST)
    return fail(HAUL_EINVAL, OPEN, place, "name a device, for example cuda:0",
                "the device tier cannot be in host memory");
  if (length == 0)
    return fail(HAUL_EINVAL, OPEN, place, "set a device capacity of 4096 bytes to 8 TiB",
                config->capacity ? "the device capacity or its number of blocks is too large"
                                 : "the device tier has no capacity");
  int code = allocate(tier, node, config, length);
  if (code)
    return code;
  code = index_create_apart(&tier->index, haul_region_address(tier->region), config->capacity,
                            config->blocks);
  return code ? fail_memory(OPEN) : 0;
}
