/* SPDX-License-Identifier: MIT */
#include "core/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void futex_wait(const _Atomic uint32_t *word, uint32_t expected, int64_t until) {
  if (until < 0)
    until = 0;
  struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
  /* FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time (futex(2)). */
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
          until == INT64_MAX ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}
