/* SPDX-License-Identifier: MIT
 * Notifications: a message that a transfer sends to the peer once its bytes are in place, or never.
 * So the transfer is committed before: from then on a cancel or a deadline comes too late. */
#include "core/error.h"
#include "transfer/transfer.h"

static bool commit(void *user) {
  struct haul_transfer *transfer = user;
  struct transfers *owner = transfer->remote->transfers;
  pthread_mutex_lock(&owner->lock); /* as transfer_fail */
  bool committed = atomic_load(&transfer->failure) == 0;
  if (committed)
    atomic_store(&transfer->failure, TRANSFER_COMMITTED);
  pthread_mutex_unlock(&owner->lock);
  return committed;
}

/* False: the transfer has failed. Otherwise another thread may end it from here on. */
static bool wait_for_room(struct haul_transfer *transfer) {
  struct transfers *owner = transfer->remote->transfers;
  pthread_mutex_lock(&owner->lock);
  bool ended = owner->ended;
  bool waits = !ended && atomic_load(&transfer->failure) == 0;
  if (waits)
    list_append(&owner->notices, &transfer->notice->link);
  pthread_mutex_unlock(&owner->lock);
  if (ended)
    transfer_fail(transfer, transfer_node_closed(transfer));
  return waits;
}

/* The same as transfer_send_notice. */
static bool try_to_send(struct haul_transfer *transfer) {
  struct link *link = transfer->remote->link;
  if (atomic_load(&transfer->failure))
    return true;
  int code = link->notify(link, &transfer->notice->message, commit, transfer);
  if (code > 0)
    return !wait_for_room(transfer);
  if (code < 0) { /* nothing was sent, so it may fail */
    int committed = TRANSFER_COMMITTED;
    atomic_compare_exchange_strong(&transfer->failure, &committed, 0);
    transfer_fail(transfer, code);
  }
  return true;
}

bool transfer_send_notice(struct haul_transfer *transfer) {
  struct loop *loop = transfer->remote->transfers->fabric->loop;
  bool over = try_to_send(transfer);
  if (!over)
    loop_wake(loop); /* the room may have come meanwhile */
  return over;
}

void transfer_drop_notice(struct haul_transfer *transfer) {
  struct transfers *owner = transfer->remote->transfers;
  struct notice *notice = transfer->notice;
  if (!notice)
    return;
  pthread_mutex_lock(&owner->lock);
  bool waited = !list_empty(&notice->link);
  list_remove(&notice->link);
  pthread_mutex_unlock(&owner->lock);
  if (waited)
    transfer_finish(transfer);
}

static struct haul_transfer *take_first(struct transfers *transfers, struct list *from) {
  pthread_mutex_lock(&transfers->lock);
  struct list *item = list_take(from);
  pthread_mutex_unlock(&transfers->lock);
  return item ? list_entry(item, struct notice, link)->transfer : NULL;
}

/* `due` stays a list of waiting notifications, from which transfer_drop_notice takes. */
void transfers_send_notices(struct transfers *transfers) {
  struct list due = LIST_INIT(due);
  pthread_mutex_lock(&transfers->lock);
  list_splice(&due, &transfers->notices);
  pthread_mutex_unlock(&transfers->lock);
  for (struct haul_transfer *transfer; (transfer = take_first(transfers, &due));)
    if (try_to_send(transfer))
      transfer_finish(transfer);
}
