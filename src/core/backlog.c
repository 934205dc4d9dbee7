/* SPDX-License-Identifier: MIT */
#include "core/backlog.h"

#include "core/shrinkable.h"

/* The rank to serve next; BACKLOG_RANKS: the backlog is empty. */
static unsigned next_rank(const struct backlog *backlog) {
  unsigned best = BACKLOG_RANKS;
  for (unsigned rank = BACKLOG_RANKS; rank-- > 0;) {
    if (list_empty(&backlog->queues[rank]))
      continue;
    if (backlog->passed[rank] >= shrinkable(BACKLOG_PATIENCE, 1))
      return rank;
    best = rank;
  }
  return best;
}

struct list *backlog_first(const struct backlog *backlog) {
  unsigned rank = next_rank(backlog);
  return rank < BACKLOG_RANKS ? backlog->queues[rank].next : NULL;
}

struct list *backlog_take(struct backlog *backlog) {
  unsigned rank = next_rank(backlog);
  if (rank == BACKLOG_RANKS)
    return NULL;
  backlog->passed[rank] = 0;
  for (unsigned worse = rank + 1; worse < BACKLOG_RANKS; worse++)
    backlog->passed[worse] += !list_empty(&backlog->queues[worse]);
  return list_take(&backlog->queues[rank]);
}

void backlog_empty(struct backlog *backlog, struct list *list) {
  for (unsigned rank = 0; rank < BACKLOG_RANKS; rank++)
    list_splice(list, &backlog->queues[rank]);
}
