/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/tcp.h"

#include "core/alloc.h"
#include "core/error.h"
#include "core/shrinkable.h"
#include "core/sys.h"
#include "fabric/tcp/rails.h"

_Static_assert(WORK_BYTES_MAX <= FRAME_PAYLOAD_MAX && WORK_PIECES_MAX <= FRAME_SEGMENTS_MAX,
               "a work is a frame");

/* Slots; with the endpoint's lock */

static void count_busy(struct tcp_endpoint *endpoint, int change) {
  uint32_t busy = atomic_load_explicit(&endpoint->busy_slots, memory_order_relaxed);
  atomic_store_explicit(&endpoint->busy_slots, busy + (uint32_t)change, memory_order_relaxed);
}

static struct tcp_slot *slot_new(struct tcp_endpoint *endpoint, uint64_t *request) {
  while (endpoint->slots[endpoint->next_slot].busy)
    endpoint->next_slot = (endpoint->next_slot + 1) % TCP_WINDOW;
  struct tcp_slot *slot = &endpoint->slots[endpoint->next_slot];
  if (endpoint->busy_slots == 0) /* the application was slower than the path */
    splice_trial_abandon(&endpoint->trial);
  slot->generation++;
  slot->busy = true;
  *request = (uint64_t)slot->generation << 32 | endpoint->next_slot;
  endpoint->next_slot = (endpoint->next_slot + 1) % TCP_WINDOW;
  count_busy(endpoint, 1);
  return slot;
}

static void slot_free(struct tcp_endpoint *endpoint, struct tcp_slot *slot) {
  if (slot->abandoned && --endpoint->abandoned == 0)
    endpoint_set_abandoned(&endpoint->base, false);
  if (slot->rail)
    slot->rail->expected -= slot->expected;
  *slot = (struct tcp_slot){.generation = slot->generation};
  count_busy(endpoint, -1);
}

/* The busy slot of a request that was sent whole on this rail. */
static struct tcp_slot *slot_find(struct tcp_rail *rail, uint64_t request, bool data_started) {
  uint32_t index = (uint32_t)request;
  struct tcp_slot *slot = index < TCP_WINDOW ? &rail->endpoint->slots[index] : NULL;
  bool matches = slot && slot->busy && slot->generation == (uint32_t)(request >> 32) &&
                 !slot->frame && slot->rail == rail && slot->data_started == data_started;
  return matches ? slot : NULL;
}

bool slot_start_data(struct tcp_rail *rail, uint64_t request, struct work **work) {
  combiner_lock(&rail->endpoint->combiner);
  struct tcp_slot *slot = slot_find(rail, request, false);
  *work = slot ? slot->work : NULL;
  if (slot)
    slot->data_started = true;
  combiner_unlock(&rail->endpoint->combiner);
  return slot != NULL;
}

bool slot_complete(struct tcp_rail *rail, uint64_t request, bool data, struct work **work) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  struct tcp_slot *slot = slot_find(rail, request, data);
  bool found = slot != NULL;
  *work = found ? slot->work : NULL;
  if (*work)
    (*work)->state = NULL; /* a late cancel finds no slot */
  if (found)
    slot_free(endpoint, slot);
  endpoint->slots_freed |= found;
  combiner_unlock(&endpoint->combiner);
  return found;
}

/* The work ends before its response. Its spliced pages must keep their content (splice.c), so the
 * region's memory is never pooled again. */
static struct work *take_work(struct tcp_slot *slot) {
  struct work *work = slot->work;
  slot->work = NULL;
  if (work)
    work->state = NULL;
  if (work && slot->spliced)
    atomic_store(&work->region->exported, true);
  return work;
}

__attribute__((cold)) static void count_abandoned(struct tcp_endpoint *endpoint) {
  if (endpoint->abandoned++ == 0)
    endpoint_set_abandoned(&endpoint->base, true);
}

__attribute__((cold)) struct work *slot_abandon(struct tcp_endpoint *endpoint,
                                                struct tcp_slot *slot, int code) {
  struct work *work = take_work(slot);
  if (slot->frame && tx_abort(slot->frame, code)) {
    slot_free(endpoint, slot);
  } else if (slot->modifies && !slot->abandoned) {
    slot->abandoned = true;
    count_abandoned(endpoint);
  }
  return work;
}

__attribute__((cold)) bool slots_drop(struct tcp_rail *rail, struct list *works) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  bool begun = false;
  for (unsigned i = 0; i < TCP_WINDOW; i++) {
    struct tcp_slot *slot = &endpoint->slots[i];
    if (!slot->busy || slot->rail != rail)
      continue;
    /* Before slot_free, so that other paths stay blocked in between. */
    if (!begun && slot->modifies && (!slot->frame || slot->frame->sent > 0)) {
      begun = true;
      count_abandoned(endpoint);
    }
    struct work *work = take_work(slot);
    if (work)
      list_append(works, &work->link);
    if (slot->frame)
      slot->frame->slot = NULL;
    slot_free(endpoint, slot);
  }
  return begun;
}

/* Works; with the endpoint's lock */

/* Payload bytes that this side has queued, or that it has asked for, which come the other way. */
static uint64_t load_of(const struct tcp_rail *rail, const struct work *work) {
  return work->operation == HAUL_OP_READ ? rail->expected : rail->tx.queued;
}

/* The best rank takes the express rail, where no other works are queued; others take the rail with
 * the least load. Small ones stay on the first rail while that is not behind: there they share
 * calls. NULL: none is open. */
static struct tcp_rail *choose_rail(const struct tcp_endpoint *endpoint, const struct work *work) {
  struct tcp_rail *best = NULL, *express = endpoint->rails[TCP_EXPRESS];
  uint64_t least = work->bytes < TCP_SPREAD ? TCP_BATCH_BYTES : 0; /* by which a rail is better */
  if (work->rank == 0 && express && rail_takes_works(express))
    return express;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (rail_takes_works(rail) && (!best || load_of(rail, work) + least < load_of(best, work)))
      best = rail;
  }
  return best;
}

static void start_work(struct tcp_endpoint *endpoint, struct work *work, struct tcp_rail *rail) {
  uint64_t request;
  work->state = NULL;
  struct tcp_slot *slot = slot_new(endpoint, &request);
  struct tx_frame *frame = tx_request(work, request);
  if (!frame) {
    slot_free(endpoint, slot);
    work->done(work, haul_error_last()->code);
    return;
  }
  work_starts(work);
  slot->work = work;
  slot->modifies = work->operation != HAUL_OP_READ;
  slot->rail = rail;
  slot->expected = work->operation == HAUL_OP_READ ? work->bytes : 0;
  rail->expected += slot->expected;
  slot->frame = frame;
  frame->slot = slot;
  frame->rail = rail;
  work->state = slot;
  work->request = request;
  tx_submit(frame);
}

/* Not while abandoned writes may still land, on the bytes of this one. */
static bool may_start(const struct tcp_endpoint *endpoint, const struct work *work,
                      const struct tcp_rail *rail) {
  unsigned staged = 0; /* sources that wait for engines or bounce buffers */
  if (endpoint->busy_slots >= endpoint->base.link->window || endpoint->abandoned > 0)
    return false;
  if (!work->region->memory.view)
    list_each(item, &endpoint->staged_sends) staged++;
  return rail->tx.queued < shrinkable(TCP_QUEUE, 1) && staged < 2 * TCP_BOUNCES;
}

/* Starts at most TCP_WINDOW works, and returns their number. */
static unsigned start_works(struct tcp_endpoint *endpoint) {
  struct list *first;
  unsigned count = 0;
  while (count < shrinkable(TCP_WINDOW, 1) && (first = backlog_first(&endpoint->pending))) {
    struct work *work = list_entry(first, struct work, link);
    struct tcp_rail *rail = choose_rail(endpoint, work);
    if (!rail || (endpoint->retired > 0 && endpoint->base.link->initiator))
      tcp_want_rails(endpoint);
    if (!rail || !may_start(endpoint, work, rail))
      break;
    backlog_take(&endpoint->pending);
    start_work(endpoint, work, rail);
    count++;
  }
  return count;
}

bool tcp_advance(struct tcp_endpoint *endpoint, struct tcp_rail *returns) {
  if (returns)
    returns->tx.fresh = true;
  start_works(endpoint);
  do {
    each_rail(rail, endpoint) if (rail->tx.fresh) rail_pump(rail);
  } while (start_works(endpoint) > 0); /* a pump makes room in its queue, and may end works */
  bool more = returns && returns->tx.turn >= returns->tx.share && !list_empty(&returns->tx.queue);
  each_rail(rail, endpoint) {
    if (!more || rail != returns)
      rail_uncork(rail);
    rail->tx.turn = 0;
  }
  return more;
}

void tcp_use_slots(struct tcp_endpoint *endpoint) {
  if (!endpoint->slots_freed)
    return;
  endpoint->slots_freed = false;
  combiner_lock(&endpoint->combiner);
  if (backlog_first(&endpoint->pending))
    tcp_advance(endpoint, NULL);
  combiner_unlock(&endpoint->combiner);
}

__attribute__((cold)) void tcp_end_works(struct tcp_endpoint *endpoint, struct list *works,
                                         int code) {
  for (struct list *item; (item = list_take(works));) {
    struct work *work = list_entry(item, struct work, link);
    work->state = NULL;
    work->done(work, code);
  }
  loop_notify(endpoint->base.link->fabric->loop);
}

static void tcp_admit(struct combiner *combiner, struct list *works) {
  struct tcp_endpoint *endpoint = list_entry(combiner, struct tcp_endpoint, combiner);
  struct endpoint *base = &endpoint->base;
  for (struct list *item; (item = list_take(works));) {
    struct work *work = list_entry(item, struct work, link);
    work_batch_remove(&endpoint->work_batch, work);
    int canceled = atomic_load(&work->canceled);
    if (canceled) {
      work->done(work, canceled);
    } else if (atomic_load(&base->open)) {
      work->state = &endpoint->pending; /* until it has a slot or has ended */
      backlog_add(&endpoint->pending, item, work->rank);
    } else {
      work->done(work,
                 error_set(HAUL_EPATH, 0, base->link->name, NULL, "%s", endpoint_reason(base)));
    }
  }
  tcp_advance(endpoint, NULL);
}

/* The table: works */

/* A work behind TCP_BUSY unanswered ones waits for following works, to share their call: it is sent
 * with the batch, or with the next response. Urgent and large works are sent at once. */
static bool may_wait(const struct tcp_endpoint *endpoint, const struct work *work) {
  return (work->bytes <= TCP_SHARED || work->operation == HAUL_OP_READ) && work->rank > 0 &&
         atomic_load_explicit(&endpoint->busy_slots, memory_order_relaxed) >= TCP_BUSY;
}

static void tcp_post(struct endpoint *base, struct work *work) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  work->state = NULL;
  work->more |= may_wait(endpoint, work);
  if (!work_batch_add(&endpoint->work_batch, work, shrinkable(TCP_BATCH, 1), TCP_BATCH_BYTES,
                      base->link->fabric->loop, &endpoint->poller)) {
    combiner_submit(&endpoint->combiner, &work->link);
    return;
  }
  /* Pairs with tcp_stop, which clears `open`, then drains: one of them sees the other. */
  combiner_defer(&endpoint->combiner, &work->link);
  if (!atomic_load(&base->open))
    combiner_drain(&endpoint->combiner);
}

__attribute__((cold)) static void tcp_cancel(struct endpoint *base, struct work *work, int code) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  bool ended = false;
  combiner_lock(&endpoint->combiner);
  if (work->state == &endpoint->pending) {
    list_remove(&work->link);
    work->state = NULL;
    ended = true;
  } else if (work->state) {
    struct tcp_slot *slot = work->state;
    ended = slot->busy && slot->work == work && slot_abandon(endpoint, slot, code);
    tcp_advance(endpoint, NULL);
  }
  combiner_unlock(&endpoint->combiner);
  if (!ended)
    return;
  if (work->operation != HAUL_OP_WRITE)
    receive_detach(endpoint, work);
  work->done(work, code);
}

/* With the endpoint's lock: stops sending bytes of the export. */
__attribute__((cold)) static void reject_sources(struct list *frames, uint64_t handle) {
  list_each_safe(item, frames) {
    struct tx_frame *frame = list_entry(item, struct tx_frame, link);
    if (frame->type == FRAME_DATA && frame->handle == handle && frame->payload.region)
      tx_reject(frame, HAUL_ESTALE);
  }
}

__attribute__((cold)) static void tcp_revoke(struct endpoint *base, uint64_t handle,
                                             struct haul_region *region) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  (void)region;
  receive_revoke(endpoint, handle);
  combiner_lock(&endpoint->combiner);
  each_rail(rail, endpoint) reject_sources(&rail->tx.queue, handle);
  reject_sources(&endpoint->staged_sends, handle);
  tcp_advance(endpoint, NULL);
  combiner_unlock(&endpoint->combiner);
}

/* The table: endpoints */

/* Nothing to do before an event of a rail, or before a thread leaves something (loop_poll). */
static bool is_idle(struct tcp_endpoint *endpoint, int64_t spin_ns) {
  bool idle = list_empty(&endpoint->staged_receives) &&
              !work_batch_pending(&endpoint->work_batch) &&
              atomic_load(&endpoint->tx_staging.waits_since) == 0 &&
              atomic_load(&endpoint->rx_staging.waits_since) == 0;
  each_rail(rail, endpoint) idle = idle && rail_is_idle(rail, spin_ns);
  if (!idle)
    return false;
  combiner_lock(&endpoint->combiner);
  idle = list_empty(&endpoint->staged_sends);
  combiner_unlock(&endpoint->combiner);
  return idle;
}

static bool poll_endpoint(struct poller *poller) {
  struct tcp_endpoint *endpoint = list_entry(poller, struct tcp_endpoint, poller);
  int64_t spin_ns = endpoint->base.link->fabric->config->spin_ns;
  bool moved = false, sends = false, receives = false, unread = false;
  bool young = work_batch_is_young(&endpoint->work_batch);
  if (atomic_load(&endpoint->dial.due))
    tcp_dial(endpoint);
  if (!list_empty(&endpoint->staged_receives))
    moved |= staged_receives_poll(endpoint, &receives);
  if (!young) { /* taking the lock admits the batch */
    combiner_lock(&endpoint->combiner);
    if (!list_empty(&endpoint->staged_sends)) {
      moved |= staged_sends_poll(endpoint, &sends);
      tcp_advance(endpoint, NULL);
    }
    combiner_unlock(&endpoint->combiner);
  }
  each_rail(rail, endpoint) moved |= rail_poll(rail, spin_ns);
  tcp_staging_leave_queue(endpoint);
  each_rail(rail, endpoint) unread |= !rail->rx.blocked && stream_holds(&rail->stream);
  tcp_free_rails(endpoint);
  poller->urgent = sends || receives || unread || work_batch_pending(&endpoint->work_batch);
  poller->rests = !moved && !poller->urgent && is_idle(endpoint, spin_ns);
  return moved;
}

void tcp_start_stall_timer(struct tcp_endpoint *endpoint) {
  const struct link *link = endpoint->base.link;
  const struct haul_node_config *config = link->fabric->config;
  int64_t wait = config->liveness_ns / 2;
  if (link->initiator && rail_after(endpoint, NULL) && config->idle_rails_ns / 4 < wait)
    wait = config->idle_rails_ns / 4;
  loop_timer_start_about(link->fabric->loop, &endpoint->stall, clock_now() + wait - wait / 8,
                         wait / 8);
}

__attribute__((cold)) static void on_stall_timer(struct timer *timer) {
  struct tcp_endpoint *endpoint = list_entry(timer, struct tcp_endpoint, stall);
  int64_t now = clock_now(), bound = endpoint->base.link->fabric->config->liveness_ns;
  /* Late by more than that, this process was stopped, and reads first what has come meanwhile. */
  if (now - timer->at <= bound / 2)
    each_rail(rail, endpoint) rail_check_stall(rail, now, bound);
  tcp_staging_expire(endpoint, now);
  tcp_park_if_idle(endpoint, now);
  tcp_start_stall_timer(endpoint);
}

__attribute__((cold)) static int tcp_create(struct link *link, struct endpoint **out) {
  struct tcp_endpoint *endpoint = alloc_zero(1, sizeof *endpoint);
  struct loop *loop = link->fabric->loop;
  struct staging *staging = heap_staging(link->fabric->heap);
  if (!endpoint)
    return error_memory("tcp endpoint");
  endpoint->base.transport = &tcp_transport;
  endpoint->base.link = link;
  atomic_store(&endpoint->base.no_zero_copy, tcp_probe_splice() != 0);
  endpoint->splice_min = tcp_splice_min(link->fabric);
  combiner_init(&endpoint->combiner, tcp_admit);
  backlog_init(&endpoint->pending);
  list_init(&endpoint->staged_sends);
  list_init(&endpoint->staged_receives);
  staging_user_init(staging, &endpoint->tx_staging, STAGING_SEND, TCP_BOUNCES, loop_wake_callback,
                    loop);
  staging_user_init(staging, &endpoint->rx_staging, STAGING_RECEIVE, TCP_BOUNCES,
                    loop_wake_callback, loop);
  if (!link->loopback)
    endpoint->link_speed = tcp_link_speed(link->socket);
  tcp_dial_init(endpoint);
  timer_init(&endpoint->stall, on_stall_timer);
  loop_poller_start(loop, &endpoint->poller, poll_endpoint);
  tcp_start_stall_timer(endpoint);
  *out = &endpoint->base;
  return 0;
}

__attribute__((cold)) static void tcp_adopt(struct endpoint *base, unsigned index,
                                            struct stream stream) {
  if (index >= TCP_RAILS)
    stream_close(&stream);
  else
    rail_open((struct tcp_endpoint *)base, index, stream);
}

/* Works that wait for a rail. */
__attribute__((cold)) static void end_pending(struct tcp_endpoint *endpoint, int code) {
  struct list works = LIST_INIT(works);
  combiner_lock(&endpoint->combiner);
  backlog_empty(&endpoint->pending, &works);
  atomic_store(&endpoint->base.open, false);
  combiner_unlock(&endpoint->combiner);
  error_code(code, endpoint->base.link->name);
  tcp_end_works(endpoint, &works, code);
}

__attribute__((cold)) static void tcp_stop(struct endpoint *base, int code) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  each_rail(rail, endpoint) rail_close(rail, code);
  staging_cancel_wait(&endpoint->tx_staging);
  staging_cancel_wait(&endpoint->rx_staging);
  loop_timer_stop(&endpoint->stall);
  loop_timer_stop(&endpoint->dial.timer);
  loop_poller_stop(base->link->fabric->loop, &endpoint->poller);
  end_pending(endpoint, code);
  /* Ends deferred works; tcp_post ends later ones. */
  combiner_drain(&endpoint->combiner);
}

__attribute__((cold)) static void tcp_forked(struct endpoint *base) {
  each_rail(rail, (struct tcp_endpoint *)base) rail_forked(rail);
}

__attribute__((cold)) static void tcp_destroy(struct endpoint *base) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  for (unsigned i = 0; i < TCP_RAILS; i++)
    rail_free(endpoint->rails[i]);
  combiner_destroy(&endpoint->combiner);
  alloc_free(endpoint->slots);
  alloc_free(endpoint);
}

const struct transport tcp_transport = {
    .name = "tcp",
    .index = 2,
    .payload = true,
    .checks = tcp_checks,
    .create = tcp_create,
    .connect = tcp_connect,
    .adopt = tcp_adopt,
    .dialed = tcp_dialed,
    .expect = tcp_expect,
    .requested = tcp_requested,
    .refused = tcp_refused,
    .stop = tcp_stop,
    .forked = tcp_forked,
    .destroy = tcp_destroy,
    .estimate = tcp_estimate,
    .post = tcp_post,
    .cancel = tcp_cancel,
    .revoke = tcp_revoke,
};
