/* SPDX-License-Identifier: MIT
 * What the hook gave, by address. Not for a forked child, where a lock may be held by a thread that
 * is not there. */
#ifndef HAUL_CUDAHOOK_BLOCKS_H
#define HAUL_CUDAHOOK_BLOCKS_H

#include <haul/haul.h>

struct block {
  struct block *next;
  const char *address;
  size_t bytes;
  int device; /* the runtime's number, which is the driver's too */
  haul_region *region;
};

/* Takes it over. Returns what lay at this address before: an application that resets a device takes
 * memory back without a word. */
struct block *blocks_put(struct block *block);

/* Hands over the block that starts at this address; NULL: none does. */
struct block *blocks_take(const void *address);

/* Hands over all blocks of the device, as a list. */
struct block *blocks_take_all(int device);

/* Calls `use` with the block that the address lies in, which stays meanwhile, and returns what it
 * returned; HAUL_EINVAL where there is none. `use` comes back to no call of this file. */
int blocks_with(const void *address, int (*use)(void *user, const struct block *block), void *user);

#endif
