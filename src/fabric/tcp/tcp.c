/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

_Static_assert(WORK_BYTES_MAX <= FRAME_PAYLOAD_MAX && WORK_PIECES_MAX <= FRAME_PIECES_MAX,
               "a work is a frame");

/* ---- Slots ---- */

static struct slot *slot_of(struct tcp_endpoint *endpoint, uint64_t request) {
  uint32_t index = (uint32_t)request;
  if (index >= TCP_WINDOW)
    return NULL;
  struct slot *slot = &endpoint->slots[index];
  return slot->busy && slot->stamp == (uint32_t)(request >> 32) ? slot : NULL;
}

static struct slot *slot_new(struct tcp_endpoint *endpoint, uint64_t *request) {
  while (endpoint->slots[endpoint->next_slot].busy)
    endpoint->next_slot = (endpoint->next_slot + 1) % TCP_WINDOW;
  struct slot *slot = &endpoint->slots[endpoint->next_slot];
  *request = (uint64_t)++slot->stamp << 32 | endpoint->next_slot;
  endpoint->next_slot = (endpoint->next_slot + 1) % TCP_WINDOW;
  endpoint->busy_slots++;
  slot->busy = true;
  slot->answering = slot->lent = false;
  slot->job = NULL;
  slot->work = NULL;
  return slot;
}

static void slot_free(struct tcp_endpoint *endpoint, struct slot *slot) {
  if (slot->left && --endpoint->left == 0)
    endpoint_block_others(&endpoint->base, false);
  slot->busy = slot->left = false;
  slot->work = NULL;
  slot->job = NULL;
  endpoint->busy_slots--;
}

/* What may be answered on this rail: not before it was sent whole. With the lock. */
static struct slot *slot_waiting(struct tcp_rail *rail, uint64_t request, bool answering) {
  struct slot *slot = slot_of(rail->endpoint, request);
  return slot && !slot->job && slot->rail == rail && slot->answering == answering ? slot : NULL;
}

bool slot_answer(struct tcp_rail *rail, uint64_t request, struct work **work) {
  combiner_lock(&rail->endpoint->combiner);
  struct slot *slot = slot_waiting(rail, request, false);
  *work = slot ? slot->work : NULL;
  if (slot)
    slot->answering = true;
  combiner_unlock(&rail->endpoint->combiner);
  return slot != NULL;
}

bool slot_take(struct tcp_rail *rail, uint64_t request, bool data, struct work **work) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  combiner_lock(&endpoint->combiner);
  struct slot *slot = slot_waiting(rail, request, data);
  bool found = slot != NULL;
  *work = found ? slot->work : NULL;
  if (found) {
    slot_free(endpoint, slot);
    tcp_advance(endpoint, NULL);
  }
  combiner_unlock(&endpoint->combiner);
  return found;
}

/* ---- Works ---- */

static bool is_open(const struct tcp_rail *rail) {
  return rail && rail->stream.fd >= 0 && !rail->broken;
}

/* What has the best rank waits behind nothing else, in no queue and no socket. */
static struct tcp_rail *rail_for(const struct tcp_endpoint *endpoint, const struct work *work) {
  struct tcp_rail *best = NULL;
  if (work->rank == 0 && is_open(endpoint->rails[TCP_EXPRESS]))
    return endpoint->rails[TCP_EXPRESS];
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (is_open(rail) && (!best || rail->queued < best->queued))
      best = rail;
  }
  return best;
}

/* The work ends before its answer; pages that it left behind get no other content (tx.c). */
static struct work *take_work(struct slot *slot) {
  struct work *work = slot->work;
  slot->work = NULL;
  if (work && slot->lent)
    atomic_store(&work->region->handed_out, true);
  return work;
}

struct work *slot_drop(struct tcp_endpoint *endpoint, struct slot *slot) {
  struct work *work = take_work(slot);
  if (slot->job)
    slot->job->slot = NULL;
  slot_free(endpoint, slot);
  return work;
}

struct work *slot_abandon(struct tcp_endpoint *endpoint, struct slot *slot, int code) {
  struct work *work = take_work(slot);
  if (slot->job && job_abandon(slot->job, code)) {
    slot_free(endpoint, slot);
  } else if (slot->write && !slot->left) {
    slot->left = true;
    if (endpoint->left++ == 0)
      endpoint_block_others(&endpoint->base, true);
  }
  return work;
}

/* With the lock. `rail` NULL: there is none. */
static void start_work(struct tcp_endpoint *endpoint, struct work *work, struct tcp_rail *rail) {
  uint64_t request;
  work->state = NULL;
  if (!rail) {
    work->done(work, error_set(HAUL_EPATH, 0, endpoint->base.link->name, NULL, "no rail is left"));
    return;
  }
  struct slot *slot = slot_new(endpoint, &request);
  struct tcp_job *job = job_request(work, request);
  if (!job) {
    slot_free(endpoint, slot);
    work->done(work, haul_error_last()->code);
    return;
  }
  work_starts(work);
  slot->work = work;
  slot->write = work->operation != HAUL_OP_READ;
  slot->rail = rail;
  slot->job = job;
  job->slot = slot;
  job->rail = rail;
  work->state = slot;
  job_submit(job);
}

/* Sources that the rails' engines have not read yet. */
static bool stages_wait(const struct tcp_endpoint *endpoint) {
  unsigned count = 0;
  list_each(item, &endpoint->staging) if (++count >= 2 * TCP_STAGES) return true;
  return false;
}

/* What is left of a write that was given up may land late, and not on the bytes of a later one. */
static bool may_start(const struct tcp_endpoint *endpoint, const struct work *work,
                      const struct tcp_rail *rail) {
  if (endpoint->busy_slots >= endpoint->base.link->window || endpoint->left > 0)
    return false;
  return !rail ||
         (rail->queued < TCP_QUEUE && (work->region->memory.view || !stages_wait(endpoint)));
}

/* At most WORK_BATCH; returns how many. */
static unsigned start_works(struct tcp_endpoint *endpoint) {
  struct list *first;
  unsigned count = 0;
  while (count < WORK_BATCH && (first = backlog_first(&endpoint->pending))) {
    struct work *work = list_entry(first, struct work, link);
    struct tcp_rail *rail = rail_for(endpoint, work);
    if (!may_start(endpoint, work, rail))
      break;
    backlog_take(&endpoint->pending);
    start_work(endpoint, work, rail);
    count++;
  }
  return count;
}

bool tcp_advance(struct tcp_endpoint *endpoint, struct tcp_rail *returns) {
  bool more = false;
  if (returns)
    returns->fresh = true;
  start_works(endpoint);
  do {
    each_rail(rail, endpoint) if (rail->fresh) rail_pump(rail);
  } while (start_works(endpoint) > 0); /* a pump makes room in its queue, and may end works */
  each_rail(rail, endpoint) {
    if (rail == returns)
      more = rail->pumped >= rail->share && !list_empty(&rail->queue);
    if (rail != returns || !more)
      rail_uncork(rail);
    rail->pumped = 0;
  }
  return more;
}

static void admit(struct combiner *combiner, struct list *works) {
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
      work->done(work, error_set(HAUL_EPATH, 0, base->link->name, NULL, "%s", base->reason));
    }
  }
  tcp_advance(endpoint, NULL);
}

/* Dekker with `stop`: it shuts the endpoint, then takes in what is laid. */
static void lay(struct tcp_endpoint *endpoint, struct list *item) {
  combiner_defer(&endpoint->combiner, item);
  if (!atomic_load(&endpoint->base.open))
    combiner_drain(&endpoint->combiner);
}

static void post(struct endpoint *base, struct work *work) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  work->state = NULL;
  if (work_batch_add(&endpoint->work_batch, work, base->link->fabric->loop))
    lay(endpoint, &work->link);
  else
    combiner_submit(&endpoint->combiner, &work->link);
}

/* ---- Early ends; with the loop's lock ---- */

/* Nothing that still comes for the work reaches its memory. */
static void detach_reader(struct tcp_endpoint *endpoint, const struct work *work) {
  each_rail(rail, endpoint) {
    if (rail->state == RX_HEAD || rail->work != work)
      continue;
    stage_give(&endpoint->rx, &rail->stage);
    rail->region = NULL;
    rail->work = NULL;
  }
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    if (landing->work != work)
      continue;
    landing_finish(landing, HAUL_ECANCELED);
  }
}

static void cancel(struct endpoint *base, struct work *work, int code) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  bool ended = false;
  combiner_lock(&endpoint->combiner);
  if (work->state == &endpoint->pending) {
    list_remove(&work->link);
    work->state = NULL;
    ended = true;
  } else if (work->state) {
    struct slot *slot = work->state;
    ended = slot->busy && slot->work == work && slot_abandon(endpoint, slot, code);
    tcp_advance(endpoint, NULL);
  }
  combiner_unlock(&endpoint->combiner);
  if (!ended)
    return;
  if (work->operation != HAUL_OP_WRITE)
    detach_reader(endpoint, work);
  work->done(work, code);
}

/* With the lock: no byte of the region is sent any more. */
static void withdraw_sources(struct list *jobs, uint64_t handle) {
  list_each_safe(item, jobs) {
    struct tcp_job *job = list_entry(item, struct tcp_job, link);
    if (job->type == FRAME_DATA && job->handle == handle && job->region)
      job_refuse(job, HAUL_ESTALE);
  }
}

static void withdraw(struct endpoint *base, uint64_t handle, struct haul_region *region) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  (void)region;
  each_rail(rail, endpoint) {
    if (rail->state == RX_HEAD || rail->frame.type != FRAME_WRITE || rail->frame.handle != handle ||
        !rail->region)
      continue;
    rail_throw_away(rail, HAUL_ESTALE);
  }
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    if (landing->frame.type != FRAME_WRITE || landing->frame.handle != handle)
      continue;
    landing_finish(landing, HAUL_ESTALE);
  }
  combiner_lock(&endpoint->combiner);
  each_rail(rail, endpoint) withdraw_sources(&rail->queue, handle);
  withdraw_sources(&endpoint->staging, handle);
  tcp_advance(endpoint, NULL);
  combiner_unlock(&endpoint->combiner);
}

/* ---- Life of an endpoint ---- */

static bool poll_endpoint(struct poller *poller) {
  struct tcp_endpoint *endpoint = list_entry(poller, struct tcp_endpoint, poller);
  int64_t spin_ns = endpoint->base.link->fabric->config->spin_ns;
  bool moved = false, sources = false, landings = false, held_back = false,
       held = work_batch_is_young(&endpoint->work_batch);
  if (!list_empty(&endpoint->landings))
    moved |= stage_landings(endpoint, &landings);
  if (!held) {
    combiner_lock(&endpoint->combiner);
    if (!list_empty(&endpoint->staging)) {
      moved |= stage_sources(endpoint, &sources);
      tcp_advance(endpoint, NULL);
    }
    combiner_unlock(&endpoint->combiner);
  }
  each_rail(rail, endpoint) moved |= rail_poll(rail, spin_ns);
  stages_tend(endpoint);
  each_rail(rail, endpoint) held_back |= !rail->blocked && stream_holds(&rail->stream);
  poller->urgent = sources || landings || held_back || work_batch_pending(&endpoint->work_batch);
  return moved;
}

/* A peer that stops in the middle of a payload, or does not read what it asked for, is gone. */
static void on_stall_timer(struct timer *timer) {
  struct tcp_endpoint *endpoint = list_entry(timer, struct tcp_endpoint, stall);
  struct link *link = endpoint->base.link;
  int64_t now = clock_now(), bound = link->fabric->config->liveness_ns;
  each_rail(rail, endpoint) {
    if (rail->stream.fd < 0)
      continue;
    bool inside =
        (rail->state != RX_HEAD || rail->inbox_end != rail->inbox_start) && !rail->blocked;
    combiner_lock(&endpoint->combiner);
    bool stuck =
        (!list_empty(&rail->queue) || stream_owes(&rail->stream)) && now - rail->tx_moved > bound;
    combiner_unlock(&endpoint->combiner);
    if (inside && now - rail->rx_moved > bound)
      link->fail(link, HAUL_EPEER, "it stopped in the middle of a payload");
    else if (stuck)
      link->fail(link, HAUL_EPEER, "it does not read what it was sent");
  }
  stages_expire(endpoint, now);
  loop_timer_start(link->fabric->loop, timer, now + bound / 2);
}

static int create(struct link *link, struct endpoint **out) {
  struct tcp_endpoint *endpoint = alloc_zero(1, sizeof *endpoint);
  if (!endpoint)
    return error_memory("tcp endpoint");
  endpoint->base.transport = &tcp_transport;
  endpoint->base.link = link;
  atomic_store(&endpoint->base.as_small, tcp_try_lending() != 0);
  endpoint->splice_from = tcp_splice_from(link->fabric);
  combiner_init(&endpoint->combiner, admit);
  backlog_init(&endpoint->pending);
  list_init(&endpoint->staging);
  list_init(&endpoint->landings);
  stages_open(endpoint);
  timer_init(&endpoint->stall, on_stall_timer);
  struct loop *loop = link->fabric->loop;
  loop_poller_start(loop, &endpoint->poller, poll_endpoint);
  loop_timer_start(loop, &endpoint->stall, clock_now() + link->fabric->config->liveness_ns / 2);
  *out = &endpoint->base;
  return 0;
}

static int connect_rail(struct tcp_endpoint *endpoint, unsigned index, haul_deadline until) {
  struct link *link = endpoint->base.link;
  struct stream stream;
  int code = link->dial(link, &tcp_transport, link->local, index, until, &stream);
  if (code)
    return code;
  loop_lock(link->fabric->loop);
  code = rail_open(endpoint, index, stream);
  loop_unlock(link->fabric->loop);
  return code;
}

/* Without the express rail what has the best rank takes the others. */
static void connect_rails(struct endpoint *base, haul_deadline until) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  struct link *link = base->link;
  unsigned wanted = link->fabric->config->tcp_rails;
  int code = 0;
  if (wanted == 0)
    wanted = link->loopback ? 1 : 2;
  for (unsigned i = 0; i < wanted && i < TCP_RAILS_MAX && code == 0; i++)
    code = connect_rail(endpoint, i, until);
  if (atomic_load(&endpoint->open_rails) == 0) {
    loop_lock(link->fabric->loop);
    endpoint_failed(base, "no data connection: %.150s", haul_error_last()->text);
    loop_unlock(link->fabric->loop);
  } else if (code == 0) {
    connect_rail(endpoint, TCP_EXPRESS, until);
  }
}

static void adopt(struct endpoint *base, unsigned index, struct stream stream) {
  if (index >= TCP_RAILS)
    stream_close(&stream);
  else
    rail_open((struct tcp_endpoint *)base, index, stream);
}

static void stop(struct endpoint *base, int code) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  each_rail(rail, endpoint) rail_close(rail, code);
  stages_close(endpoint);
  loop_timer_stop(&endpoint->stall);
  loop_poller_stop(base->link->fabric->loop, &endpoint->poller);
  /* What is still laid down is let in now; what is laid from now on, by who lays it. */
  atomic_store(&base->open, false);
  combiner_drain(&endpoint->combiner);
}

static void forked(struct endpoint *base) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  each_rail(rail, endpoint) {
    if (rail->stream.fd >= 0)
      close(rail->stream.fd);
    if (rail->pipe[0] >= 0) {
      close(rail->pipe[0]);
      close(rail->pipe[1]);
    }
  }
}

static void destroy(struct endpoint *base) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  for (unsigned i = 0; i < TCP_RAILS; i++)
    rail_free(endpoint->rails[i]);
  combiner_destroy(&endpoint->combiner);
  alloc_free(endpoint);
}

const struct transport tcp_transport = {
    .name = "tcp",
    .index = 2,
    .payload = true,
    .checks = tcp_checks,
    .create = create,
    .connect = connect_rails,
    .adopt = adopt,
    .stop = stop,
    .forked = forked,
    .destroy = destroy,
    .estimate = tcp_estimate,
    .post = post,
    .cancel = cancel,
    .revoke = withdraw,
};
