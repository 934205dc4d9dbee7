/* SPDX-License-Identifier: MIT */
#include "support/pair.h"

#include <string.h>

#include "support/check.h"
#include "support/nic.h"

void pair_open(struct pair *pair, const struct haul_node_config *config, uint64_t length) {
  haul_deadline until = haul_deadline_in(PAIR_BOUND);
  owner_start(&pair->owner, "tcp://127.0.0.1:0", NULL);
  assert_int_equal(
      owner_publish(&pair->owner, 0, KIND_HOST, length, "memory", HAUL_READ | HAUL_WRITE), 0);
  assert_works(haul_node_open(config, &pair->node));
  assert_works(haul_peer_connect(pair->node, pair->owner.address, until, &pair->peer));
  assert_works(haul_peer_lookup(pair->peer, "memory", until, &pair->remote));
  pair->region = region_make(pair->node, KIND_HOST, length);
}

void pair_close(struct pair *pair) {
  haul_remote_release(pair->remote);
  haul_region_release(pair->region);
  haul_peer_close(pair->peer);
  haul_node_close(pair->node);
  nic_fault("");
  nic_fault_of_children("");
  assert_true(!pair->owner.pid || owner_end(&pair->owner) == 0);
  nic_check_empty();
  memset(pair, 0, sizeof *pair);
}
