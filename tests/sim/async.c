/* SPDX-License-Identifier: MIT
 * Operations with handles: several transfers at once that end by callbacks, writes of many
 * segments, canceled reads, the release of memory in use. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "net.h"
#include "operations.h"

#define SLACK (2 * S) /* of a callback after the deadline */

/* A write or a read of a batch, in a lane of its own. */
struct flight {
  struct span span;
  int64_t frozen;     /* `frozen_for` of the program when the deadline was drawn */
  struct limit limit; /* of `done` */
  haul_transfer *transfer;
  bool writes, released, ended;
  unsigned calls; /* of `done` */
  int code;
};

static void on_done(void *user, haul_transfer *transfer) {
  struct flight *flight = user;
  if (flight->calls++ > 0)
    sim_fail("ends", "`done` of a transfer is called twice");
  flight->code = haul_transfer_test(transfer);
  if (flight->code == 1)
    sim_fail("ends", "`done` of a transfer is called before its end");
  if (sim_chance(500000)) { /* it may release the handle */
    flight->released = true;
    haul_transfer_release(transfer);
  }
  flight->ended = true; /* last, as each call lets others run */
}

static int start_flight(struct link *link, struct flight *flight) {
  struct haul_transfer_options options = draw_options(&flight->span);
  struct haul_piece pieces[4];
  flight->limit = limit_begin("`done` of a transfer", flight->span.until);
  flight->limit.frozen_before = flight->frozen; /* others of the batch started in between */
  options.done = on_done;
  options.user = flight;
  if (sim_chance(300000))
    options.flags |= HAUL_MORE;
  if (flight->writes) {
    fill(link, &flight->span);
    write_begins(link, &flight->span);
    size_t made = split(link, &flight->span, pieces);
    return haul_write(link->remote, link->local, pieces, made, &options, &flight->transfer);
  }
  pieces[0] = piece_of(link, &flight->span);
  pieces[0].local += plan.lane;
  return haul_read(link->local, link->remote, pieces, 1, &options, &flight->transfer);
}

/* Without a thread of the node, the caller that drives it calls `done`. */
static void drive(struct link *link) {
  if (!plan.caller_progress || link->from->leaves)
    return;
  link->busy = true;
  haul_node_progress(link->from->node, HAUL_NO_WAIT);
  link->busy = false;
}

/* Nobody waits for the transfers: the node itself has to end them. */
static void await_flight(struct link *link, const struct flight *flight) {
  while (!flight->ended) {
    drive(link);
    pause_for(sim_between(10 * US, 5 * MS));
    limit_end(&flight->limit); /* not yet beyond it */
  }
}

static void end_flight(struct link *link, struct flight *flight, int started) {
  if (started == 0)
    await_flight(link, flight);
  int code = started ? started : flight->code;
  if (flight->writes)
    write_ended(link, &flight->span, code);
  else
    read_ended(link, &flight->span, link->bytes + plan.lane + flight->span.from, code);
  if (started == 0 && !flight->released)
    haul_transfer_release(flight->transfer);
  count(link, BATCH, code);
}

/* Spans share the offsets of the local region: a lane's length divided by the lanes is the share of
 * each. */
static bool draw_flight(struct link *link, unsigned lane, struct flight *flight) {
  size_t share = plan.lane / LANES;
  *flight = (struct flight){.writes = sim_chance(600000)};
  flight->frozen = process_current()->frozen_for;
  if (!draw_span_in(link, lane, &flight->span))
    return false;
  flight->span.from = lane * share + sim_below(share);
  flight->span.length = 1 + sim_below(share - flight->span.from % share);
  if (flight->span.from + flight->span.length > (lane + 1) * share)
    flight->span.length = (lane + 1) * share - flight->span.from;
  if (!is_calm() && sim_chance(200000))
    flight->span.until = own_clock() + sim_between(1, 2 * MS);
  return true;
}

void do_batch(struct link *link) {
  struct flight flights[BATCH_MOST];
  int started[BATCH_MOST];
  size_t made = 0;
  for (unsigned lane = 0; lane < LANES; lane++)
    if (sim_chance(700000) && draw_flight(link, lane, &flights[made]))
      made++;
  for (size_t i = 0; i < made; i++)
    started[i] = start_flight(link, &flights[i]);
  for (size_t i = 0; i < made; i++)
    end_flight(link, &flights[i], started[i]);
}

/* Segments of one byte with gaps, which are together in local memory, in any order. */
void do_scatter(struct link *link) {
  struct span span;
  if (!draw_span(link, &span))
    return;
  span.stride = 1 + sim_below(3);
  size_t made = (span.length + span.stride - 1) / span.stride;
  /* A device copies one segment after the other, in milliseconds each. */
  size_t most = plan.device_latency ? SCATTER_MOST / 10 : SCATTER_MOST;
  if (made > most) {
    span.length = most * span.stride;
    made = most;
  }
  struct haul_transfer_options options = draw_options(&span);
  struct haul_piece *pieces = malloc(made * sizeof *pieces);
  uint8_t *packed = link->bytes + plan.lane * 2 + 8;
  fill(link, &span);
  for (size_t i = 0; i < made; i++) {
    struct haul_piece piece = piece_of(link, &span);
    piece.remote += i * span.stride;
    piece.local = plan.lane * 2 + 8 + i;
    piece.length = 1;
    pieces[i] = piece;
    packed[i] = link->bytes[span.from + i * span.stride];
  }
  for (size_t i = made - 1; i > 0 && sim_chance(300000); i--) {
    size_t other = sim_below(i + 1);
    struct haul_piece piece = pieces[i];
    pieces[i] = pieces[other];
    pieces[other] = piece;
  }
  write_begins(link, &span);
  struct limit limit = limit_begin("haul_write", span.until);
  int code = haul_write(link->remote, link->local, pieces, made, &options, NULL);
  limit_end(&limit);
  free(pieces);
  write_ended(link, &span, code);
  count(link, SCATTER, code);
}

static void check_untouched(const uint8_t *bytes, size_t length, const char *what) {
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != 0x66)
      sim_fail("touched", "byte %zu of %zu of %s has changed", i, length, what);
}

void do_cancel_read(struct link *link) {
  struct span span;
  haul_transfer *transfer = NULL;
  if (!draw_span(link, &span))
    return;
  struct haul_transfer_options options = draw_options(&span);
  struct haul_piece piece = piece_of(link, &span);
  uint8_t *to = link->bytes + plan.lane + span.from;
  piece.local += plan.lane;
  int code = haul_read(link->local, link->remote, &piece, 1, &options, &transfer);
  if (code == 0) {
    if (sim_chance(700000))
      pause_for(sim_between(0, 4 * (net.latency + net.jitter)));
    haul_transfer_cancel(transfer);
    struct limit limit = limit_begin("a read that is canceled", own_clock());
    code = await_end(transfer, &limit);
    memset(to, 0x66, span.length);
    pause_for(sim_between(0, 8 * (net.latency + net.jitter)));
    check_untouched(to, span.length, "the destination of a read that has ended");
  }
  check_read_code(link, &span, code);
  count(link, CANCEL_READ, code == HAUL_ECANCELED ? 0 : code);
}

/* Local memory of a read: allocated, or wrapped. */
static int make_destination(struct link *link, void **wrapped, haul_region **region) {
  struct haul_place place = {plan.device_local ? HAUL_SIM : HAUL_HOST, 0};
  *wrapped = NULL;
  if (!plan.wraps || plan.device_local)
    return haul_region_alloc(link->from->node, place, plan.lane, 0, region);
  void *memory =
      world_mmap(NULL, plan.lane, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return HAUL_ENOMEM;
  int code = haul_region_wrap(link->from->node, memory, plan.lane, region);
  if (code)
    world_munmap(memory, plan.lane);
  else
    *wrapped = memory;
  return code;
}

static void free_destination(void *wrapped, haul_region *region) {
  haul_region_release(region);
  if (wrapped)
    world_munmap(wrapped, plan.lane);
}

/* Memory of the pool that another region gets next is not written to any more. */
static void check_next_region(struct link *link) {
  haul_region *region = NULL;
  void *wrapped;
  if (make_destination(link, &wrapped, &region) != 0)
    return;
  uint8_t *bytes = region_bytes(region);
  memset(bytes, 0x66, plan.lane);
  pause_for(sim_between(0, 8 * (net.latency + net.jitter)));
  check_untouched(bytes, plan.lane, "a new region");
  free_destination(wrapped, region);
}

static void read_and_release(struct link *link, const struct span *span) {
  struct haul_transfer_options options = draw_options(span);
  struct haul_piece piece = piece_of(link, span);
  haul_region *region = NULL;
  haul_transfer *transfer = NULL;
  void *wrapped;
  int code = make_destination(link, &wrapped, &region);
  if (code == 0)
    code = haul_read(region, link->remote, &piece, 1, &options, &transfer);
  bool started = code == 0;
  if (started && sim_chance(700000))
    pause_for(sim_between(0, 4 * (net.latency + net.jitter)));
  struct limit limit = limit_begin("a release", own_clock() + plan.liveness);
  if (region)
    free_destination(wrapped, region);
  limit_end(&limit);
  if (started) {
    limit = limit_begin("a transfer whose region is released", own_clock());
    while ((code = haul_transfer_test(transfer)) == 1) { /* its last thread is about to say so */
      pause_for(100 * US);
      limit_end(&limit);
    }
    haul_transfer_release(transfer);
    check_next_region(link);
  }
  check_code("haul_read", code);
  count(link, RELEASE, code == HAUL_ECANCELED ? 0 : code);
}

void do_release(struct link *link) {
  struct span span;
  if (!draw_span(link, &span) || link->from->leaves)
    return;
  link->busy = true;
  read_and_release(link, &span);
  link->busy = false;
}

#define HANDSHAKE (5 * S) /* the default of `handshake` */

int world_socket(int family, int type, int protocol);
int world_connect(int descriptor, const struct sockaddr *name, socklen_t length);
ssize_t world_recv(int descriptor, void *bytes, size_t length, int flags);
int world_close(int descriptor);

static int connect_silently(const char *name) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  memcpy(to.sun_path + 1, name, strlen(name));
  int descriptor = world_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor >= 0 && world_connect(descriptor, (struct sockaddr *)&to, length) != 0) {
    world_close(descriptor);
    return -1;
  }
  return descriptor;
}

/* The other side ends it when the time for a handshake is over. */
void do_silent(struct link *link) {
  char byte;
  if (link->to->host != link->from->host || !sim_chance(is_calm() ? 100000 : 10000))
    return;
  bool calm = is_calm();
  int descriptor = connect_silently(link->to->addresses[1] + strlen("unix://@"));
  if (descriptor < 0)
    return;
  int64_t begin = sim_now;
  ssize_t got;
  while ((got = world_recv(descriptor, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN &&
         load.phase != STOPPING && sim_now - begin < HANDSHAKE + 3 * S)
    pause_for(50 * MS);
  bool waits = got < 0 && errno == EAGAIN && load.phase != STOPPING;
  world_close(descriptor);
  if (waits && calm && !plan.caller_progress) /* whose program may not run its node for so long */
    sim_fail("handshakes", "a connection that says nothing is open for %.3f s",
             (double)(sim_now - begin) / S);
  count(link, SILENT, 0);
}
