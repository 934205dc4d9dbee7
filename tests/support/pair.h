/* SPDX-License-Identifier: MIT
 * Two connected processes with a region each, for tests over a mock NIC: this one, and an owner
 * that published "memory", its slot 0. */
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

/* `config` is for this side; it may be NULL. */
void pair_open(struct pair *pair, const struct haul_node_config *config, uint64_t length);
/* Clears the NIC's faults, closes everything, and checks that the mock has no objects left. A
 * member that the test released itself must be NULL. */
void pair_close(struct pair *pair);

#endif
