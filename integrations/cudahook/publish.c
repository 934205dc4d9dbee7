/* SPDX-License-Identifier: MIT
 * Allocations by address, for the application. */
#include "haul-cudahook.h"

#include "blocks.h"
#include "node.h"

struct found {
  const char *address;
  haul_region *region;
  uint64_t offset;
};

static int note(void *user, const struct block *block) {
  struct found *found = user;
  found->region = block->region;
  found->offset = (uint64_t)(found->address - block->address);
  return 0;
}

int haul_cudahook_find(const void *address, haul_region **region, uint64_t *offset) {
  struct found found = {.address = address};
  if (is_forked_child())
    return HAUL_EFORK;
  if (!address || !region || !offset)
    return HAUL_EINVAL;
  int code = blocks_with(address, note, &found);
  if (code == 0) {
    *region = found.region;
    *offset = found.offset;
  }
  return code;
}

struct wish {
  const char *name;
  unsigned rights;
};

/* While the table holds the block, so that nobody ends the region meanwhile. */
static int publish(void *user, const struct block *block) {
  const struct wish *wish = user;
  return haul_region_publish(block->region, wish->name, wish->rights);
}

int haul_cudahook_publish(const void *address, const char *name, unsigned rights) {
  struct wish wish = {name, rights};
  if (is_forked_child())
    return HAUL_EFORK;
  return address ? blocks_with(address, publish, &wish) : HAUL_EINVAL;
}
