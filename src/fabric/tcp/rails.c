/* SPDX-License-Identifier: MIT
 * A rail from the socket that it is given to its close, and what makes it move meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/tcp.h"

#define PUSHES        8 /* calls that send before other rails, and other connections, get their turn */
#define POLL_PATIENCE 4096 /* fruitless polls before a rail waits for its event again */

static void on_rail(struct watch *watch, uint32_t events) {
  struct tcp_rail *rail = list_entry(watch, struct tcp_rail, watch);
  struct tcp_endpoint *endpoint = rail->endpoint;
  rail->idle_polls = 0;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
    rail_receive(rail);
  combiner_lock(&endpoint->combiner);
  if (tcp_advance(endpoint, rail))
    rail_uncork(rail);
  bool broken = rail->broken;
  combiner_unlock(&endpoint->combiner);
  if (broken)
    rail_close(rail, HAUL_EPATH);
}

/* Loopback has no congestion: a window that paces (BBR) costs it a third, and buffers that stay in
 * the cache gain a fifth (bench/run tcp-write). There the sender's processor does the receiver's
 * half of TCP too, for all that a socket holds, and what another socket has to send waits for that:
 * so it holds little unsent (bench/run fairness). Elsewhere the system's settings stand. */
static void tune(int fd, const struct link *link) {
  int send_bytes = 1 << 20, receive_bytes = 512 << 10, unsent_bytes = 32 << 10;
  size_t rate = link->fabric->config->tcp_rate;
  if (rate != SIZE_MAX) /* TCP paces itself, below it no queueing discipline has to */
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
  if (!link->loopback)
    return;
  if (link->local || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  }
}

void rail_free(struct tcp_rail *rail) {
  if (!rail)
    return;
  tally_close(&rail->leaving);
  tally_close(&rail->arriving);
  alloc_free(rail->scratch);
  alloc_free(rail);
}

/* With both locks. Rails come in order, so that there are no gaps. */
static int make_rail(struct tcp_endpoint *endpoint, unsigned index) {
  if (endpoint->rails[index])
    return 0;
  if (index != endpoint->rail_count && index != TCP_EXPRESS)
    return error_set(HAUL_EPROTO, 0, NULL, NULL, "rails out of order");
  struct tcp_rail *rail = alloc_zero(1, sizeof *rail);
  if (!rail || !tally_open(&rail->leaving) || !tally_open(&rail->arriving)) {
    rail_free(rail);
    return error_memory("tcp rail");
  }
  rail->endpoint = endpoint;
  rail->index = index;
  rail->stream = STREAM_NONE;
  rail->pipe[0] = rail->pipe[1] = -1;
  list_init(&rail->queue);
  endpoint->rails[index] = rail;
  endpoint->rail_count += index != TCP_EXPRESS;
  return 0;
}

/* As rails are; the first one says it for all. With TLS nothing goes out by reference. */
static void protect(struct tcp_endpoint *endpoint, unsigned index, enum protection protection) {
  if (index > 0)
    return;
  atomic_store(&endpoint->protection, (int)protection);
  if (protection >= STREAM_PROCESS)
    atomic_store(&endpoint->base.as_small, true);
}

int rail_open(struct tcp_endpoint *endpoint, unsigned index, struct stream stream) {
  int fd = stream.fd;
  struct loop *loop = endpoint->base.link->fabric->loop;
  tune(fd, endpoint->base.link);
  if (index == 0 && endpoint->rail_count == 0 && !endpoint->base.link->loopback)
    endpoint->line = tcp_line_speed(fd);
  combiner_lock(&endpoint->combiner);
  int ended = atomic_load(&endpoint->base.link->ended); /* stopped while it was dialed */
  int code = ended ? error_code(ended, endpoint->base.link->name) : 0;
  if (code == 0)
    code = make_rail(endpoint, index);
  struct tcp_rail *rail = endpoint->rails[index];
  if (code == 0 && rail->stream.fd >= 0)
    code = error_set(HAUL_EPROTO, 0, NULL, NULL, "tcp rail %u is there already", index);
  if (code == 0)
    code = loop_watch(loop, &rail->watch, fd, EPOLLIN, on_rail);
  if (code == 0) {
    rail->stream = stream;
    rail->broken = rail->blocked = false;
    rail->may_splice = !atomic_load(&endpoint->base.as_small) && stream.protection < STREAM_PROCESS;
    protect(endpoint, index, stream.protection);
    rail->rx_moved = rail->tx_moved = clock_now();
    if (index != TCP_EXPRESS) {
      atomic_fetch_add(&endpoint->open_rails, 1);
      atomic_store(&endpoint->base.open, true);
    }
  }
  combiner_unlock(&endpoint->combiner);
  if (code)
    stream_close(&stream);
  return code;
}

/* Bytes of a WRITE went out and no answer came. */
static bool is_open_write(const struct slot *slot) {
  return slot->write && (!slot->job || slot->job->sent > 0);
}

/* With the lock. What the peer may still read of the rail's WRITEs nobody answers any more: they
 * count as left, and no write begins over any path until the peer is dropped. */
static bool leave_open_writes(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  bool any = false;
  for (unsigned i = 0; i < TCP_WINDOW; i++) {
    const struct slot *slot = &endpoint->slots[i];
    any |= slot->busy && slot->rail == rail && is_open_write(slot);
  }
  if (any && endpoint->left++ == 0)
    endpoint_block_others(&endpoint->base, true);
  return any;
}

/* With the lock. Unlinks what the rail still had to send or was answered for. */
static void clear_rail(struct tcp_rail *rail, struct list *works) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  for (unsigned i = 0; i < TCP_WINDOW; i++) {
    struct slot *slot = &endpoint->slots[i];
    if (!slot->busy || slot->rail != rail)
      continue;
    struct work *work = slot_drop(endpoint, slot);
    if (work)
      list_append(works, &work->link);
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
    devcopy_cancel(&job->copy);
    job_free(job);
  }
  rail->queued = 0;
}

static void close_descriptors(struct tcp_rail *rail) {
  loop_unwatch(rail->endpoint->base.link->fabric->loop, &rail->watch);
  stream_close(&rail->stream);
  if (rail->pipe[0] >= 0) {
    close(rail->pipe[0]);
    close(rail->pipe[1]);
  }
  rail->pipe[0] = rail->pipe[1] = -1;
  rail->in_pipe = 0;
  rail->corked = false;
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
    landing->work = NULL;
    owed += landing->frame.type == FRAME_WRITE; /* nobody answers any more */
    landing_finish(landing, HAUL_EPATH);
  }
  combiner_lock(&endpoint->combiner);
  endpoint->owed -= owed;
  combiner_unlock(&endpoint->combiner);
}

void rail_close(struct tcp_rail *rail, int code) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  struct list works = LIST_INIT(works);
  if (rail->stream.fd < 0)
    return;
  combiner_lock(&endpoint->combiner);
  close_descriptors(rail);
  bool open_write = leave_open_writes(rail);
  clear_rail(rail, &works);
  bool last = rail->index != TCP_EXPRESS && atomic_fetch_sub(&endpoint->open_rails, 1) == 1;
  if (last) {
    backlog_empty(&endpoint->pending, &works);
    if (code == HAUL_EPATH) /* first: who finds no path open is told that the peer is gone */
      atomic_store(&endpoint->base.link->failing, HAUL_EPEER);
    if (!endpoint->base.reason[0])
      endpoint_close(&endpoint->base, "the connection to the peer ended");
    atomic_store(&endpoint->base.open, false);
  } else {
    tcp_advance(endpoint, NULL); /* there is room again */
  }
  combiner_unlock(&endpoint->combiner);
  if (!last && code == HAUL_EPATH)
    atomic_fetch_add(&endpoint->base.rails_lost, 1);
  drop_landings(rail);
  /* This path is the last resort: without it the peer is as good as gone, and it nearly always is.
   */
  if (open_write && code == HAUL_EPATH) {
    endpoint->base.link->fail(endpoint->base.link, HAUL_EPEER,
                              "a data connection ended in the middle of writes");
    code = HAUL_EPEER;
  } else if (last && code == HAUL_EPATH) {
    endpoint->base.link->leaves(endpoint->base.link);
  }
  error_set(code, 0, endpoint->base.link->name, "is the peer still there? its log says more",
            "the connection to the peer ended");
  for (struct list *item; (item = list_take(&works));) {
    struct work *work = list_entry(item, struct work, link);
    work->state = NULL;
    work->done(work, code);
  }
  loop_notify(endpoint->base.link->fabric->loop);
}

static bool is_unsent(const struct tcp_rail *rail) {
  return atomic_load_explicit(&rail->unsent, memory_order_relaxed);
}

void rail_push(struct tcp_rail *rail) {
  bool again = is_unsent(rail);
  for (unsigned left = PUSHES; again && left > 0; left--) {
    combiner_lock(&rail->endpoint->combiner);
    bool more = tcp_advance(rail->endpoint, rail);
    again = more && left > 1;
    if (more && !again)
      rail_uncork(rail);
    combiner_unlock(&rail->endpoint->combiner);
    if (again)
      rail_look_aside(rail);
  }
}

void rail_look_aside(const struct tcp_rail *rail) {
  struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  if (!express || express == rail || express->stream.fd < 0 || express->broken)
    return;
  if (!rail_receive(express))
    return;
  express->idle_polls = 0;
  rail_push(express);
}

/* Who polls without end comes back at once, so its ACKs wait for the next round: what the
 * application answers in between takes them along. */
bool rail_poll(struct tcp_rail *rail, int64_t spin_ns) {
  bool came = false;
  if (rail->stream.fd < 0)
    return false;
  rail_push(rail);
  if (rail->blocked || stream_holds(&rail->stream) ||
      (spin_ns > 0 && rail->idle_polls < POLL_PATIENCE)) {
    came = rail_receive(rail);
    rail->idle_polls = came ? 0 : rail->idle_polls + 1;
  }
  if (came && spin_ns != HAUL_SPIN_ALWAYS)
    rail_push(rail);
  if (rail->broken)
    rail_close(rail, HAUL_EPATH);
  return came;
}
