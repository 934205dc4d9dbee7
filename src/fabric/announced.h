/* SPDX-License-Identifier: MIT
 * Memory that the application gave us, and how much of it is registered together. The caller
 * locks; a call that takes announcements out gives them back as a chain, to be freed without the
 * lock. */
#ifndef HAUL_FABRIC_ANNOUNCED_H
#define HAUL_FABRIC_ANNOUNCED_H

#include <stdbool.h>

#include "core/ranges.h"

struct announcement {
  struct range range; /* bytes, not pages */
  uint64_t buffer;
  bool alone; /* could not be registered with its neighbours */
  struct announcement *next;
};

struct announced {
  struct ranges ranges; /* those that overlap are of one buffer */
  uint64_t page;        /* bytes, a power of two */
  uint64_t merge;       /* registered together at most: a multiple of the page */
};

/* Takes the announcement over, or chains it when it lies within another. What overlaps it is of its
 * buffer. */
void announced_add(struct announced *announced, struct announcement *announcement,
                   struct announcement **out);

/* Takes out what overlaps the range, but for that of the buffer `*keep` when `keep` is not NULL. */
void announced_forget(struct announced *announced, const struct range *range, const uint64_t *keep,
                      struct announcement **out);

/* Widens the pages that have to be registered to those that are worth it, as regcache_get says.
 * `live`: the pages that are registered, all of them of `buffer` where they overlap `pages`. */
void announced_widen(const struct announced *announced, const struct ranges *live, uint64_t buffer,
                     struct range *pages);

/* These pages could not be registered together. `room`: for want of it. */
void announced_refused(struct announced *announced, const struct range *pages, bool room);

/* Frees a chain. */
void announced_free(struct announcement *chain);

#endif
