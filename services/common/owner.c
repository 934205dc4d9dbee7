/* SPDX-License-Identifier: MIT */
#include "common/owner.h"

#include <unistd.h>

#include "common/fail.h"

bool is_forked(pid_t owner) {
  return getpid() != owner;
}

int owner_check(pid_t owner, const char *call) {
  if (!is_forked(owner))
    return 0;
  return fail(HAUL_EFORK, call, NULL, "call exec first, or open it in the child",
              "this process is a fork of the one that opened it");
}
