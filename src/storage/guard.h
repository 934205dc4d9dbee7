/* SPDX-License-Identifier: MIT
 * Mappings of memory or files that somebody else may cut short while they are looked at: a page
 * that is lost raises SIGBUS. Where a guard watches, an empty page of this process's own takes its
 * place, whatever thread looked, and the guard says so. */
#ifndef HAUL_STORAGE_GUARD_H
#define HAUL_STORAGE_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/list.h"

struct guard {
  struct list link;
  void *start; /* of a mapping, a whole page */
  size_t length;
  _Atomic bool lost; /* what was read since is not what was there */
};

/* Handles SIGBUS from now on; others' handlers get what is not ours. Counted. 0 or -errno. */
int guard_start(void);
void guard_stop(void);

/* From now until guard_unwatch, which comes before the mapping's end. */
void guard_watch(struct guard *guard, void *start, size_t length);
void guard_unwatch(struct guard *guard);

#endif
