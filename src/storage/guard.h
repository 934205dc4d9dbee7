/* SPDX-License-Identifier: MIT
 * Memory that another process may cut short while it is looked at: a page that is lost raises
 * SIGBUS. Under a guard an empty page of this process's own takes its place, and the guard says so.
 */
#ifndef HAUL_STORAGE_GUARD_H
#define HAUL_STORAGE_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct guard {
  void *start; /* of a mapping */
  size_t length;
  _Atomic bool lost; /* what was read since is not the client's */
};

/* Handles SIGBUS from now on; others' handlers get what is not ours. Counted. 0 or -errno. */
int guard_start(void);
void guard_stop(void);

/* The memory that this thread looks at until the next call; NULL: none. */
void guard_enter(struct guard *guard);

#endif
