/* SPDX-License-Identifier: MIT
 * Two processes with a region each, for tests over a NIC that is a double: this one, connected, and
 * an owner that published "memory", its slot 0. */
#ifndef HAUL_TESTS_PAIR_H
#define HAUL_TESTS_PAIR_H

#include "support/owner.h"

#define PAIR_BOUND (100 * S)

struct pair {
  struct owner owner;
  struct haul_node *node;
  struct haul_peer *peer;
  struct haul_region *region; /* host memory, `length` bytes, as the owner's */
  struct haul_remote *remote;
};

/* `config`, which may be NULL, is this side's. */
void pair_open(struct pair *pair, const struct haul_node_config *config, uint64_t length);
/* All is well with the NIC again, all ends, and nothing of the double's is left. What the test
 * released itself is NULL. */
void pair_close(struct pair *pair);

#endif
