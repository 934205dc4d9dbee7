/* SPDX-License-Identifier: MIT */
#include "fabric/tcp/rails.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

#define TURNS         8    /* of one rail before other connections have theirs */
#define POLL_PATIENCE 4096 /* fruitless polls before a rail waits for its event again */

void rail_watch(struct tcp_rail *rail) {
  bool unsent = atomic_load_explicit(&rail->tx.unsent, memory_order_relaxed);
  uint32_t events = (rail->rx.blocked ? 0u : EPOLLIN) | (unsent ? EPOLLOUT : 0u);
  loop_change(rail->endpoint->base.link->fabric->loop, &rail->watch, events);
}

static void rail_ready(struct watch *watch, uint32_t events) {
  struct tcp_rail *rail = list_entry(watch, struct tcp_rail, watch);
  struct tcp_endpoint *endpoint = rail->endpoint;
  rail->rx.idle_polls = 0;
  loop_poller_resume(endpoint->base.link->fabric->loop, &endpoint->poller);
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

/* Sends unsent frames, in a bounded number of turns. */
static void rail_flush(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  bool more = atomic_load_explicit(&rail->tx.unsent, memory_order_relaxed);
  for (unsigned turn = 1; more && turn <= TURNS; turn++) {
    combiner_lock(&endpoint->combiner);
    more = tcp_advance(endpoint, rail);
    if (turn == TURNS)
      rail_uncork(rail);
    combiner_unlock(&endpoint->combiner);
    if (more && turn < TURNS)
      rail_serve_express(rail);
  }
}

void rail_serve_express(const struct tcp_rail *rail) {
  struct tcp_rail *express = rail->endpoint->rails[TCP_EXPRESS];
  if (!express || express == rail || !rail_is_open(express) || !rail_receive(express))
    return;
  express->rx.idle_polls = 0;
  rail_flush(express);
}

/* With HAUL_SPIN_ALWAYS the application polls again at once, so ACKs wait for that round, to share
 * a call with its next requests. */
bool rail_poll(struct tcp_rail *rail, int64_t spin_ns) {
  bool came = false;
  if (rail->stream.fd < 0)
    return false;
  rail_flush(rail);
  if (rail->rx.blocked || stream_holds(&rail->stream) ||
      (spin_ns > 0 && rail->rx.idle_polls < POLL_PATIENCE)) {
    came = rail_receive(rail);
    rail->rx.idle_polls = came ? 0 : rail->rx.idle_polls + 1;
  }
  if (came && spin_ns != HAUL_SPIN_ALWAYS)
    rail_flush(rail);
  if (rail->broken)
    rail_close(rail, HAUL_EPATH);
  return came;
}

bool rail_is_idle(const struct tcp_rail *rail, int64_t spin_ns) {
  bool spins = spin_ns > 0 && rail->rx.idle_polls < POLL_PATIENCE;
  bool unsent = atomic_load_explicit(&rail->tx.unsent, memory_order_relaxed);
  return rail->stream.fd < 0 ||
         !(unsent || spins || rail->broken || rail->rx.blocked || stream_holds(&rail->stream));
}

void rail_check_stall(struct tcp_rail *rail, int64_t now, int64_t bound) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  struct link *link = endpoint->base.link;
  const struct rail_rx *rx = &rail->rx;
  if (rail->stream.fd < 0 || now - atomic_load(&link->heard) > bound)
    return;
  bool inside = (rx->state != RX_HEAD || rx->inbox_end != rx->inbox_start) && !rx->blocked;
  combiner_lock(&endpoint->combiner);
  bool unsent = !list_empty(&rail->tx.queue) || stream_owes(&rail->stream);
  bool stuck = unsent && now - rail->tx.moved > bound;
  combiner_unlock(&endpoint->combiner);
  if (inside && now - rx->moved > bound)
    link->fail(link, HAUL_EPEER, "it stopped in the middle of a payload");
  else if (stuck)
    link->fail(link, HAUL_EPEER, "it does not read from its data connection");
  else if (rail->parking == RAIL_ASKED && now - rail->tx.moved > bound)
    link->fail(link, HAUL_EPEER, "it does not say whether a data connection may be parked");
}

static void close_pipe(struct tcp_rail *rail) {
  if (rail->tx.pipe[0] >= 0) {
    close(rail->tx.pipe[0]);
    close(rail->tx.pipe[1]);
  }
  rail->tx.pipe[0] = rail->tx.pipe[1] = -1;
}

static void close_descriptors(struct tcp_rail *rail) {
  loop_unwatch(rail->endpoint->base.link->fabric->loop, &rail->watch);
  stream_close(&rail->stream);
  close_pipe(rail);
  rail->tx.in_pipe = 0;
  rail->tx.corked = false;
  rail->rx.inbox_start = rail->rx.inbox_end = 0;
}

/* With the endpoint's lock. */
static void drop_frames(struct tcp_rail *rail, struct list *frames) {
  list_each_safe(item, frames) {
    struct tx_frame *frame = list_entry(item, struct tx_frame, link);
    if (frame->rail == rail)
      tx_drop(frame);
  }
}

/* Closes a parked rail; with both locks. Its frames tell at most that it is parked. */
static void retire(struct tcp_rail *rail) {
  close_descriptors(rail);
  drop_frames(rail, &rail->tx.queue);
  rail->endpoint->retired++;
}

/* Loopback has no congestion: pacing (BBR) costs a third of the speed (bench/run tcp-write). The
 * system sizes the buffers of TCP: fixed ones of 1 MiB and 512 KiB cost a third of the processors'
 * time. Those of Unix sockets have one size, which is small. */
static void tune_socket(int fd, const struct link *link) {
  int send_bytes = 1 << 20;
  size_t rate = link->fabric->config->tcp_rate;
  if (rate != SIZE_MAX) /* TCP paces itself, without a queueing discipline */
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
  if (link->local)
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
  else if (link->loopback)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

void rail_free(struct tcp_rail *rail) {
  if (!rail)
    return;
  XXH3_freeState(rail->tx.checksum.state);
  XXH3_freeState(rail->rx.checksum.state);
  alloc_free(rail);
}

/* With both locks. Rails come in order, without gaps. */
static int make_rail(struct tcp_endpoint *endpoint, unsigned index) {
  if (endpoint->rails[index])
    return 0;
  if (index != endpoint->rail_count && index != TCP_EXPRESS)
    return error_set(HAUL_EPROTO, 0, NULL, NULL, "tcp rail %u out of order", index);
  if (!endpoint->slots)
    endpoint->slots = alloc_zero(TCP_WINDOW, sizeof *endpoint->slots);
  if (!endpoint->slots)
    return error_memory("tcp requests");
  struct tcp_rail *rail = alloc_zero(1, sizeof *rail);
  if (rail) {
    rail->tx.checksum.state = XXH3_createState();
    rail->rx.checksum.state = XXH3_createState();
  }
  if (!rail || !rail->tx.checksum.state || !rail->rx.checksum.state) {
    rail_free(rail);
    return error_memory("tcp rail");
  }
  rail->endpoint = endpoint;
  rail->index = index;
  rail->stream = STREAM_NONE;
  rail->tx.pipe[0] = rail->tx.pipe[1] = -1;
  list_init(&rail->tx.queue);
  endpoint->rails[index] = rail;
  endpoint->rail_count += index != TCP_EXPRESS;
  return 0;
}

/* With both locks. All rails have the first one's protection. */
static void start_rail(struct tcp_rail *rail, struct stream stream) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  bool encrypted = stream.protection >= STREAM_PROCESS; /* nothing is spliced */
  rail->stream = stream;
  rail->broken = rail->rx.blocked = false;
  endpoint->retired -= rail->parking == RAIL_PARKED;
  rail->parking = RAIL_IN_USE;
  rail->outstanding = 0;
  endpoint->had_rails = true;
  rail->rx.idle_polls = POLL_PATIENCE; /* no polls before its first event */
  rail->tx.calm = true;                /* as the new socket's settings */
  rail->tx.may_splice = !atomic_load(&endpoint->base.no_zero_copy) && !encrypted;
  rail->rx.moved = rail->tx.moved = clock_now();
  if (rail->index == 0) {
    atomic_store(&endpoint->protection, (int)stream.protection);
    if (encrypted)
      atomic_store(&endpoint->base.no_zero_copy, true);
  }
  if (rail->index != TCP_EXPRESS) {
    unsigned open = atomic_fetch_add(&endpoint->open_rails, 1) + 1;
    if (open > atomic_load(&endpoint->rails_expected))
      atomic_store(&endpoint->rails_expected, open);
    atomic_store(&endpoint->base.open, true);
  }
  if (!endpoint->base.link->initiator)
    endpoint->dial.active = false;
  tcp_advance(endpoint, NULL);
}

int rail_open(struct tcp_endpoint *endpoint, unsigned index, struct stream stream) {
  struct link *link = endpoint->base.link;
  tune_socket(stream.fd, link);
  combiner_lock(&endpoint->combiner);
  int ended = atomic_load(&link->ended); /* stopped while connecting */
  int code = ended ? error_code(ended, link->name) : 0;
  if (code == 0 && endpoint_is_closed(&endpoint->base))
    code = error_set(HAUL_EPATH, 0, link->name, NULL, "%s", endpoint_reason(&endpoint->base));
  if (code == 0)
    code = make_rail(endpoint, index);
  struct tcp_rail *rail = endpoint->rails[index];
  if (code == 0 && rail->stream.fd >= 0 && rail->parking == RAIL_PARKED)
    retire(rail); /* its end is on its way */
  if (code == 0 && rail->stream.fd >= 0)
    code = error_set(HAUL_EPROTO, 0, NULL, NULL, "tcp rail %u is open already", index);
  if (code == 0)
    code = loop_watch(link->fabric->loop, &rail->watch, stream.fd, EPOLLIN, rail_ready);
  if (code == 0)
    start_rail(rail, stream);
  combiner_unlock(&endpoint->combiner);
  loop_poller_resume(link->fabric->loop, &endpoint->poller); /* the stream may hold bytes already */
  if (code == 0)
    tcp_start_stall_timer(endpoint);
  if (code)
    stream_close(&stream);
  return code;
}

void rail_forked(struct tcp_rail *rail) {
  if (rail->stream.fd >= 0)
    close(rail->stream.fd);
  close_pipe(rail);
}

/* Of payloads that are arriving or staged. */
static void drop_payloads(struct tcp_rail *rail) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  if (rail->rx.state != RX_HEAD) {
    rail_discard_payload(rail, 0);
    rail->rx.state = RX_HEAD;
  }
  list_each_safe(item, &endpoint->staged_receives) {
    struct staged_receive *staged = list_entry(item, struct staged_receive, link);
    if (staged->rail == rail)
      staged_receive_finish(staged, HAUL_EPATH);
  }
}

/* The last rail closes the path. With the endpoint's lock. */
static void close_path(struct tcp_endpoint *endpoint, int code, struct list *works) {
  backlog_empty(&endpoint->pending, works);
  if (code ==
      HAUL_EPATH) /* first: a transfer that finds no open path then reports that the peer left */
    atomic_store(&endpoint->base.link->failing, HAUL_EPEER);
  if (!endpoint_is_closed(&endpoint->base))
    endpoint_close(&endpoint->base, "the connection to the peer ended");
  atomic_store(&endpoint->base.open, false);
}

void rail_close(struct tcp_rail *rail, int code) {
  struct tcp_endpoint *endpoint = rail->endpoint;
  struct link *link = endpoint->base.link;
  struct list works = LIST_INIT(works);
  if (rail->stream.fd < 0)
    return;
  combiner_lock(&endpoint->combiner);
  if (rail->parking == RAIL_PARKED) {
    retire(rail);
    combiner_unlock(&endpoint->combiner);
    return;
  }
  close_descriptors(rail);
  bool begun = slots_drop(rail, &works);
  drop_frames(rail, &endpoint->staged_sends);
  drop_frames(rail, &rail->tx.queue);
  rail_parking_lost(rail);
  bool last = rail->index != TCP_EXPRESS && atomic_fetch_sub(&endpoint->open_rails, 1) == 1;
  if (last)
    close_path(endpoint, code, &works);
  else
    tcp_advance(endpoint, NULL); /* slots are free again */
  combiner_unlock(&endpoint->combiner);
  drop_payloads(rail);
  /* tcp is the path of last resort: without it the peer has usually ended. */
  if (code == HAUL_EPATH) {
    if (rail->index != TCP_EXPRESS)
      atomic_fetch_sub(&endpoint->rails_expected, 1);
    if (!last)
      atomic_fetch_add(&endpoint->base.rails_lost, 1);
    if (begun) {
      link->fail(link, HAUL_EPEER, "a data connection ended in the middle of writes");
      code = HAUL_EPEER;
    } else if (last) {
      link->last_path_lost(link);
    }
  }
  error_set(code, 0, link->name, "read the peer's log", "the connection to the peer ended");
  tcp_end_works(endpoint, &works, code);
}
