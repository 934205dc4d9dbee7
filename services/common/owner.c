/* SPDX-License-Identifier: MIT */
#include "common/owner.h"

#include <unistd.h>

#include "common/fail.h"

bool is_forked(pid_t owner) {
  return getpid() != owner;
}

static int fail_forked(const char *call) {
  return fail(HAUL_EFORK, call, NULL, "call exec first, or fork before the first node is opened",
              "this process is a fork of the one that opened it");
}

int owner_check(pid_t owner, const char *call) {
  return is_forked(owner) ? fail_forked(call) : 0;
}

int owner_check_node(haul_node *node, const char *call) {
  uint64_t peers; /* any call tells */
  return haul_counter_read(node, "node.peers", &peers) == HAUL_EFORK ? fail_forked(call) : 0;
}
