/* SPDX-License-Identifier: MIT
 * A priority queue: the best rank first, in order of arrival within a rank. A rank that was passed
 * over BACKLOG_PATIENCE times goes next, so none starves. The owner's lock guards it; list_remove
 * removes an item from the middle. */
#ifndef HAUL_CORE_BACKLOG_H
#define HAUL_CORE_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/list.h"

#define BACKLOG_RANKS    3u /* 0 is the best */
#define BACKLOG_PATIENCE 16u

struct backlog {
  struct list queues[BACKLOG_RANKS];
  uint32_t passed[BACKLOG_RANKS]; /* items of better ranks taken since this rank's last */
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

/* The next item, left in place; NULL: empty. */
struct list *backlog_first(const struct backlog *backlog);
/* Removes and returns the next item; NULL: empty. */
struct list *backlog_take(struct backlog *backlog);
/* Moves all items to the end of `list`. */
void backlog_empty(struct backlog *backlog, struct list *list);

#endif
