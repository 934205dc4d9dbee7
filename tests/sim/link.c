/* SPDX-License-Identifier: MIT
 * One program as a client of another: connects, and then draws operations until the connection
 * ends. Each operation knows what must hold after it. */
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "load.h"
#include "net.h"

/* Data of a program that died may arrive until its receiver has noticed that, which may be frozen
 * meanwhile. Of a program that lives, it must not: a new connection fences the old one off. */
#define LOOSE (2 * plan.liveness + 18 * S)

const char *const operation_names[OPERATIONS] = {"writes",  "reads",    "additions", "messages",
                                                 "ordered", "canceled", "drops",     "lists"};

/* An operation on a range of one lane. */
struct span {
  unsigned lane;
  size_t from, length;
  int64_t until; /* deadline, by the own clock */
};

static size_t local_size(void) {
  return plan.lane * 2 + 8;
}

static bool connected_to_this_life(const struct link *link) {
  return link->to->life == link->life && link->to->process && link->to->memory;
}

static void count(enum operation operation, int code) {
  if (code == 0)
    load.done[operation]++;
  else
    load.failed[operation]++;
  if (code < 0 && code > -64)
    load.codes[-code]++;
  sim_hash(100 + (uint64_t)operation, (uint64_t)(int64_t)code);
  sim_trace("%s: %s%s%s", operation_names[operation], code ? haul_error_name(code) : "ok",
            code ? ", " : "", code ? haul_error_last()->hint : "");
}

/* A path that could not be opened with the connection stays closed: connect again. */
static void proven(struct link *link, enum operation operation, int code) {
  count(operation, code);
  link->pathless |= code == HAUL_ENOPATH;
  if (code == 0 && load.phase == QUIET)
    link->proven[operation] = true;
}

/* Codes that only a defect or a broken network of bytes gives, never these faults. */
static void check_code(const char *call, int code) {
  if (code == HAUL_EPROTO || code == HAUL_ECHECKSUM || code == HAUL_EVERSION ||
      code == HAUL_ERANGE || code == HAUL_EACCESS || code == HAUL_EINVAL || code == HAUL_EAUTH)
    sim_fail("codes", "%s: %s (%s; %s)", call, haul_error_name(code), haul_error_last()->text,
             haul_error_last()->object);
}

/* ---- Spans ---- */

/* False: each lane waits for data of a dead program. */
static bool draw_span(struct link *link, struct span *span) {
  struct lane *lanes = link->to->lanes[link->from->number];
  span->lane = (unsigned)sim_below(LANES);
  for (unsigned i = 0; lanes[span->lane].loose_until > sim_now; i++) {
    if (i == LANES)
      return false;
    span->lane = (span->lane + 1) % LANES;
  }
  span->length = sim_chance(600000) ? 1 + sim_below(plan.lane < 256 ? plan.lane : 256)
                                    : 1 + sim_below(plan.lane);
  span->from = sim_below(plan.lane - span->length + 1);
  int64_t most = sim_chance(800000) ? 5 * S : 20 * MS;
  span->until = own_clock() + sim_between(100 * US, most);
  return true;
}

static struct haul_piece piece_of(const struct link *link, const struct span *span) {
  return (struct haul_piece){.local = span->from,
                             .remote = lane_offset(link->from->number, span->lane) + span->from,
                             .length = span->length};
}

/* Splits the span into up to four segments. */
static size_t split(const struct link *link, const struct span *span, struct haul_piece *pieces) {
  struct haul_piece whole = piece_of(link, span);
  size_t wanted = 1 + sim_below(4), made = 0;
  while (whole.length > 0) {
    struct haul_piece *piece = &pieces[made++];
    *piece = whole;
    if (made < wanted && whole.length > 1)
      piece->length = 1 + sim_below(whole.length - 1);
    whole.local += piece->length;
    whole.remote += piece->length;
    whole.length -= piece->length;
    if (made == wanted && whole.length > 0) {
      piece->length += whole.length;
      break;
    }
  }
  return made;
}

static struct haul_transfer_options draw_options(const struct span *span) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.deadline = span->until;
  options.flags = sim_below(100) < plan.checksum_share ? HAUL_CHECKSUM : 0;
  options.priority = (int)sim_below(3) - 1;
  return options;
}

/* ---- Writes ---- */

static void fill(struct link *link, const struct span *span) {
  uint64_t pattern = sim_random() | 1;
  for (size_t i = 0; i < span->length; i++) {
    pattern = pattern * 6364136223846793005u + 1442695040888963407u;
    link->bytes[span->from + i] = (uint8_t)(pattern >> 56);
  }
}

static struct lane *lane_of(const struct link *link, const struct span *span) {
  return &link->to->lanes[link->from->number][span->lane];
}

static void check_own_lane(const struct link *link, const struct span *span, const char *when) {
  if (connected_to_this_life(link))
    check_lane(link->to, link->from->number, span->lane, when);
}

/* The write is in flight: its bytes are undefined. */
static void write_begins(struct link *link, const struct span *span) {
  static uint64_t generations; /* of all links: no two writes share one */
  check_own_lane(link, span, "before a write");
  link->generation = ++generations;
  if (connected_to_this_life(link))
    memset(lane_of(link, span)->undefined + span->from, 1, span->length);
}

/* Complete: the bytes are there now, and stay. Failed: they are undefined until a later write. */
static void write_ended(struct link *link, const struct span *span, int code) {
  struct lane *lane = lane_of(link, span);
  check_code("haul_write", code);
  if (!connected_to_this_life(link))
    return;
  if (code == 0) {
    memcpy(lane->content + span->from, link->bytes + span->from, span->length);
    memset(lane->undefined + span->from, 0, span->length);
    check_lane(link->to, link->from->number, span->lane, "after a completed write");
    if (lane->missed == link->generation)
      sim_fail("order", "a message overtook a write of %zu bytes", span->length);
  } else {
    check_lane(link->to, link->from->number, span->lane, "after a failed write");
  }
}

static void do_write(struct link *link) {
  struct span span;
  struct haul_piece pieces[4];
  if (!draw_span(link, &span))
    return;
  struct haul_transfer_options options = draw_options(&span);
  size_t made = split(link, &span, pieces);
  fill(link, &span);
  write_begins(link, &span);
  struct limit limit = limit_begin("haul_write", span.until);
  int code = haul_write(link->remote, link->local, pieces, made, &options, NULL);
  limit_end(&limit);
  write_ended(link, &span, code);
  proven(link, WRITE, code);
}

/* Waits for the end of a transfer, whatever else fails. `limit` began with the transfer. */
static int await_end(haul_transfer *transfer, const struct limit *limit) {
  int code = haul_transfer_wait(transfer, limit->until + S);
  limit_end(limit);
  if (haul_transfer_test(transfer) == 1)
    sim_fail("deadline", "a transfer goes on after its deadline");
  haul_transfer_release(transfer);
  return code;
}

static void do_cancel(struct link *link) {
  struct span span;
  struct haul_piece pieces[4];
  haul_transfer *transfer = NULL;
  if (!draw_span(link, &span))
    return;
  struct haul_transfer_options options = draw_options(&span);
  size_t made = split(link, &span, pieces);
  fill(link, &span);
  write_begins(link, &span);
  struct limit limit = limit_begin("a write that is canceled", span.until);
  int code = haul_write(link->remote, link->local, pieces, made, &options, &transfer);
  if (code == 0) {
    if (sim_chance(700000))
      pause_for(sim_between(0, 4 * (net.latency + net.jitter)));
    haul_transfer_cancel(transfer);
    code = await_end(transfer, &limit);
  }
  write_ended(link, &span, code);
  count(CANCEL, code == HAUL_ECANCELED ? 0 : code);
}

/* ---- Reads and additions ---- */

static void do_read(struct link *link) {
  struct span span;
  if (!draw_span(link, &span))
    return;
  struct haul_transfer_options options = draw_options(&span);
  struct haul_piece piece = piece_of(link, &span);
  uint8_t *to = link->bytes + plan.lane + span.from;
  piece.local += plan.lane;
  memset(to, 0x77, span.length);
  struct limit limit = limit_begin("haul_read", span.until);
  int code = haul_read(link->local, link->remote, &piece, 1, &options, NULL);
  limit_end(&limit);
  check_code("haul_read", code);
  const struct lane *lane = lane_of(link, &span);
  if (code == 0 && connected_to_this_life(link) && lane->loose_until <= sim_now)
    for (size_t i = 0; i < span.length; i++)
      if (to[i] != lane->content[span.from + i] && !lane->undefined[span.from + i])
        sim_fail("reads", "byte %zu of %zu is %02x, not %02x", i, span.length, to[i],
                 lane->content[span.from + i]);
  proven(link, READ, code);
}

/* Each addition takes place at most once; one that failed may have. */
static void do_add(struct link *link) {
  struct counter *counter = &link->to->counters[link->from->number];
  struct span span = {.until = own_clock() + sim_between(100 * US, 3 * S)};
  struct haul_transfer_options options = draw_options(&span);
  options.flags = 0;
  uint64_t before = 0, *result = (uint64_t *)(void *)(link->bytes + plan.lane * 2);
  counter->unsure++;
  struct limit limit = limit_begin("haul_fetch_add", span.until);
  int code = haul_fetch_add(link->local, plan.lane * 2, link->remote,
                            counter_offset(link->from->number), 1, &options, NULL);
  limit_end(&limit);
  check_code("haul_fetch_add", code);
  memcpy(&before, result, sizeof before);
  if (code == 0 && connected_to_this_life(link)) {
    if (before < counter->low || before > counter->low + counter->unsure - 1)
      sim_fail("atomics", "a counter was %llu, not within %llu and %llu",
               (unsigned long long)before, (unsigned long long)counter->low,
               (unsigned long long)(counter->low + counter->unsure - 1));
    counter->unsure -= before - counter->low + 1;
    counter->low = before + 1;
  }
  proven(link, ADD, code);
}

/* ---- Messages ---- */

/* `span` NULL: without a write before. */
static int send_message(struct link *link, const struct span *span, int64_t until) {
  uint8_t bytes[4096];
  uint64_t head[8] = {link->connection, link->sequence + 1, sim_random()};
  size_t length = sizeof head + sim_below(sizeof bytes - sizeof head);
  if (span) {
    head[3] = span->lane + 1;
    head[4] = link->generation;
    head[5] = span->from;
    head[6] = span->length;
  }
  memcpy(bytes, head, sizeof head);
  for (size_t i = sizeof head; i < length; i++)
    bytes[i] = (uint8_t)(head[2] + i);
  link->sequence++;
  struct limit limit = limit_begin("haul_message_send", until);
  int code = haul_message_send(link->peer, head[1], bytes, length, until);
  limit_end(&limit);
  check_code("haul_message_send", code);
  sim_trace("message %llu of connection %llx: %s", (unsigned long long)head[1],
            (unsigned long long)head[0], code ? haul_error_name(code) : "ok");
  if (code)
    link->sequence--; /* nothing was sent */
  return code;
}

static void do_message(struct link *link) {
  proven(link, MESSAGE, send_message(link, NULL, own_clock() + sim_between(MS, 3 * S)));
}

/* A message comes after the data of a write that began before it. */
static void do_ordered(struct link *link) {
  struct span span;
  haul_transfer *transfer = NULL;
  if (!draw_span(link, &span))
    return;
  struct haul_transfer_options options = draw_options(&span);
  struct haul_piece piece = piece_of(link, &span);
  fill(link, &span);
  write_begins(link, &span);
  int code = haul_write(link->remote, link->local, &piece, 1, &options, &transfer);
  if (code == 0) {
    int sent = send_message(link, &span, own_clock() + sim_between(MS, 3 * S));
    struct limit limit = limit_begin("the write before a message",
                                     span.until > own_clock() ? span.until : own_clock());
    code = await_end(transfer, &limit);
    count(MESSAGE, sent);
  }
  write_ended(link, &span, code);
  count(ORDERED, code);
}

static void do_list(struct link *link) {
  struct haul_published entries[4];
  size_t room = 4;
  int64_t until = own_clock() + sim_between(MS, 3 * S);
  struct limit limit = limit_begin("haul_peer_list", until);
  int code = haul_peer_list(link->peer, until, entries, &room);
  limit_end(&limit);
  check_code("haul_peer_list", code);
  if (code == 0 && (room != 1 || strcmp(entries[0].name, "memory") != 0))
    sim_fail("lists", "a peer publishes %zu names", room);
  count(LIST, code);
}

/* ---- Connections ---- */

static int look_up(struct link *link) {
  int64_t until = own_clock() + sim_between(10 * MS, 4 * S);
  struct limit limit = limit_begin("haul_peer_lookup", until);
  int code = haul_peer_lookup(link->peer, "memory", until, &link->remote);
  limit_end(&limit);
  check_code("haul_peer_lookup", code);
  if (code)
    return code;
  struct haul_place place = {plan.device_local ? HAUL_SIM : HAUL_HOST, 0};
  return haul_region_alloc(link->from->node, place, local_size(), 0, &link->local);
}

static int open_connection(struct link *link) {
  unsigned number;
  bool near = link->to->host == link->from->host;
  const char *address = link->to->addresses[near && sim_chance(700000)];
  uint64_t shortages = openssl_shortages;
  bool rejected = address == link->to->addresses[0] && !share_keys(link->from, link->to);
  int64_t until = own_clock() + sim_between(10 * MS, 5 * S);
  struct limit limit = limit_begin("haul_peer_connect", until);
  int code = haul_peer_connect(link->from->node, address, until, &link->peer);
  limit_end(&limit);
  if (rejected && code == 0)
    sim_fail("keys", "program %u accepts %u, which has another key", link->from->number,
             link->to->number);
  if (rejected && code == HAUL_EAUTH)
    load.rejections++;
  /* OpenSSL takes a shortage during decryption for a forged record. */
  if (code != HAUL_EAUTH || (!rejected && openssl_shortages == shortages))
    check_code("haul_peer_connect", code);
  if (code == 0) {
    link->connection = sim_random();
    link->sequence = 0;
    if (sscanf(haul_peer_name(link->peer), "p%u.%u", &number, &link->life) != 2 ||
        number != link->to->number)
      sim_fail("names", "%s answers as %s", address, haul_peer_name(link->peer));
    code = look_up(link);
  }
  sim_trace("connection to program %u: %s", link->to->number, code ? haul_error_name(code) : "ok");
  if (code == 0)
    link->bytes = region_bytes(link->local);
  return code;
}

void loosen_lanes(struct program *target, unsigned writer) {
  struct lane *lanes = target->lanes[writer];
  for (unsigned i = 0; target->memory && i < LANES; i++)
    if (memchr(lanes[i].undefined, 1, plan.lane))
      lanes[i].loose_until = sim_now + LOOSE;
}

static void close_connection(struct link *link) {
  link->bytes = NULL;
  struct limit limit = limit_begin("closing a connection", own_clock() + 30 * S);
  haul_remote_release(link->remote);
  haul_region_release(link->local);
  haul_peer_close(link->peer);
  limit_end(&limit);
  link->remote = NULL;
  link->local = NULL;
  link->peer = NULL;
}

static enum operation draw_operation(const struct link *link) {
  if (load.phase == QUIET)
    for (unsigned i = 0; i <= MESSAGE; i++)
      if (!link->proven[i] && operation_works((enum operation)i))
        return (enum operation)i;
  for (;;) {
    unsigned drawn = (unsigned)sim_below(OPERATIONS);
    if ((plan.operations >> drawn & 1) && operation_works((enum operation)drawn))
      return (enum operation)drawn;
  }
}

static void use_connection(struct link *link) {
  static void (*const run[OPERATIONS])(struct link *) = {
      [WRITE] = do_write,     [READ] = do_read,     [ADD] = do_add,  [MESSAGE] = do_message,
      [ORDERED] = do_ordered, [CANCEL] = do_cancel, [LIST] = do_list};
  link->pathless = false;
  while (load.phase != STOPPING && !link->pathless && haul_peer_status(link->peer) == 0) {
    enum operation operation = draw_operation(link);
    if (operation == DROP) {
      count(DROP, 0);
      if (sim_chance(100000))
        return;
    } else {
      run[operation](link);
    }
    if (sim_chance(load.phase == QUIET ? 1000000 : plan.pause_share))
      pause_for(sim_between(0, plan.pause));
  }
}

void *link_main(void *argument) {
  struct link *link = argument;
  while (load.phase != STOPPING) {
    if (open_connection(link) == 0)
      use_connection(link);
    close_connection(link);
    if (load.phase != STOPPING)
      pause_for(sim_between(0, load.phase == QUIET ? 50 * MS : S));
  }
  link->ended = true;
  return NULL;
}
