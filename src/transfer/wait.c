/* SPDX-License-Identifier: MIT
 * Results of transfers, and waits for one or many. */
#include <time.h>

#include "core/error.h"
#include "core/sys.h"
#include "transfer/transfer.h"

static int result(struct haul_transfer *transfer) {
  int status = atomic_load_explicit(&transfer->status, memory_order_acquire);
  if (status >= 0)
    return status;
  const struct haul_error *error = atomic_load(&transfer->error);
  if (error)
    return error_restore(error);
  return error_code(status, transfer->remote->name);
}

static bool transfer_is_done(const struct haul_transfer *transfer) {
  return atomic_load_explicit(&transfer->status, memory_order_acquire) != 1;
}

/* A wait for all transfers of an array, or for any. NULL entries do not count. */
struct waiting {
  struct transfers *owner;
  haul_transfer *const *transfers;
  size_t count;
  bool any;
  size_t at; /* the first that has ended (any) or has not (all); `count`: none */
};

static bool is_over(void *user) {
  struct waiting *waiting = user;
  size_t at = waiting->any ? 0 : waiting->at;
  for (; at < waiting->count; at++)
    if (waiting->transfers[at] && transfer_is_done(waiting->transfers[at]) == waiting->any)
      break;
  waiting->at = at;
  return (at < waiting->count) == waiting->any;
}

static bool help_copy(void *user) {
  struct waiting *waiting = user;
  return fabric_help(waiting->owner->fabric, 0);
}

/* Calls `each` for the transfers that have not ended. */
static void each_running(const struct waiting *waiting, void (*each)(struct haul_transfer *)) {
  for (size_t i = 0; i < waiting->count; i++)
    if (waiting->transfers[i] && !transfer_is_done(waiting->transfers[i]))
      each(waiting->transfers[i]);
}

static void expire_if_due(struct haul_transfer *transfer) {
  if (clock_now() >= transfer->deadline)
    transfer_expire(transfer);
}

static int64_t first_end(const struct waiting *waiting, haul_deadline until) {
  for (size_t i = 0; i < waiting->count; i++)
    if (waiting->transfers[i] && waiting->transfers[i]->deadline < until)
      until = waiting->transfers[i]->deadline;
  return until;
}

/* Whether it is over by `until`. */
static bool wait_over(struct waiting *waiting, haul_deadline until) {
  struct loop *loop = waiting->owner->fabric->loop;
  each_running(waiting, transfer_wait_began);
  /* The thread that drives the node runs the due `done` callbacks, even if it need not wait. */
  if (transfers_driven(waiting->owner) && !loop_in_deferred(loop))
    loop_run_deferred(loop);
  if (!loop_wait(loop, is_over, help_copy, waiting, first_end(waiting, until))) {
    each_running(waiting, expire_if_due); /* the loop's timer expires the later ones */
    loop_wait(loop, is_over, help_copy, waiting, until);
  }
  /* loop_wait does not wait in a loop that has ended; the close that ended it ends them. */
  while (!is_over(waiting) && loop_has_ended(loop) && clock_now() < until)
    nanosleep(&(struct timespec){0, 50000}, NULL);
  return is_over(waiting);
}

/* Sets `at` to the transfer that the code belongs to. */
static int await(struct waiting *waiting, haul_deadline until) {
  haul_transfer *const *transfers = waiting->transfers;
  if (!wait_over(waiting, until)) {
    each_running(waiting, transfer_wait_ended);
    for (waiting->at = waiting->any ? 0 : waiting->at; !transfers[waiting->at];)
      waiting->at++;
    return error_set(HAUL_ETIMEDOUT, 0, transfers[waiting->at]->remote->name,
                     "wait longer, or cancel the transfer", "the transfer is still under way");
  }
  if (waiting->any)
    return result(transfers[waiting->at]);
  for (waiting->at = 0; waiting->at < waiting->count; waiting->at++) {
    int code = transfers[waiting->at] ? result(transfers[waiting->at]) : 0;
    if (code)
      return code;
  }
  return 0;
}

int transfer_await(struct haul_transfer *transfer, haul_deadline until) {
  return await(&(struct waiting){transfer->remote->transfers, &transfer, 1, .any = false}, until);
}

static int await_many(const char *call, struct waiting *waiting, haul_deadline until,
                      size_t *index) {
  int code = error_enter(call);
  if (code)
    return code;
  bool valid = waiting->transfers || waiting->count == 0;
  for (size_t i = 0; valid && i < waiting->count; i++) {
    if (!waiting->transfers[i])
      continue;
    struct transfers *owner = waiting->transfers[i]->remote->transfers;
    valid = !waiting->owner || waiting->owner == owner;
    waiting->owner = owner;
  }
  if (!valid || (waiting->any && !waiting->owner))
    return error_set(HAUL_EINVAL, 0, NULL, "pass transfers of one node",
                     "the array is NULL, has no transfer, or has those of several nodes");
  waiting->at = waiting->count;
  if (waiting->owner) {
    waiting->at = 0;
    code = await(waiting, until);
  }
  if (index)
    *index = waiting->at;
  return code;
}

HAUL_API int haul_transfer_wait_all(haul_transfer *const *transfers, size_t count,
                                    haul_deadline until, size_t *index) {
  return await_many("haul_transfer_wait_all",
                    &(struct waiting){NULL, transfers, count, .any = false}, until, index);
}

HAUL_API int haul_transfer_wait_any(haul_transfer *const *transfers, size_t count,
                                    haul_deadline until, size_t *index) {
  return await_many("haul_transfer_wait_any",
                    &(struct waiting){NULL, transfers, count, .any = true}, until, index);
}

HAUL_API int haul_transfer_test(haul_transfer *transfer) {
  int code = transfer_enter("haul_transfer_test", transfer);
  if (code)
    return code;
  if (transfer_is_done(transfer))
    return result(transfer);
  struct fabric *fabric = transfer->remote->transfers->fabric;
  int64_t now = clock_now();
  if (now >= transfer->deadline)
    transfer_expire(transfer);
  else if (loop_assist(fabric->loop, now))
    fabric_help(fabric, HELP_POLLED);
  return result(transfer);
}

HAUL_API int haul_transfer_wait(haul_transfer *transfer, haul_deadline until) {
  int code = transfer_enter("haul_transfer_wait", transfer);
  if (code)
    return code;
  return transfer_await(transfer, until);
}
