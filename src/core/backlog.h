/* SPDX-License-Identifier: MIT
 * What waits for its turn, by rank: of the better rank first, and within one the longest waiting.
 * Something that was passed over BACKLOG_PATIENCE times goes next, so nothing starves. The owner's
 * lock guards it; what waits is removed from the middle with list_remove. */
#ifndef HAUL_CORE_BACKLOG_H
#define HAUL_CORE_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/list.h"

#define BACKLOG_RANKS    3u /* 0 is the best */
#define BACKLOG_PATIENCE 16u

struct backlog {
  struct list queues[BACKLOG_RANKS];
  uint32_t passed[BACKLOG_RANKS]; /* times that others went first since one of it did */
};

static inline void backlog_init(struct backlog *backlog) {
  for (unsigned i = 0; i < BACKLOG_RANKS; i++) {
    list_init(&backlog->queues[i]);
    backlog->passed[i] = 0;
  }
}

static inline void backlog_add(struct backlog *backlog, struct list *item, unsigned rank) {
  list_append(&backlog->queues[rank], item);
}

/* The next one; NULL: nothing waits. It stays so until something is added or removed. */
struct list *backlog_first(const struct backlog *backlog);
/* Takes it. */
struct list *backlog_take(struct backlog *backlog);
/* Moves all that waits to the end of `list`. */
void backlog_empty(struct backlog *backlog, struct list *list);

#endif
