/* SPDX-License-Identifier: MIT
 * Detects a forked child without a system call. */
#ifndef HAUL_CORE_FORK_H
#define HAUL_CORE_FORK_H

#include <stdbool.h>

/* A byte on a page that the kernel zeroes in every child (MADV_WIPEONFORK, madvise(2)): 1 here, 0
 * in a child. Points to a constant 1 until the first node is opened. */
extern const volatile unsigned char *fork_mark;

/* Maps the page, once; 0 or an errno. After a failure a later call tries again. */
int fork_watch(void);

static inline bool fork_is_child(void) {
  return *fork_mark == 0;
}

#endif
