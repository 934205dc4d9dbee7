/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

_Static_assert(WORK_BYTES_MAX <= FRAME_PAYLOAD_MAX && WORK_PIECES_MAX <= FRAME_PIECES_MAX,
               "a work is a frame");

#define POLL_PATIENCE 4096 /* fruitless polls before a rail waits for its event again */

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
  slot->answering = false;
  slot->job = NULL;
  slot->work = NULL;
  return slot;
}

static void slot_free(struct tcp_endpoint *endpoint, struct slot *slot) {
  slot->busy = false;
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
  pthread_mutex_lock(&rail->endpoint->lock);
  struct slot *slot = slot_waiting(rail, request, false);
  *work = slot ? slot->work : NULL;
  if (slot)
    slot->answering = true;
  pthread_mutex_unlock(&rail->endpoint->lock);
  return slot != NULL;
}

bool slot_take(struct tcp_rail *rail, uint64_t request, bool data, struct work **work) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  pthread_mutex_lock(&endpoint->lock);
  struct slot *slot = slot_waiting(rail, request, data);
  bool found = slot != NULL;
  *work = found ? slot->work : NULL;
  if (found) {
    slot_free(endpoint, slot);
    tcp_settled(endpoint);
  }
  pthread_mutex_unlock(&endpoint->lock);
  return found;
}

/* ---- Works ---- */

static struct tcp_rail *idlest_rail(struct tcp_endpoint *endpoint) {
  struct tcp_rail *best = NULL;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (rail->fd >= 0 && !rail->broken && (!best || rail->queued < best->queued))
      best = rail;
  }
  return best;
}

struct work *slot_abandon(struct tcp_endpoint *endpoint, struct slot *slot, int code) {
  struct work *work = slot->work;
  slot->work = NULL;
  if (slot->job && job_abandon(slot->job, code)) {
    slot_free(endpoint, slot);
    tcp_settled(endpoint);
  }
  return work;
}

/* With the lock. */
static void start_work(struct tcp_endpoint *endpoint, struct work *work) {
  uint64_t request;
  struct tcp_rail *rail = idlest_rail(endpoint);
  work->state = NULL;
  if (!rail) {
    work->done(work, error_set(HAUL_EPATH, 0, endpoint->base.link->name, "no rail is left|"));
    return;
  }
  struct slot *slot = slot_new(endpoint, &request);
  struct tcp_job *job = job_request(work, request);
  if (!job) {
    slot_free(endpoint, slot);
    work->done(work, haul_error_last()->code);
    return;
  }
  slot->work = work;
  slot->rail = rail;
  slot->job = job;
  job->slot = slot;
  job->rail = rail;
  work->state = slot;
  job_submit(job);
}

/* With the lock. */
void tcp_settled(struct tcp_endpoint *endpoint) {
  while (endpoint->busy_slots < TCP_WINDOW && !list_empty(&endpoint->pending))
    start_work(endpoint, list_entry(list_take(&endpoint->pending), struct work, link));
}

static void post(struct endpoint *base, struct work *work) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  work->state = NULL;
  pthread_mutex_lock(&endpoint->lock);
  if (!atomic_load(&base->open)) {
    work->done(work, error_set(HAUL_EPATH, 0, base->link->name, "%s|", base->reason));
  } else if (endpoint->busy_slots < TCP_WINDOW && list_empty(&endpoint->pending)) {
    start_work(endpoint, work);
  } else {
    work->state = &endpoint->pending; /* until it has a slot or has ended */
    list_append(&endpoint->pending, &work->link);
  }
  pthread_mutex_unlock(&endpoint->lock);
}

/* ---- Early ends; with the loop's lock ---- */

static void stop_landing_copy(struct landing *landing) {
  if (landing->copy.to && atomic_load(&landing->copy.status) > 0)
    landing->region->memory.provider->copy_cancel(&landing->copy);
}

/* Nothing that still comes for the work reaches its memory. */
static void detach_reader(struct tcp_endpoint *endpoint, const struct work *work) {
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (rail->state == RX_HEAD || rail->work != work)
      continue;
    if (rail->stage)
      rail->stage->busy = false;
    rail->stage = NULL;
    rail->region = NULL;
    rail->work = NULL;
  }
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    if (landing->work != work)
      continue;
    stop_landing_copy(landing);
    landing_finish(landing, HAUL_ECANCELED);
  }
}

static void cancel(struct endpoint *base, struct work *work, int code) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  bool ended = false;
  pthread_mutex_lock(&endpoint->lock);
  if (work->state == &endpoint->pending) {
    list_remove(&work->link);
    work->state = NULL;
    ended = true;
  } else if (work->state) {
    struct slot *slot = work->state;
    ended = slot->busy && slot->work == work && slot_abandon(endpoint, slot, code);
  }
  pthread_mutex_unlock(&endpoint->lock);
  if (!ended)
    return;
  if (work->operation == HAUL_OP_READ)
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
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (rail->state == RX_HEAD || rail->frame.type != FRAME_WRITE || rail->frame.handle != handle ||
        !rail->region)
      continue;
    if (rail->stage)
      rail->stage->busy = false;
    rail->stage = NULL;
    region_put(rail->region);
    rail->region = NULL;
    rail->verdict = HAUL_ESTALE;
  }
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    if (landing->frame.type != FRAME_WRITE || landing->frame.handle != handle)
      continue;
    stop_landing_copy(landing);
    landing_finish(landing, HAUL_ESTALE);
  }
  pthread_mutex_lock(&endpoint->lock);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    withdraw_sources(&endpoint->rails[i]->queue, handle);
  withdraw_sources(&endpoint->staging, handle);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    rail_pump(endpoint->rails[i]);
  pthread_mutex_unlock(&endpoint->lock);
}

/* ---- Rails ---- */

static void on_rail(struct watch *watch, uint32_t events) {
  struct tcp_rail *rail = list_entry(watch, struct tcp_rail, watch);
  struct tcp_endpoint *endpoint = rail->endpoint;
  rail->idle_polls = 0;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
    rail_receive(rail);
  pthread_mutex_lock(&endpoint->lock);
  rail_pump(rail);
  bool broken = rail->broken;
  pthread_mutex_unlock(&endpoint->lock);
  if (broken)
    rail_close(rail, HAUL_EPATH);
}

/* Loopback has no congestion: a window that paces (BBR) costs it a third, and buffers that stay in
 * the cache gain a fifth (bench/run tcp-write). Elsewhere the system's settings stand. */
static void tune(int fd, const struct link *link) {
  int send_bytes = 1 << 20, receive_bytes = 512 << 10;
  if (!link->loopback)
    return;
  if (link->local || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  }
}

/* With both locks. Rails come in order, so that there are no gaps. */
static int make_rail(struct tcp_endpoint *endpoint, unsigned index) {
  if (index < endpoint->rail_count)
    return 0;
  struct tcp_rail *rail = index == endpoint->rail_count ? alloc_zero(1, sizeof *rail) : NULL;
  if (!rail)
    return index == endpoint->rail_count ? error_memory("tcp rail")
                                         : error_set(HAUL_EPROTO, 0, NULL, "rails out of order|");
  rail->endpoint = endpoint;
  rail->index = index;
  rail->fd = rail->pipe[0] = rail->pipe[1] = -1;
  list_init(&rail->queue);
  endpoint->rails[index] = rail;
  endpoint->rail_count++;
  return 0;
}

static int open_rail(struct tcp_endpoint *endpoint, unsigned index, int fd) {
  struct loop *loop = endpoint->base.link->fabric->loop;
  tune(fd, endpoint->base.link);
  pthread_mutex_lock(&endpoint->lock);
  int ended = atomic_load(&endpoint->base.link->ended); /* stopped while it was dialed */
  int code = ended ? error_set(ended, 0, endpoint->base.link->name, "|") : 0;
  if (code == 0)
    code = make_rail(endpoint, index);
  struct tcp_rail *rail = endpoint->rails[index];
  if (code == 0 && rail->fd >= 0)
    code = error_set(HAUL_EPROTO, 0, NULL, "tcp rail %u is there already|", index);
  if (code == 0)
    code = loop_watch(loop, &rail->watch, fd, EPOLLIN, on_rail);
  if (code == 0) {
    rail->fd = fd;
    rail->broken = rail->blocked = false;
    rail->may_splice = true;
    rail->rx_moved = rail->tx_moved = clock_now();
    atomic_fetch_add(&endpoint->open_rails, 1);
    atomic_store(&endpoint->base.open, true);
  }
  pthread_mutex_unlock(&endpoint->lock);
  if (code)
    close(fd);
  return code;
}

/* With the lock. Unlinks what the rail still had to send or was answered for. */
static void clear_rail(struct tcp_rail *rail, struct list *works) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  for (unsigned i = 0; i < TCP_WINDOW; i++) {
    struct slot *slot = &endpoint->slots[i];
    if (!slot->busy || slot->rail != rail)
      continue;
    if (slot->work)
      list_append(works, &slot->work->link);
    if (slot->job)
      slot->job->slot = NULL;
    slot_free(endpoint, slot);
  }
  list_each_safe(item, &endpoint->staging) {
    struct tcp_job *job = list_entry(item, struct tcp_job, link);
    if (job->rail == rail) {
      list_remove(item);
      list_append(&rail->queue, item);
    }
  }
  for (struct list *item; (item = list_take(&rail->queue));) {
    struct tcp_job *job = list_entry(item, struct tcp_job, link);
    endpoint->owed -= job->type == FRAME_ACK || job->type == FRAME_DATA;
    job->queued = false;
    job_end_copy(job);
    job_free(job);
  }
  rail->queued = 0;
}

static void close_descriptors(struct tcp_rail *rail) {
  loop_unwatch(rail->endpoint->base.link->fabric->loop, &rail->watch);
  close(rail->fd);
  if (rail->pipe[0] >= 0) {
    close(rail->pipe[0]);
    close(rail->pipe[1]);
  }
  rail->fd = rail->pipe[0] = rail->pipe[1] = -1;
  rail->in_pipe = 0;
  rail->inbox_start = rail->inbox_end = 0;
}

static void drop_landings(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  uint32_t owed = rail->state != RX_HEAD && rail->frame.type == FRAME_WRITE;
  rail_drop_landing(rail);
  list_each_safe(item, &endpoint->landings) {
    struct landing *landing = list_entry(item, struct landing, link);
    if (landing->rail != rail)
      continue;
    stop_landing_copy(landing);
    landing->work = NULL;
    owed += landing->frame.type == FRAME_WRITE; /* nobody answers any more */
    landing_finish(landing, HAUL_EPATH);
  }
  pthread_mutex_lock(&endpoint->lock);
  endpoint->owed -= owed;
  pthread_mutex_unlock(&endpoint->lock);
}

void rail_close(struct tcp_rail *rail, int code) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  struct list works = LIST_INIT(works);
  if (rail->fd < 0)
    return;
  pthread_mutex_lock(&endpoint->lock);
  close_descriptors(rail);
  clear_rail(rail, &works);
  bool last = atomic_fetch_sub(&endpoint->open_rails, 1) == 1;
  if (last) {
    list_splice(&works, &endpoint->pending);
    if (!endpoint->base.reason[0])
      endpoint_shut(&endpoint->base, "the connection to the peer ended");
    atomic_store(&endpoint->base.open, false);
  }
  pthread_mutex_unlock(&endpoint->lock);
  drop_landings(rail);
  /* This path is the last resort: without it the peer is as good as gone, and it nearly always is.
   */
  if (last && code == HAUL_EPATH)
    endpoint->base.link->fail(endpoint->base.link, HAUL_EPEER, "its data connections ended");
  error_set(code, 0, endpoint->base.link->name,
            "the connection to the peer ended|is the peer still "
            "there? its log says more");
  for (struct list *item; (item = list_take(&works));) {
    struct work *work = list_entry(item, struct work, link);
    work->state = NULL;
    work->done(work, code);
  }
  loop_news(endpoint->base.link->fabric->loop);
}

static bool is_unsent(const struct tcp_rail *rail) {
  return atomic_load_explicit(&rail->unsent, memory_order_relaxed);
}

static void pump(struct tcp_rail *rail) {
  pthread_mutex_lock(&rail->endpoint->lock);
  rail_pump(rail);
  pthread_mutex_unlock(&rail->endpoint->lock);
}

/* Who polls without end comes back at once, so its ACKs wait for the next round: what the
 * application answers in between takes them along. */
static bool poll_rail(struct tcp_rail *rail, int64_t spin_ns) {
  bool came = false;
  if (rail->fd < 0)
    return false;
  if (is_unsent(rail))
    pump(rail);
  if (rail->blocked || (spin_ns > 0 && rail->idle_polls < POLL_PATIENCE)) {
    came = rail_receive(rail);
    rail->idle_polls = came ? 0 : rail->idle_polls + 1;
  }
  if (came && is_unsent(rail) && spin_ns != HAUL_SPIN_ALWAYS)
    pump(rail);
  if (rail->broken)
    rail_close(rail, HAUL_EPATH);
  return came;
}

static bool poll_endpoint(struct poller *poller) {
  struct tcp_endpoint *endpoint = list_entry(poller, struct tcp_endpoint, poller);
  int64_t spin_ns = endpoint->base.link->fabric->config->spin_ns;
  bool moved = false, sources = false, landings = false;
  if (!list_empty(&endpoint->landings))
    moved |= stage_landings(endpoint, &landings);
  pthread_mutex_lock(&endpoint->lock);
  if (!list_empty(&endpoint->staging))
    moved |= stage_sources(endpoint, &sources);
  pthread_mutex_unlock(&endpoint->lock);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    moved |= poll_rail(endpoint->rails[i], spin_ns);
  poller->urgent = sources || landings;
  return moved;
}

/* A peer that stops in the middle of a payload, or does not read what it asked for, is gone. */
static void on_stall_timer(struct timer *timer) {
  struct tcp_endpoint *endpoint = list_entry(timer, struct tcp_endpoint, stall);
  struct link *link = endpoint->base.link;
  int64_t now = clock_now(), bound = link->fabric->config->liveness_ns;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (rail->fd < 0)
      continue;
    bool inside =
        (rail->state != RX_HEAD || rail->inbox_end != rail->inbox_start) && !rail->blocked;
    pthread_mutex_lock(&endpoint->lock);
    bool stuck = !list_empty(&rail->queue) && now - rail->tx_moved > bound;
    pthread_mutex_unlock(&endpoint->lock);
    if (inside && now - rail->rx_moved > bound)
      link->fail(link, HAUL_EPEER, "it stopped in the middle of a payload");
    else if (stuck)
      link->fail(link, HAUL_EPEER, "it does not read what it was sent");
  }
  loop_timer(link->fabric->loop, timer, now + bound / 2);
}

/* ---- Ends of a link ---- */

static int create(struct link *link, struct endpoint **out) {
  struct tcp_endpoint *endpoint = alloc_zero(1, sizeof *endpoint);
  if (!endpoint)
    return error_memory("tcp endpoint");
  endpoint->base.transport = &tcp_transport;
  endpoint->base.link = link;
  pthread_mutex_init(&endpoint->lock, NULL);
  list_init(&endpoint->pending);
  list_init(&endpoint->staging);
  list_init(&endpoint->landings);
  timer_init(&endpoint->stall, on_stall_timer);
  struct loop *loop = link->fabric->loop;
  loop_poller(loop, &endpoint->poller, poll_endpoint);
  loop_timer(loop, &endpoint->stall, clock_now() + link->fabric->config->liveness_ns / 2);
  *out = &endpoint->base;
  return 0;
}

static void connect_rails(struct endpoint *base, haul_deadline until) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  struct link *link = base->link;
  unsigned wanted = link->fabric->config->tcp_rails;
  if (wanted == 0)
    wanted = link->loopback ? 1 : 2;
  for (unsigned i = 0; i < wanted && i < TCP_RAILS_MAX; i++) {
    int fd;
    int code = link->dial(link, &tcp_transport, link->local, i, until, &fd);
    if (code == 0) {
      loop_lock(link->fabric->loop);
      code = open_rail(endpoint, i, fd);
      loop_unlock(link->fabric->loop);
    }
    if (code && i == 0) {
      loop_lock(link->fabric->loop);
      endpoint_shut(base, "no data connection: %.150s", haul_error_last()->text);
      loop_unlock(link->fabric->loop);
    }
    if (code)
      return;
  }
}

static void adopt(struct endpoint *base, unsigned index, int descriptor) {
  if (index >= TCP_RAILS_MAX)
    close(descriptor);
  else
    open_rail((struct tcp_endpoint *)base, index, descriptor);
}

static void stop(struct endpoint *base, int code) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    rail_close(endpoint->rails[i], code);
  loop_timer_stop(&endpoint->stall);
  loop_poller_stop(base->link->fabric->loop, &endpoint->poller);
}

static void forked(struct endpoint *base) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    struct tcp_rail *rail = endpoint->rails[i];
    if (rail->fd >= 0)
      close(rail->fd);
    if (rail->pipe[0] >= 0) {
      close(rail->pipe[0]);
      close(rail->pipe[1]);
    }
  }
}

static void destroy(struct endpoint *base) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  stages_release(endpoint->tx_stages);
  stages_release(endpoint->rx_stages);
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    alloc_free(endpoint->rails[i]->scratch);
    alloc_free(endpoint->rails[i]);
  }
  pthread_mutex_destroy(&endpoint->lock);
  alloc_free(endpoint);
}

/* ---- Estimates and checks ---- */

static bool is_staged(const struct provider *provider) {
  return provider && provider->copy_start;
}

static void estimate(struct endpoint *base, const struct remote_key *key, void *binding,
                     const struct memory *local, enum haul_operation operation,
                     struct estimate *estimate) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  const struct link *link = base->link;
  unsigned rails = atomic_load(&endpoint->open_rails);
  unsigned staged = (local->view ? 0u : 1u) + (is_staged(provider_of(key->place.kind)) ? 1u : 0u);
  (void)binding;
  *estimate = (struct estimate){.open = true, .rails = rails, .copies_dma = staged};
  /* By reference out of the source, one copy into the destination; else one at each end. */
  bool by_pages = operation == HAUL_OP_WRITE && local->view;
  estimate->copies_kernel = by_pages ? 1 : 2;
  estimate->copies_kernel_small = by_pages ? 1 : 0;
  estimate->small = SPLICE_MIN;
  estimate->small_piece = SPLICE_PIECE;
  /* Starting values: loopback as bench/run tcp-write and tcp-latency show, else 25 Gb/s Ethernet.
   */
  estimate->latency_ns = (link->loopback ? 10000.0 : 30000.0) + 5000.0 * staged;
  estimate->ns_per_byte = (link->loopback ? 1 / 6.0 : 1 / 3.0) + 0.05 * staged;
  snprintf(estimate->detail, sizeof estimate->detail, "%s%u rail%s%s",
           link->local ? "over a Unix socket, " : "", rails, rails == 1 ? "" : "s",
           staged ? ", staged, 1 MiB chunks" : "");
}

static long read_number(const char *path) {
  char text[32] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return -1;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? strtol(text, NULL, 10) : -1;
}

static size_t checks(struct haul_check *checks, size_t room) {
  static const char *const names[] = {"wmem_max", "rmem_max"};
  static const long wanted[] = {1 << 20, 512 << 10};
  for (size_t i = 0; i < 2 && i < room; i++) {
    char path[64];
    struct haul_check *check = &checks[i];
    memset(check, 0, sizeof *check);
    snprintf(path, sizeof path, "/proc/sys/net/core/%s", names[i]);
    long value = read_number(path);
    snprintf(check->backend, sizeof check->backend, "tcp");
    snprintf(check->name, sizeof check->name, "tcp.%s", i ? "receive-buffer" : "send-buffer");
    check->state = value < 0 || value >= wanted[i] ? HAUL_CHECK_OK : HAUL_CHECK_LIMITED;
    if (value < 0)
      snprintf(check->text, sizeof check->text, "the limit of socket buffers is not readable here");
    else
      snprintf(check->text, sizeof check->text, "net.core.%s is %ld bytes%s", names[i], value,
               check->state ? ": large writes within this host run below their speed" : "");
    if (check->state)
      snprintf(check->remedy, sizeof check->remedy, "sysctl -w net.core.%s=%ld", names[i],
               wanted[i]);
  }
  return 2;
}

const struct transport tcp_transport = {
    .name = "tcp",
    .index = 1,
    .checks = checks,
    .create = create,
    .connect = connect_rails,
    .adopt = adopt,
    .stop = stop,
    .forked = forked,
    .destroy = destroy,
    .estimate = estimate,
    .post = post,
    .cancel = cancel,
    .revoke = withdraw,
};
