/* SPDX-License-Identifier: MIT
 * Knows a forked child without a system call. */
#ifndef HAUL_CORE_FORK_H
#define HAUL_CORE_FORK_H

#include <stdbool.h>

/* One byte on a page that the kernel wipes in every child, however it was forked (madvise(2),
 * MADV_WIPEONFORK): 1 here, 0 in a child. Points at a constant 1 until the first node is opened. */
extern const volatile unsigned char *fork_mark;

/* Makes the page; 0 or an errno. Done once. */
int fork_watch(void);

static inline bool fork_is_child(void) {
  return *fork_mark == 0;
}

#endif
