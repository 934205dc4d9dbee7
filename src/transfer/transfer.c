/* SPDX-License-Identifier: MIT */
#include "transfer/transfer.h"

#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/probe.h"
#include "core/sys.h"

void transfer_begin(struct haul_transfer *transfer) {
  struct transfers *owner = transfer->remote->transfers;
  inbox_put(&owner->begun, &transfer->link);
  if (transfer->deadline < atomic_load(&owner->armed))
    loop_wake(owner->fabric->loop);
}

/* Inserts by deadline, which is nearly always at the end. */
static void enlist(struct transfers *owner, struct haul_transfer *transfer) {
  struct link *link = transfer->remote->link;
  struct list *before = owner->running.previous;
  while (before != &owner->running &&
         list_entry(before, struct haul_transfer, link)->deadline > transfer->deadline)
    before = before->previous;
  list_append(before->next, &transfer->link);
  if (transfer->operation != HAUL_OP_READ) {
    transfer->number = ++link->write_number;
    list_append(&link->writes, &transfer->order);
  }
}

void transfers_lock(struct transfers *transfers) {
  struct list begun = LIST_INIT(begun);
  pthread_mutex_lock(&transfers->lock);
  inbox_take(&transfers->begun, &begun);
  for (struct list *item; (item = list_take(&begun));)
    enlist(transfers, list_entry(item, struct haul_transfer, link));
}

void transfer_put(struct haul_transfer *transfer) {
  if (atomic_fetch_sub(&transfer->refs, 1) != 1)
    return;
  atomic_fetch_sub_explicit(&transfer->remote->transfers->handles, 1, memory_order_relaxed);
  atomic_fetch_sub_explicit(&transfer->remote->transfers->bytes, transfer->size,
                            memory_order_relaxed);
  remote_put(transfer->remote);
  alloc_free(atomic_load_explicit(&transfer->avoided_reason, memory_order_relaxed));
  alloc_free(atomic_load_explicit(&transfer->error, memory_order_relaxed));
  alloc_free(transfer);
}

static void call_done(struct deferred *deferred) {
  struct haul_transfer *transfer = list_entry(deferred, struct haul_transfer, deferred);
  transfer->done(transfer->user, transfer);
  transfer_put(transfer);
}

void transfer_notify(struct haul_transfer *transfer) {
  transfer->deferred.run = call_done;
  if (transfer->done)
    loop_defer(transfer->remote->transfers->fabric->loop, &transfer->deferred);
  else
    transfer_put(transfer);
}

/* The first failure counts. Two threads may fail the transfer at once, so the lock orders them. The
 * detail is stored before the code: a thread that sees `failure` (acquire) also sees `error`. */
__attribute__((cold)) void transfer_fail(struct haul_transfer *transfer, int code) {
  struct transfers *owner = transfer->remote->transfers;
  if (atomic_load(&transfer->failure))
    return;
  error_about(transfer->remote->name);
  struct haul_error *error = alloc_zero(1, sizeof *error);
  if (error) /* else only the code is reported */
    error_save(error);
  pthread_mutex_lock(&owner->lock);
  bool first = atomic_load(&transfer->failure) == 0;
  if (first) {
    atomic_store_explicit(&transfer->error, error, memory_order_relaxed);
    /* seq_cst: releases `error`, and pairs with `posting` (abort_transfer). */
    atomic_store(&transfer->failure, code);
  }
  pthread_mutex_unlock(&owner->lock);
  if (!first) {
    alloc_free(error);
    return;
  }
  atomic_fetch_add_explicit(&owner->failed, 1, memory_order_relaxed);
  link_log(transfer->remote->link, LOG_TRANSFER_FAILED, NULL, haul_error_last()->text);
}

void transfer_stamp(struct haul_transfer *transfer) {
  transfer->ended = clock_now();
  if (transfer->flags & HAUL_CPU_TIME)
    atomic_fetch_add_explicit(&transfer->cpu, clock_cpu(), memory_order_relaxed);
}

/* Called once no work is left. `status` is stored last (release): a thread that sees it
 * (acquire) sees all other fields. */
void transfer_finish(struct haul_transfer *transfer) {
  struct transfers *owner = transfer->remote->transfers;
  int failure = atomic_load(&transfer->failure);
  if (failure == TRANSFER_COMMITTED)
    failure = 0;
  transfer_stamp(transfer);
  PROBE4(complete, transfer, failure, transfer->bytes, transfer->ended - transfer->called);
  if (transfer_is_traced(transfer))
    trace_transfer(transfer, HAUL_TRACE_COMPLETE);
  transfer_record(transfer);
  atomic_fetch_sub(&owner->flow, 1);
  transfers_lock(owner);
  list_remove(&transfer->link);
  list_remove(&transfer->order);
  atomic_fetch_sub(&transfer->remote->link->transfers, 1);
  pthread_mutex_unlock(&owner->lock);
  region_put(transfer->region);
  atomic_store_explicit(&transfer->status, failure, memory_order_release);
  loop_notify(owner->fabric->loop);
  transfer_notify(transfer);
}

void transfer_settle(struct haul_transfer *transfer) {
  if (atomic_fetch_sub(&transfer->pending, 1) == 1 &&
      (!transfer->notice || transfer_send_notice(transfer)))
    transfer_finish(transfer);
}

/* With the lock of `transfers`. The thread's detail is the reason of the refusal. */
__attribute__((cold)) static void avoid_path(struct haul_transfer *transfer,
                                             const struct endpoint *endpoint) {
  size_t size = sizeof haul_error_last()->text;
  char *reason = atomic_load(&transfer->avoided_reason) ? NULL : alloc_zero(1, size);
  if (reason) {
    snprintf(reason, size, "%s", haul_error_last()->text);
    atomic_store(&transfer->avoided_reason, reason);
  }
  atomic_fetch_or(&transfer->avoided, (uint8_t)(1u << endpoint->transport->index));
}

__attribute__((cold)) static bool will_retry(struct transfers *owner, struct work *work, int code) {
  transfers_lock(owner);
  bool will = !owner->ended;
  if (will) {
    if (code == HAUL_ENOPATH)
      avoid_path(work->owner, work->endpoint);
    list_append(&owner->retries, &work->link);
    work->listed = true;
  }
  pthread_mutex_unlock(&owner->lock);
  if (will)
    loop_wake(owner->fabric->loop);
  return will;
}

int transfer_node_closed(const struct haul_transfer *transfer) {
  return error_set(HAUL_ECLOSED, 0, transfer->remote->name, NULL, "the node was closed");
}

void transfer_work_done(struct work *work, int code) {
  struct haul_transfer *transfer = work->owner;
  if (transfer_is_traced(transfer)) {
    if (work->request)
      trace_work(work, HAUL_TRACE_REQUEST, 0);
    trace_work(work, HAUL_TRACE_DONE, code);
  }
  if (code == HAUL_EPATH && work->begun) {
    /* An atomic operation of unknown outcome. The thread's detail says why the path broke. */
    error_set(code, 0, transfer->remote->name, "read the bytes, if no other process changes them",
              "it may or may not have taken place, as its path broke: %.110s",
              haul_error_last()->text);
  } else if ((code == HAUL_EPATH || code == HAUL_ENOPATH) && atomic_load(&transfer->failure) == 0) {
    if (will_retry(transfer->remote->transfers, work, code))
      return;
    code = transfer_node_closed(transfer);
  }
  if (code)
    transfer_fail(transfer, code);
  transfer_settle(transfer);
}

/* Whether the work waits until its endpoint is not blocked, or is closed. Whoever unblocks or
 * closes the endpoint wakes the loop afterwards, and on_poll looks with the same lock. */
static bool waits(struct transfers *owner, struct work *work) {
  struct endpoint *endpoint = work->endpoint;
  if (!endpoint_is_blocked(endpoint, work->operation))
    return false;
  transfers_lock(owner);
  bool blocked = endpoint_is_blocked(endpoint, work->operation) && !owner->ended;
  if (blocked)
    list_append(&owner->blocked, &work->link);
  work->listed = blocked;
  pthread_mutex_unlock(&owner->lock);
  if (!blocked)
    return false;
  atomic_store(&((struct haul_transfer *)work->owner)->alone, false);
  atomic_fetch_add_explicit(&owner->waited, 1, memory_order_relaxed);
  return true;
}

int transfer_post(struct haul_transfer *transfer, struct work *work) {
  struct haul_remote *remote = transfer->remote;
  size_t path;
  int code = transfer_path(transfer, &path);
  if (code)
    return code;
  work->endpoint = remote->link->endpoints[path];
  work->binding = remote->bindings[path];
  work->request = 0;
  if (waits(remote->transfers, work))
    return 0;
  PROBE4(post, transfer, work, work->bytes, work->endpoint->transport->name);
  if (transfer_is_traced(transfer))
    trace_work(work, HAUL_TRACE_POST, 0);
  work->endpoint->transport->post(work->endpoint, work);
  return 0;
}

/* With the loop's lock. Posts a work again: `broke`, on the best path left, else after it was
 * blocked. */
__attribute__((cold)) static void retry(struct work *work, bool broke) {
  struct haul_transfer *transfer = work->owner;
  if (atomic_load(&transfer->failure)) { /* aborted meanwhile */
    transfer_settle(transfer);
    return;
  }
  if (broke) {
    atomic_fetch_add(&transfer->retries, 1);
    atomic_fetch_add_explicit(&transfer->remote->transfers->retried, 1, memory_order_relaxed);
  }
  work->more = false;
  int code = transfer_post(transfer, work);
  if (code == 0)
    return;
  bool constrained = transfer->only || transfer->flags & HAUL_REQUIRE_ZERO_COPY;
  if (code == HAUL_ENOPATH && !constrained && atomic_load(&transfer->remote->link->failing))
    code = error_set(HAUL_EPEER, 0, transfer->remote->name, NULL, "every path to the peer broke");
  transfer_fail(transfer, code);
  transfer_settle(transfer);
}

/* With the lock: the first deadline of a transfer that has not failed. */
static int64_t first_deadline(const struct transfers *transfers) {
  list_each(item, &transfers->running) {
    const struct haul_transfer *transfer = list_entry(item, struct haul_transfer, link);
    if (atomic_load(&transfer->failure) == 0)
      return transfer->deadline;
  }
  return HAUL_FOREVER;
}

/* With the lock. */
static void take_unblocked(struct transfers *transfers, struct list *unblocked) {
  list_each_safe(item, &transfers->blocked) {
    struct work *work = list_entry(item, struct work, link);
    if (endpoint_is_blocked(work->endpoint, work->operation))
      continue;
    work->listed = false;
    list_remove(item);
    list_append(unblocked, item);
  }
}

static bool on_poll(struct poller *poller) {
  struct transfers *transfers = list_entry(poller, struct transfers, poller);
  struct list works = LIST_INIT(works), unblocked = LIST_INIT(unblocked), held = LIST_INIT(held);
  transfers_lock(transfers);
  int64_t first = first_deadline(transfers);
  list_splice(&held, &transfers->held);
  list_splice(&works, &transfers->retries);
  list_each(item, &works) list_entry(item, struct work, link)->listed = false;
  take_unblocked(transfers, &unblocked);
  bool notices = !list_empty(&transfers->notices);
  pthread_mutex_unlock(&transfers->lock);
  if (notices)
    transfers_send_notices(transfers);
  if (first < atomic_load(&transfers->armed)) {
    atomic_store(&transfers->armed, first);
    loop_timer_start(transfers->fabric->loop, &transfers->timer, first);
  }
  bool any = !list_empty(&works) || !list_empty(&unblocked);
  any |= transfers_release_held(transfers, &held);
  for (struct list *item; (item = list_take(&works));)
    retry(list_entry(item, struct work, link), true);
  for (struct list *item; (item = list_take(&unblocked));)
    retry(list_entry(item, struct work, link), false);
  return any;
}

int transfer_enter(const char *call, const struct haul_transfer *transfer) {
  int code = error_enter(call);
  return code || transfer ? code : error_set(HAUL_EINVAL, 0, NULL, NULL, "transfer is NULL");
}

HAUL_API void haul_transfer_release(haul_transfer *transfer) {
  if (transfer)
    transfer_put(transfer);
}

__attribute__((cold)) void transfers_open(struct fabric *fabric, struct transfers *transfers) {
  transfers->fabric = fabric;
  transfers->default_ns = fabric->config->transfer_ns;
  transfers->estimates_only = fabric->config->estimates_only;
  pthread_mutex_init(&transfers->lock, NULL);
  list_init(&transfers->running);
  list_init(&transfers->held);
  list_init(&transfers->retries);
  list_init(&transfers->blocked);
  list_init(&transfers->notices);
  atomic_store(&transfers->armed, HAUL_FOREVER);
  timer_init(&transfers->timer, transfers_on_deadline);
  loop_lock(fabric->loop);
  loop_poller_start(fabric->loop, &transfers->poller, on_poll);
  loop_unlock(fabric->loop);
}

__attribute__((cold)) void transfers_end(struct transfers *transfers) {
  struct list works = LIST_INIT(works), held = LIST_INIT(held);
  transfers_lock(transfers);
  transfers->ended = true;
  list_splice(&works, &transfers->retries);
  list_splice(&works, &transfers->blocked);
  list_each(item, &works) list_entry(item, struct work, link)->listed = false;
  list_splice(&held, &transfers->held);
  pthread_mutex_unlock(&transfers->lock);
  for (struct list *item; (item = list_take(&held));) {
    struct haul_transfer *transfer = list_entry(item, struct work, link)->owner;
    transfer_fail(transfer, transfer_node_closed(transfer));
    transfer_post_all(transfer, false);
  }
  for (struct list *item; (item = list_take(&works));) {
    struct haul_transfer *transfer = list_entry(item, struct work, link)->owner;
    transfer_fail(transfer, transfer_node_closed(transfer));
    transfer_settle(transfer);
  }
  transfers_send_notices(transfers);
}

__attribute__((cold)) void transfers_close(struct transfers *transfers) {
  loop_lock(transfers->fabric->loop);
  loop_poller_stop(transfers->fabric->loop, &transfers->poller);
  loop_timer_stop(&transfers->timer);
  loop_unlock(transfers->fabric->loop);
  pthread_mutex_destroy(&transfers->lock);
}

uint64_t transfers_last_write(struct transfers *transfers, struct link *link) {
  transfers_lock(transfers);
  uint64_t number = link->write_number;
  pthread_mutex_unlock(&transfers->lock);
  return number;
}

bool transfers_writing(struct transfers *transfers, struct link *link, uint64_t number) {
  transfers_lock(transfers);
  bool writing = !list_empty(&link->writes) &&
                 list_entry(link->writes.next, struct haul_transfer, order)->number <= number;
  pthread_mutex_unlock(&transfers->lock);
  return writing;
}
