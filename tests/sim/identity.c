/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "names.h"
#include "node/node.h"

void identity_of(const haul_node *node, uint8_t id[16]) {
  memcpy(id, node->fabric.node_id, 16);
}
