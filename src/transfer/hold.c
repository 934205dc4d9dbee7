/* SPDX-License-Identifier: MIT
 * Transfers that wait for an event of a device before their works are posted. */
#include "core/error.h"
#include "transfer/transfer.h"

#define LOOKS 64u /* at events, in one turn of the loop */

void transfer_hold(struct haul_transfer *transfer, void *event) {
  struct transfers *owner = transfer->remote->transfers;
  struct work *first = transfer_works(transfer);
  first->state = event;
  transfer->flags &= ~(unsigned)HAUL_MORE;
  atomic_store(&transfer->alone, false);
  transfers_lock(owner);
  bool held = !owner->ended;
  if (held)
    list_append(&owner->held, &first->link);
  pthread_mutex_unlock(&owner->lock);
  if (held) {
    loop_wake(owner->fabric->loop);
    return;
  }
  transfer_fail(transfer, transfer_node_closed(transfer));
  transfer_post_all(transfer, false);
}

/* A turn's looks at events. Each takes about a microsecond with the loop's lock. */
struct looks {
  unsigned left;
  const void *pending; /* the last event that was not complete; NULL: none */
};

/* 1: the transfer still waits; 0: its event is complete; or a code. */
static int look_at_event(struct looks *looks, const struct haul_transfer *transfer, void *event) {
  if (event == looks->pending || looks->left == 0)
    return 1;
  looks->left--;
  int state = memory_event(transfer->after_at, event, true);
  if (state > 0)
    looks->pending = event;
  return state;
}

/* With the loop's lock: posts the works of a held transfer, or ends it. False: it still waits. */
static bool release_held(struct looks *looks, struct work *first) {
  struct haul_transfer *transfer = first->owner;
  int failure = atomic_load(&transfer->failure);
  int state = failure ? 0 : look_at_event(looks, transfer, first->state);
  if (state > 0)
    return false;
  if (state < 0)
    transfer_fail(transfer, state);
  transfer_post_all(transfer, true);
  return true;
}

/* With the loop's lock. An event has no callback that would not delay its stream, so the loop
 * polls. */
bool transfers_release_held(struct transfers *transfers, struct list *held) {
  struct list kept = LIST_INIT(kept), looked = LIST_INIT(looked);
  struct looks looks = {.left = LOOKS};
  bool any = false;
  for (struct list *item; (item = list_take(held));) {
    bool unseen = looks.left == 0;
    if (release_held(&looks, list_entry(item, struct work, link)))
      any = true;
    else
      list_append(unseen ? &kept : &looked, item); /* the unseen are first in the next turn */
  }
  list_splice(&kept, &looked);
  transfers->poller.urgent = !list_empty(&kept);
  if (!transfers->poller.urgent)
    return any;
  transfers_lock(transfers);
  bool ended = transfers->ended;
  if (!ended)
    list_splice(&transfers->held, &kept);
  pthread_mutex_unlock(&transfers->lock);
  for (struct list *item; (item = list_take(&kept));) { /* the node was closed meanwhile */
    struct work *first = list_entry(item, struct work, link);
    transfer_fail(first->owner, transfer_node_closed(first->owner));
    release_held(&looks, first);
  }
  return any;
}
