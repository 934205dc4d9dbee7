/* SPDX-License-Identifier: MIT
 * Transfers that end early: canceled, past their deadline, or with their region, peer or node. */
#include "core/error.h"
#include "core/sys.h"
#include "transfer/transfer.h"

static bool take_from_lists(struct transfers *owner, struct work *work) {
  transfers_lock(owner);
  bool found = work->listed;
  if (found)
    list_remove(&work->link);
  work->listed = false;
  pthread_mutex_unlock(&owner->lock);
  return found;
}

/* With the loop's lock and a reference. */
void transfer_cancel_works(struct haul_transfer *transfer, int code) {
  for (uint32_t i = 0; i < transfer->work_count; i++) {
    struct work *work = &transfer_works(transfer)[i];
    atomic_store(&work->canceled, code); /* a transport that starts it from now on ends it */
    if (take_from_lists(transfer->remote->transfers, work))
      transfer_settle(transfer);
    else if (work->endpoint)
      work->endpoint->transport->cancel(work->endpoint, work, code);
  }
  transfer_drop_notice(transfer);
}

/* With the loop's lock and a reference; the thread's detail is the reason. While a call still posts
 * works, that call cancels them. It stores `posting` and then reads `failure`; here `failure` is
 * stored before `posting` is read. Both are seq_cst, so one of the two sees the other's store. */
static void abort_transfer(struct haul_transfer *transfer, int code) {
  transfer_fail(transfer, code);
  if (!atomic_load(&transfer->posting))
    transfer_cancel_works(transfer, code);
}

void transfer_expire(struct haul_transfer *transfer) {
  loop_lock(transfer->remote->transfers->fabric->loop);
  if (atomic_load(&transfer->status) == 1) {
    error_set(HAUL_ETIMEDOUT, 0, transfer->remote->name,
              "set a later deadline in the options; haul explain prints the expected time",
              "the transfer did not end by its deadline");
    abort_transfer(transfer, HAUL_ETIMEDOUT);
  }
  loop_unlock(transfer->remote->transfers->fabric->loop);
}

typedef bool matches_fn(const struct haul_transfer *transfer, const void *user);

/* The first running transfer that matches and has not failed, with a reference. */
static struct haul_transfer *find_running(struct transfers *transfers, matches_fn *matches,
                                          const void *user) {
  struct haul_transfer *found = NULL;
  transfers_lock(transfers);
  list_each(item, &transfers->running) {
    struct haul_transfer *transfer = list_entry(item, struct haul_transfer, link);
    if (atomic_load(&transfer->failure) != 0 || !matches(transfer, user))
      continue;
    atomic_fetch_add(&transfer->refs, 1);
    found = transfer;
    break;
  }
  pthread_mutex_unlock(&transfers->lock);
  return found;
}

struct users {
  const struct haul_region *region;
  const struct link *link;
};

static bool uses(const struct haul_transfer *transfer, const void *user) {
  const struct users *users = user;
  return (!users->region || transfer->region == users->region) &&
         (!users->link || transfer->remote->link == users->link);
}

void transfers_abort(struct transfers *transfers, const struct haul_region *region,
                     const struct link *link, int code, const char *reason) {
  struct users users = {region, link};
  struct haul_transfer *transfer;
  while ((transfer = find_running(transfers, uses, &users))) {
    error_set(code, 0, transfer->remote->name, NULL, "%s", reason);
    abort_transfer(transfer, code);
    transfer_put(transfer);
  }
}

bool transfers_use(struct transfers *transfers, const struct haul_region *region,
                   const struct link *link) {
  const struct users users = {region, link};
  bool used = false;
  transfers_lock(transfers);
  list_each(item, &transfers->running) used |=
      uses(list_entry(item, struct haul_transfer, link), &users);
  pthread_mutex_unlock(&transfers->lock);
  return used;
}

static bool is_due(const struct haul_transfer *transfer, const void *user) {
  return transfer->deadline <= *(const int64_t *)user;
}

void transfers_on_deadline(struct timer *timer) {
  struct transfers *transfers = list_entry(timer, struct transfers, timer);
  int64_t now = clock_now();
  struct haul_transfer *transfer;
  atomic_store(&transfers->armed, HAUL_FOREVER);
  while ((transfer = find_running(transfers, is_due, &now))) {
    error_set(HAUL_ETIMEDOUT, 0, transfer->remote->name, "set a later deadline in the options",
              "the transfer did not end by its deadline");
    abort_transfer(transfer, HAUL_ETIMEDOUT);
    transfer_put(transfer);
  }
}

HAUL_API int haul_transfer_cancel(haul_transfer *transfer) {
  int code = transfer_enter("haul_transfer_cancel", transfer);
  if (code)
    return code;
  loop_lock(transfer->remote->transfers->fabric->loop);
  if (atomic_load_explicit(&transfer->status, memory_order_acquire) == 1) {
    error_code(HAUL_ECANCELED, transfer->remote->name);
    abort_transfer(transfer, HAUL_ECANCELED);
  }
  loop_unlock(transfer->remote->transfers->fabric->loop);
  return 0;
}
