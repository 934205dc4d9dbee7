/* SPDX-License-Identifier: MIT
 * One program as a client of another: connects, and then draws operations until the connection
 * ends. Each operation knows what must hold after it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "cards.h"
#include "net.h"
#include "operations.h"

/* Data of a program that died may arrive until its receiver has noticed that, which may be frozen
 * meanwhile. Of a program that lives, it must not: a new connection fences the old one off. */
#define LOOSE (2 * plan.silent + 18 * S)

#define CALM_DEADLINE (60 * S)
#define CALM_LIMIT    (10 * S) /* shorter than a quarter of a patient node's liveness timeout */
#define PROMPT        (2 * S)

const char *const operation_names[OPERATIONS] = {
    "writes",  "reads",     "additions",      "messages", "ordered",  "canceled", "drops", "lists",
    "batches", "scattered", "canceled reads", "releases", "silences", "shared",   "offers"};

/* The source of writes, the destination of reads, a result, and the segments of scattered writes.
 */
static size_t local_size(void) {
  return plan.lane * 3 + 8;
}

bool is_current(const struct link *link) {
  return link->to->life == link->life && link->to->process && link->to->memory &&
         link->to->publication == link->publication;
}

int64_t draw_deadline(int64_t low, int64_t high) {
  return own_clock() + (is_calm() ? CALM_DEADLINE : sim_between(low, high));
}

void count(struct link *link, enum operation operation, int code) {
  link->code = code ? code : link->code;
  link->stale |= code == HAUL_ESTALE;
  if (code == HAUL_EPEER && !link->epeer_at) {
    link->epeer_at = sim_now;
    link->epeer_frozen = process_current()->frozen_for;
  }
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
  count(link, operation, code);
  link->pathless |= code == HAUL_ENOPATH;
  if (code == 0 && load.phase == QUIET)
    link->proven[operation] = true;
}

/* Codes that only a defect or a broken network of bytes gives, never these faults. */
void check_code(const char *call, int code) {
  if (code == HAUL_EPROTO || code == HAUL_ECHECKSUM || code == HAUL_EVERSION ||
      code == HAUL_ERANGE || code == HAUL_EACCESS || code == HAUL_EINVAL || code == HAUL_EAUTH)
    sim_fail("codes", "%s: %s (%s; %s)", call, haul_error_name(code), haul_error_last()->text,
             haul_error_last()->object);
}

/* False: each lane waits for data of a dead program. */
bool draw_span(struct link *link, struct span *span) {
  unsigned first = (unsigned)sim_below(LANES);
  for (unsigned i = 0; i < LANES; i++)
    if (draw_span_in(link, (first + i) % LANES, span))
      return true;
  return false;
}

bool draw_span_in(struct link *link, unsigned lane, struct span *span) {
  if (link->to->lanes[link->from->number][lane].loose_until > sim_now)
    return false;
  *span = (struct span){.lane = lane, .stride = 1, .written = link->bytes};
  span->length = sim_chance(600000) ? 1 + sim_below(plan.lane < 256 ? plan.lane : 256)
                                    : 1 + sim_below(plan.lane);
  span->from = sim_below(plan.lane - span->length + 1);
  int64_t most = sim_chance(800000) ? 5 * S : 20 * MS;
  span->until = draw_deadline(100 * US, most);
  span->publication = link->to->publication;
  return true;
}

struct haul_piece piece_of(const struct link *link, const struct span *span) {
  return (struct haul_piece){.local = span->from,
                             .remote = lane_offset(link->from->number, span->lane) + span->from,
                             .length = span->length};
}

/* Splits the span into up to four segments. */
size_t split(const struct link *link, const struct span *span, struct haul_piece *pieces) {
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

struct haul_transfer_options draw_options(const struct span *span) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.deadline = span->until;
  options.flags = sim_below(100) < plan.checksum_share ? HAUL_CHECKSUM : 0;
  options.priority = (int)sim_below(3) - 1;
  return options;
}

void fill(struct link *link, const struct span *span) {
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
  if (is_current(link))
    check_lane(link->to, link->from->number, span->lane, when);
}

void write_begins(struct link *link, struct span *span) {
  static uint64_t generations; /* of all links: no two writes share one */
  check_own_lane(link, span, "before a write");
  link->generation = span->generation = ++generations;
  span->publication = link->to->publication;
  for (size_t i = 0; is_current(link) && i < span->length; i += span->stride)
    lane_of(link, span)->undefined[span->from + i] = 1;
}

/* A write to memory that was withdrawn meanwhile was complete before that, or is none. */
static void check_withdrawn(const struct link *link, const struct span *span, int code) {
  const struct program *to = link->to;
  if (code || to->life != link->life || !to->process || to->publication == link->publication)
    return;
  if (span->publication != link->publication)
    sim_fail("stale", "an operation is complete that began after the memory was withdrawn");
  size_t at = lane_offset(link->from->number, span->lane) + span->from;
  for (size_t i = 0; to->publication == link->publication + 1 && i < span->length;
       i += span->stride)
    if (to->withdrawn[at + i] != span->written[span->from + i])
      sim_fail("stale", "byte %zu of a completed write was not there when the memory was withdrawn",
               i);
}

/* ESTALE needs a withdrawal, or a NIC that refuses. */
static void check_stale(const struct link *link, int code) {
  if (code == HAUL_ESTALE && !verbs_refused_lately() && is_current(link) &&
      !link->to->withdrawing && !link->to->leaves)
    sim_fail("stale", "%s (%s), and nothing was withdrawn", haul_error_name(code),
             haul_error_last()->text);
}

/* Counts the bytes where the node certainly does: on a connection that goes on. */
static void count_bytes(const struct link *link, const struct span *span, int code, uint64_t *sum) {
  if (code == 0 && !peer_has_ended(link->peer))
    *sum += (span->length + span->stride - 1) / span->stride;
}

void write_ended(struct link *link, const struct span *span, int code) {
  struct lane *lane = lane_of(link, span);
  check_code("haul_write", code);
  check_stale(link, code);
  check_withdrawn(link, span, code);
  count_bytes(link, span, code, &link->from->written);
  if (!is_current(link))
    return;
  if (code == 0) {
    for (size_t i = span->from; i < span->from + span->length; i += span->stride) {
      lane->content[i] = span->written[i];
      lane->undefined[i] = 0;
    }
    check_lane(link->to, link->from->number, span->lane, "after a completed write");
    if (lane->missed == span->generation)
      sim_fail("order", "a message overtook a write of %zu bytes", span->length);
  } else {
    check_lane(link->to, link->from->number, span->lane, "after a failed write");
  }
}

/* Draws a write and fills its source. 0: no lane is free; else the number of segments. */
static size_t draw_write(struct link *link, struct span *span, struct haul_piece *pieces,
                         struct haul_transfer_options *options) {
  if (!draw_span(link, span))
    return 0;
  *options = draw_options(span);
  size_t made = split(link, span, pieces);
  fill(link, span);
  write_begins(link, span);
  return made;
}

static void do_write(struct link *link) {
  struct span span;
  struct haul_piece pieces[4];
  struct haul_transfer_options options;
  size_t made = draw_write(link, &span, pieces, &options);
  if (made == 0)
    return;
  struct limit limit = limit_begin("haul_write", span.until);
  int code = haul_write(link->remote, link->local, pieces, made, &options, NULL);
  limit_end(&limit);
  write_ended(link, &span, code);
  proven(link, WRITE, code);
}

/* Waits for the end of a transfer, whatever else fails. `limit` began with the transfer. A program
 * that was frozen meanwhile gets the time back. */
int await_end(haul_transfer *transfer, const struct limit *limit) {
  int64_t until = limit->until + S + cards_slack();
  int code = haul_transfer_wait(transfer, until);
  int64_t frozen = process_current()->frozen_for - limit->frozen_before;
  if (frozen > 0 && haul_transfer_test(transfer) == 1)
    code = haul_transfer_wait(transfer, until + frozen);
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
  struct haul_transfer_options options;
  size_t made = draw_write(link, &span, pieces, &options);
  if (made == 0)
    return;
  struct limit limit = limit_begin("a write that is canceled", span.until);
  int code = haul_write(link->remote, link->local, pieces, made, &options, &transfer);
  if (code == 0) {
    if (sim_chance(700000))
      pause_for(sim_between(0, 4 * (net.latency + net.jitter)));
    sim_instant("haul_transfer_cancel");
    limit.until = limit.until < own_clock() ? limit.until : own_clock(); /* it ends soon */
    haul_transfer_cancel(transfer);
    code = await_end(transfer, &limit);
  }
  write_ended(link, &span, code);
  count(link, CANCEL, code == HAUL_ECANCELED ? 0 : code);
}

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
  read_ended(link, &span, to, code);
  proven(link, READ, code);
}

/* A NIC may still write for a transfer that has failed. */
static bool may_change(const struct lane *lane, const struct span *span) {
  for (size_t i = 0; i < span->length; i++)
    if (lane->undefined[span->from + i])
      return true;
  return lane->loose_until > sim_now;
}

void check_read_code(struct link *link, const struct span *span, int code) {
  if (code != HAUL_ECHECKSUM || !may_change(lane_of(link, span), span))
    check_code("haul_read", code);
}

void read_ended(struct link *link, const struct span *span, const uint8_t *to, int code) {
  const struct lane *lane = lane_of(link, span);
  check_read_code(link, span, code);
  check_stale(link, code);
  if (code == 0 && link->to->life == link->life && span->publication != link->publication)
    sim_fail("stale", "a read is complete that began after the memory was withdrawn");
  count_bytes(link, span, code, &link->from->read);
  if (code == 0 && is_current(link) && lane->loose_until <= sim_now)
    for (size_t i = 0; i < span->length; i++)
      if (to[i] != lane->content[span->from + i] && !lane->undefined[span->from + i])
        sim_fail("reads", "byte %zu of %zu is %02x, not %02x", i, span->length, to[i],
                 lane->content[span->from + i]);
}

/* Each addition takes place at most once; one that failed may have. */
static void do_add(struct link *link) {
  struct counter *counter = &link->to->counters[link->from->number];
  struct span span = {.until = draw_deadline(100 * US, 3 * S)};
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
  if (code == 0 && is_current(link)) {
    if (before < counter->low || before > counter->low + counter->unsure - 1)
      sim_fail("atomics", "a counter was %llu, not within %llu and %llu",
               (unsigned long long)before, (unsigned long long)counter->low,
               (unsigned long long)(counter->low + counter->unsure - 1));
    counter->unsure -= before - counter->low + 1;
    counter->low = before + 1;
  }
  proven(link, ADD, code);
}

/* The codes after which an atomic operation may have taken place (haul.h). */
static enum outcome outcome_of(int code) {
  if (code == 0)
    return TOOK_PLACE;
  return code == HAUL_EPATH || code == HAUL_EPEER || code == HAUL_ETIMEDOUT ||
                 code == HAUL_ECANCELED || code == HAUL_ECLOSED || code == HAUL_ESTALE
             ? MAY_HAVE
             : DID_NOT;
}

static void do_share(struct link *link) {
  const struct program *to = link->to;
  struct span span = {.until = draw_deadline(100 * US, 3 * S)};
  struct haul_transfer_options options = draw_options(&span);
  options.flags = 0;
  size_t at = plan.lane * 2;
  uint64_t result;
  unsigned word;
  struct history_operation *operation = NULL;
  if (is_current(link))
    operation = history_begin(
        to->histories, (const uint64_t *)(const void *)(to->memory + shared_offset(0)), &word);
  if (!operation) {
    link->proven[SHARE] |= is_current(link) && load.phase == QUIET;
    return;
  }
  struct limit limit = limit_begin("an atomic", span.until);
  int code = operation->swaps
                 ? haul_compare_swap(link->local, at, link->remote, shared_offset(word),
                                     operation->expected, operation->operand, &options, NULL)
                 : haul_fetch_add(link->local, at, link->remote, shared_offset(word),
                                  operation->operand, &options, NULL);
  limit_end(&limit);
  check_code("an atomic", code);
  memcpy(&result, link->bytes + at, sizeof result);
  history_end(operation, outcome_of(code), result);
  proven(link, SHARE, code);
}

/* `span` NULL: without a write before. */
static int send_message(struct link *link, const struct span *span, int64_t until,
                        haul_peer *peer) {
  uint64_t head[8] = {link->connection, link->sequence + 1, sim_random()};
  size_t length = draw_message();
  uint8_t *bytes = malloc(length);
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
  int code = haul_message_send(peer, head[1], bytes, length, until);
  limit_end(&limit);
  free(bytes);
  check_code("haul_message_send", code);
  sim_trace("message %llu of connection %llx: %s", (unsigned long long)head[1],
            (unsigned long long)head[0], code ? haul_error_name(code) : "ok");
  if (code)
    link->sequence--; /* nothing was sent */
  return code;
}

/* At times many in a row, also while each that finds no memory fails. */
static void do_message(struct link *link) {
  bool many = sim_chance(100000);
  proven(link, MESSAGE, send_message(link, NULL, draw_deadline(MS, 3 * S), link->peer));
  while ((many || process_current()->refuse_memory > 0) && load.phase == FAULTY &&
         sim_chance(900000) && !peer_has_ended(link->peer))
    count(link, MESSAGE, send_message(link, NULL, draw_deadline(0, 20 * MS), link->peer));
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
    int sent = send_message(link, &span, draw_deadline(MS, 3 * S), link->peer);
    struct limit limit = limit_begin("the write before a message",
                                     span.until > own_clock() ? span.until : own_clock());
    code = await_end(transfer, &limit);
    count(link, MESSAGE, sent);
  }
  write_ended(link, &span, code);
  count(link, ORDERED, code);
}

static void do_list(struct link *link) {
  struct haul_published entries[4];
  size_t room = 4;
  int64_t until = draw_deadline(MS, 3 * S);
  struct limit limit = limit_begin("haul_peer_list", until);
  int code = haul_peer_list(link->peer, until, entries, &room);
  limit_end(&limit);
  check_code("haul_peer_list", code);
  if (code == 0 && !plan.withdraws && link->to->serves &&
      (room != 1 || strcmp(entries[0].name, "memory") != 0))
    sim_fail("lists", "a peer publishes %zu names", room);
  count(link, LIST, code);
}

/* ENAME and ESTALE: the memory is withdrawn just now. */
static int look_up(struct link *link) {
  int64_t until = draw_deadline(10 * MS, 4 * S);
  link->publication = link->to->publication;
  struct limit limit = limit_begin("haul_peer_lookup", until);
  call_begins(link, AMID_LOOKUP);
  int code = haul_peer_lookup(link->peer, "memory", until, &link->remote);
  limit_end(&limit);
  check_code("haul_peer_lookup", code);
  if (code == 0 && link->publication != link->to->publication)
    code = HAUL_ESTALE;
  if (code && link->remote) {
    haul_remote_release(link->remote);
    link->remote = NULL;
  }
  return code;
}

static int make_local(struct link *link) {
  struct haul_place place = {plan.device_local ? HAUL_SIM : HAUL_HOST, 0};
  return haul_region_alloc(link->from->node, place, local_size(), 0, &link->local);
}

static int open_connection(struct link *link) {
  unsigned number;
  bool near = link->to->host == link->from->host;
  const char *address = link->to->addresses[near && sim_chance(700000)];
  uint64_t shortages = openssl_shortages;
  bool rejected = address == link->to->addresses[0] && !share_keys(link->from, link->to);
  int64_t until = draw_deadline(10 * MS, 5 * S);
  struct limit limit = limit_begin("haul_peer_connect", until);
  call_begins(link, AMID_CONNECT);
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
    link->connection = sim_random() | 1; /* those of replies are even */
    link->sequence = 0;
    if (sscanf(haul_peer_name(link->peer), "p%u.%u", &number, &link->life) != 2 ||
        number != link->to->number)
      sim_fail("names", "%s answers as %s", address, haul_peer_name(link->peer));
    code = look_up(link);
  }
  if (code == 0)
    code = make_local(link);
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
  haul_peer *peer = link->peer;
  link->peer = NULL; /* watch.c */
  link->down_at = link->epeer_at = link->gone_at = 0;
  link->life = 0;
  bool calm = plan.calm_for > 0 && load.phase != FAULTY && sim_now >= load.calm_at;
  if (peer && calm && !peer_has_ended(peer)) {
    for (uint64_t i = sim_below(4); i > 0; i--) /* which come although it closes */
      send_message(link, NULL, draw_deadline(MS, 3 * S), peer);
    link->closed_connection = link->connection;
    link->closed_sequence = link->sequence;
  }
  struct limit limit = limit_begin("closing a connection", own_clock() + plan.liveness + 30 * S);
  haul_remote_release(link->remote);
  haul_region_release(link->local);
  haul_peer_close(peer);
  limit_end(&limit);
  link->remote = NULL;
  link->local = NULL;
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

#define LOOKUP OPERATIONS /* again, on the same connection */

static bool goes_on(const struct link *link) {
  return load.phase != STOPPING && !link->from->leaves;
}

static bool is_hot(const struct link *link) {
  return sim_now < link->to->hot_until && !solo_link();
}

static void look_again(struct link *link) {
  haul_remote_release(link->remote);
  link->remote = NULL;
  int code = look_up(link);
  link->code = code;
  if (code == 0)
    link->stale = false;
  else
    pause_for(is_hot(link) ? draw_moment() : sim_between(0, 20 * MS));
}

/* All is proven, and nothing happens until calm begins. */
static bool awaits_calm(const struct link *link) {
  if (plan.calm_for == 0 || load.phase != QUIET || is_calm() || link->stale)
    return false;
  for (unsigned i = 0; i <= MESSAGE; i++)
    if (!link->proven[i] && operation_works((enum operation)i))
      return false;
  return true;
}

static bool rests(const struct link *link) {
  const struct link *solo = solo_link();
  if (solo && (solo != link || solo_until() - sim_now > CALM_LIMIT))
    pause_for(solo_until() - sim_now);
  else if (awaits_calm(link))
    pause_for(sim_between(MS, S));
  else
    return false;
  return true;
}

struct moment {
  bool calm;
  int64_t at; /* without the time in which the other program may not respond */
};

static int64_t driven_time(const struct link *link) {
  return sim_now - link->to->undriven;
}

static struct moment moment_now(const struct link *link) {
  return (struct moment){is_calm(), driven_time(link)};
}

static const char *name_of(enum operation operation) {
  return operation == LOOKUP ? "lookups" : operation_names[operation];
}

/* The end of a connection ends the calls that use it. */
static void check_prompt(const struct link *link, enum operation operation) {
  int64_t paused = process_current()->frozen_for - link->down_frozen;
  if (operation != SILENT && link->down_at &&
      sim_now - link->down_at - paused > PROMPT + cards_slack())
    sim_fail("deadline", "%s: a call went on for %.3f s after the connection ended",
             name_of(operation), (double)(sim_now - link->down_at - paused) / S);
}

/* In calm all succeeds, within a time that no timer of a patient node bounds. A mismatch that
 * check_read_code has allowed is that of a canceled write, whose bytes came during the read. */
static void check_calm(const struct link *link, enum operation operation,
                       const struct moment *begin) {
  if (!begin->calm)
    return;
  if (driven_time(link) - begin->at > CALM_LIMIT) /* also if the run is about to end */
    sim_fail("calm", "%s took %.3f s although nothing disturbs", name_of(operation),
             (double)(driven_time(link) - begin->at) / S);
  if (load.phase != QUIET)
    return;
  bool excused = !share_keys(link->from, link->to) || link->code == HAUL_ENOPATH ||
                 link->code == HAUL_ENAME || link->code == HAUL_ESTALE ||
                 link->code == HAUL_ECANCELED || link->code == HAUL_ECHECKSUM;
  if (link->code && !excused)
    sim_fail("calm", "%s: %s (%s) although nothing disturbs", name_of(operation),
             haul_error_name(link->code), haul_error_last()->text);
}

static void rest_after(const struct link *link) {
  if (is_hot(link)) {
    pause_for(sim_between(0, 20 * US));
    return;
  }
  if (link->code && !solo_link())
    pause_for(sim_between(0, 3 * MS));
  if (!solo_link() && sim_chance(load.phase == QUIET ? 1000000 : plan.pause_share))
    pause_for(sim_between(0, plan.pause));
}

static void use_connection(struct link *link) {
  static void (*const run[OPERATIONS])(struct link *) = {
      [WRITE] = do_write,     [READ] = do_read,
      [ADD] = do_add,         [MESSAGE] = do_message,
      [ORDERED] = do_ordered, [CANCEL] = do_cancel,
      [LIST] = do_list,       [BATCH] = do_batch,
      [SCATTER] = do_scatter, [CANCEL_READ] = do_cancel_read,
      [RELEASE] = do_release, [SILENT] = do_silent,
      [SHARE] = do_share,     [OFFER] = do_offer};
  link->pathless = link->stale = false;
  while (goes_on(link) && !link->pathless && haul_peer_status(link->peer) == 0) {
    enum operation operation = link->stale ? LOOKUP : draw_operation(link);
    struct moment begin = moment_now(link);
    if (rests(link))
      continue;
    link->code = 0;
    if (operation != LOOKUP)
      call_begins(link, AMID_OPERATION);
    if (operation == LOOKUP) {
      look_again(link);
    } else if (operation == DROP) {
      count(link, DROP, 0);
      if (sim_chance(100000))
        return;
    } else {
      run[operation](link);
    }
    check_prompt(link, operation);
    check_calm(link, operation, &begin);
    rest_after(link);
  }
}

void *link_main(void *argument) {
  struct link *link = argument;
  while (goes_on(link)) {
    struct moment begin = moment_now(link);
    link->busy = true;
    int code = open_connection(link);
    link->busy = false;
    link->code = code;
    check_prompt(link, LOOKUP);
    check_calm(link, LOOKUP, &begin);
    if (code == 0)
      use_connection(link);
    close_connection(link);
    if (load.phase != STOPPING)
      pause_for(sim_between(0, load.phase == QUIET ? 50 * MS : S));
  }
  link->ended = true;
  return NULL;
}
