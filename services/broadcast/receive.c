/* SPDX-License-Identifier: MIT
 * haul_broadcast_receive: reads the chunks of a version, several at a time, from the nearest feeder
 * that has some which are missing here.
 *
 * A feeder that has nothing new is waited for: in a chain that works, everyone has just a little
 * more than the next. It is passed over if its connection fails, if it has far fewer chunks than
 * this node, if it makes no progress for its `patience`, or if a chunk from the next feeder takes
 * less than half the time that one takes here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "broadcast/feeder.h"

#define CALL "haul_broadcast_receive"

#define IN_FLIGHT_BYTES (UINT64_C(4) << 20)
#define BEGIN_NS        (1 * HAUL_SECOND) /* how long members may begin later */
#define PROBE_NS        (1 * HAUL_SECOND) /* between looks for a faster feeder */
#define SLOW_PROBES     3u
#define HEAD_NS         (500 * HAUL_MILLISECOND) /* between looks for a newer version */
#define CALL_NS         (100 * HAUL_MILLISECOND) /* between calls of `progress` */
#define LOST_NS         (5 * HAUL_SECOND)    /* until a version without chunks anywhere is stale */
#define FLIGHTS         (IN_FLIGHT_MOST + 1) /* one probe more */
#define CONNECT_LATE    (20 * HAUL_MILLISECOND)
#define POLL_LEAST      (500 * HAUL_MICROSECOND)
#define POLL_MOST       (20 * HAUL_MILLISECOND)

/* A chunk on its way. */
struct flight {
  haul_transfer *transfer; /* NULL: free */
  struct feeder *feeder;
  uint64_t chunk;
  int64_t since;
  bool probe; /* to compare the feeder with the present one */
};

struct receive {
  haul_broadcast *broadcast;
  struct join *join;
  struct haul_broadcast_version version;
  haul_region *region;
  unsigned flags;
  haul_deadline until;
  struct haul_broadcast_report *report;

  struct held *held;
  uint64_t chunks, got, window;
  uint64_t margin; /* a feeder that is behind by less catches up: it is waited for */
  const uint64_t *sums;
  uint64_t *have_bits, *taken; /* taken: here, or in flight */
  struct feeders feeders;
  struct feeder *current; /* that the latest chunk was requested from, or that is waited for */
  struct flight flights[FLIGHTS];
  uint64_t flying;
  int64_t started, chunk_at; /* chunk_at: when the latest chunk came */
  int64_t pace;              /* mean time between two chunks */
  int64_t connect_at;        /* no member is connected to before */
  int64_t probe_at, head_at, called_at;
};

/* ---- Bits ---- */

static void bit_set(uint64_t *bits, uint64_t at) {
  bits[at / 64] |= UINT64_C(1) << at % 64;
}

static void bit_clear(uint64_t *bits, uint64_t at) {
  bits[at / 64] &= ~(UINT64_C(1) << at % 64);
}

/* The chunks of word `i` that the feeder has and that were not requested. */
static uint64_t wanted_word(const struct receive *receive, const struct feeder *feeder, size_t i) {
  uint64_t rest = receive->chunks - i * 64;
  uint64_t all = rest < 64 ? (UINT64_C(1) << rest) - 1 : UINT64_MAX;
  return (feeder->source ? all : feeder->bits[i]) & ~receive->taken[i] & all;
}

static bool first_wanted(const struct receive *receive, const struct feeder *feeder,
                         uint64_t *chunk) {
  for (size_t i = 0; i < bit_words(receive->chunks); i++) {
    uint64_t word = wanted_word(receive, feeder, i);
    if (word) {
      *chunk = i * 64 + (uint64_t)__builtin_ctzll(word);
      return true;
    }
  }
  return false;
}

static uint64_t count_wanted(const struct receive *receive, const struct feeder *feeder) {
  uint64_t count = 0;
  for (size_t i = 0; i < bit_words(receive->chunks); i++)
    count += (uint64_t)__builtin_popcountll(wanted_word(receive, feeder, i));
  return count;
}

/* The chunk is here: others may read it. */
static void chunk_here(struct receive *receive, uint64_t chunk) {
  struct have *have = haul_region_address(receive->held->have);
  uint64_t *word = &receive->have_bits[chunk / 64];
  bit_set(receive->taken, chunk);
  __atomic_store_n(word, *word | UINT64_C(1) << chunk % 64, __ATOMIC_RELEASE);
  have->count = ++receive->got;
}

/* ---- Reports ---- */

static void tell(struct receive *receive) {
  struct progress *progress = &receive->join->progress;
  const struct feeder *current = receive->current;
  progress->version = receive->version.number;
  progress->bytes = receive->got == receive->chunks ? receive->version.length
                                                    : receive->got * receive->version.chunk;
  progress->retries = receive->report->retries;
  progress->duration_ns = now_ns() - receive->started;
  progress->state =
      receive->got == receive->chunks ? HAUL_BROADCAST_COMPLETE : HAUL_BROADCAST_RECEIVING;
  memset(progress->feeder, 0, sizeof progress->feeder);
  memset(progress->path, 0, sizeof progress->path);
  if (current) {
    memcpy(progress->feeder, current->told.name, sizeof progress->feeder);
    memcpy(progress->path, current->told.path, sizeof progress->path);
  }
}

/* Calls back, and ends the call if that wants it. */
static int check_progress(struct receive *receive) {
  const struct haul_broadcast_options *options = &receive->broadcast->options;
  int64_t now = now_ns();
  if (!options->progress || now - receive->called_at < CALL_NS)
    return 0;
  receive->called_at = now;
  if (options->progress(options->user, receive->join->progress.bytes) == 0)
    return 0;
  return fail(HAUL_ECANCELED, CALL, receive->broadcast->name,
              "call it again, with HAUL_BROADCAST_KEEP to go on from here",
              "the caller's progress function ended it");
}

/* ---- Begin ---- */

/* From the source, else from a member. */
static int find_sums(struct receive *receive, haul_remote **sums) {
  struct haul_broadcast *broadcast = receive->broadcast;
  struct join *join = receive->join;
  char name[MEMBER_NAME_ROOM];
  int code = HAUL_EPEER;
  member_name(broadcast, receive->version.number, "sums", name);
  if (join->peer)
    code = haul_peer_lookup(join->peer, name, sooner(receive->until, CONTROL_NS), sums);
  for (size_t i = 0; code && i < receive->feeders.order_count; i++) {
    struct feeder *feeder = receive->feeders.order[i];
    haul_peer *peer;
    haul_deadline until = sooner(receive->until, HAUL_SECOND);
    if (feeder->source || now_ns() >= receive->until ||
        haul_peer_connect(broadcast->node, feeder->card.address, until, &peer))
      continue;
    code = haul_peer_lookup(peer, name, until, sums);
    haul_peer_close(peer); /* the remote keeps the connection */
  }
  if (code == HAUL_ENAME) {
    code = HAUL_ESTALE;
    fail(code, CALL, broadcast->name, "call haul_broadcast_next for the present version",
         "neither the source nor a member has version %" PRIu64 " any more",
         receive->version.number);
  } else if (code) {
    fail(code, CALL, broadcast->name, "check that the source runs, and try again",
         "neither the source nor a member sends the checksums");
  }
  return code;
}

/* The checksums must be those that the source's head names. */
static int load_sums(struct receive *receive) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, receive->chunks * sizeof(uint64_t)};
  struct haul_place host = {HAUL_HOST, 0};
  haul_remote *sums;
  options.deadline = receive->until;
  int code = find_sums(receive, &sums);
  if (code)
    return code;
  code = haul_region_alloc(receive->broadcast->node, host, piece.length, 0, &receive->held->sums);
  if (!code)
    code = haul_read(receive->held->sums, sums, &piece, 1, &options, NULL);
  haul_remote_release(sums);
  if (code)
    return code;
  receive->sums = haul_region_address(receive->held->sums);
  if (XXH3_64bits(receive->sums, piece.length) != receive->join->known.sums)
    return fail(HAUL_ECHECKSUM, CALL, receive->broadcast->name,
                "try again; if it stays, find the member that sends wrong bytes",
                "the list of checksums is not the source's");
  return 0;
}

static int make_have(struct receive *receive) {
  struct haul_place host = {HAUL_HOST, 0};
  size_t bytes = bit_words(receive->chunks) * sizeof(uint64_t);
  receive->taken = calloc(1, bytes);
  if (!receive->taken)
    return fail_memory(CALL);
  int code = haul_region_alloc(receive->broadcast->node, host, sizeof(struct have) + bytes, 0,
                               &receive->held->have);
  if (code)
    return code;
  struct have *have = haul_region_address(receive->held->have);
  memset(have, 0, sizeof *have + bytes);
  *have = (struct have){.magic = HAVE_MAGIC, .version = receive->version.number};
  receive->have_bits = (uint64_t *)(have + 1);
  return 0;
}

/* Whether the bytes of a chunk in the region are right. */
static int check_chunk(struct receive *receive, uint64_t chunk, bool *right) {
  const struct haul_broadcast_version *version = &receive->version;
  uint64_t sum = 0;
  int code = range_sum(receive->broadcast, receive->region, chunk * version->chunk,
                       chunk_length(version->length, version->chunk, chunk), receive->until, &sum);
  *right = !code && sum == receive->sums[chunk];
  return code;
}

static int keep_right_chunks(struct receive *receive) {
  for (uint64_t i = 0; i < receive->chunks; i++) {
    bool right;
    int code = check_chunk(receive, i, &right);
    if (code)
      return code;
    if (right) {
      chunk_here(receive, i);
      receive->report->kept += chunk_length(receive->version.length, receive->version.chunk, i);
    }
    tell(receive);
    join_poll(receive->join, receive->until);
    code = check_progress(receive);
    if (code)
      return code;
    if (now_ns() >= receive->until)
      return fail(HAUL_ETIMEDOUT, CALL, receive->broadcast->name, "allow more time",
                  "%" PRIu64 " of %" PRIu64 " chunks are checked", i, receive->chunks);
  }
  return 0;
}

static int publish(struct receive *receive) {
  struct held *held = receive->held;
  haul_broadcast *broadcast = receive->broadcast;
  int code = show(broadcast, held->version, "sums", held->sums, &held->sums_shown);
  if (!code)
    code = show(broadcast, held->version, "data", held->data, &held->data_shown);
  return code ? code : show(broadcast, held->version, "have", held->have, &held->have_shown);
}

static int begin(struct receive *receive) {
  haul_broadcast *broadcast = receive->broadcast;
  receive->held = held_next(broadcast, receive->region);
  receive->held->version = receive->version.number;
  receive->held->data = receive->region;
  receive->chunks = chunk_count(receive->version.length, receive->version.chunk);
  if (!receive->chunks)
    return 0;
  receive->window = broadcast->options.in_flight;
  if (!receive->window) {
    receive->window = IN_FLIGHT_BYTES / receive->version.chunk;
    receive->window = receive->window < 4 ? 4 : receive->window > 16 ? 16 : receive->window;
  }
  receive->margin = 4 * receive->window;
  if (receive->margin > receive->chunks / 8)
    receive->margin = receive->chunks / 8;
  int code = feeders_open(&receive->feeders, broadcast, &receive->version, receive->until);
  if (!code)
    code = load_sums(receive);
  if (!code)
    code = make_have(receive);
  if (!code && receive->flags & HAUL_BROADCAST_KEEP)
    code = keep_right_chunks(receive);
  if (!code)
    code = publish(receive);
  receive->chunk_at = receive->probe_at = receive->head_at = now_ns();
  receive->pace = 4 * HAUL_MILLISECOND;
  return code;
}

/* ---- Choice of the feeder ---- */

static bool is_blocked(const struct feeder *feeder) {
  return now_ns() < feeder->blocked_until;
}

/* Whether to wait for a member that does not receive this version yet: all may just be starting. */
static bool may_begin(const struct receive *receive, const struct feeder *feeder) {
  return feeder->failed == HAUL_ENAME && !feeder->source && receive->got == 0 &&
         now_ns() - receive->started < BEGIN_NS;
}

/* Opens a feeder. Attempts block, so those that fail late take a tenth of the time at most: the
 * chunks go on from the feeders that are open. */
static bool open_feeder(struct receive *receive, struct feeder *feeder) {
  int64_t began = now_ns();
  if (feeder->open)
    return true;
  if (!feeder->source && began < receive->connect_at)
    return false;
  if (!feeder_connect(&receive->feeders, feeder))
    return true;
  int64_t now = now_ns();
  if (now - began > CONNECT_LATE)
    receive->connect_at = now + 10 * (now - began);
  if (may_begin(receive, feeder))
    feeder_retry_in(feeder, POLL_MOST);
  return false;
}

static bool is_late(const struct feeder *feeder) {
  return now_ns() - feeder->progress_at >= feeder->patience;
}

static void block_late(struct feeder *feeder) {
  feeder_block(feeder, "no progress for %.1f s", (double)feeder->patience / 1e9);
  if (feeder->patience < HAUL_SECOND * 60)
    feeder->patience *= 2;
}

enum choice { CHOICE_NEXT, CHOICE_WAIT, CHOICE_READ };

static enum choice consider(struct receive *receive, struct feeder *feeder, uint64_t *chunk) {
  if (is_blocked(feeder) || !open_feeder(receive, feeder))
    return may_begin(receive, feeder) ? CHOICE_WAIT : CHOICE_NEXT;
  if (!feeder->source && !feeder->polled)
    return CHOICE_WAIT; /* until its patience ends the first poll */
  if (first_wanted(receive, feeder, chunk))
    return CHOICE_READ;
  if (feeder->source)
    return CHOICE_WAIT; /* all is in flight */
  if (feeder->count + receive->margin < receive->got)
    return CHOICE_NEXT;
  if (!is_late(feeder))
    return CHOICE_WAIT;
  block_late(feeder);
  return CHOICE_NEXT;
}

/* The feeder of the next chunk, or NULL; `current` is then the one that is waited for. */
static struct feeder *pick(struct receive *receive, uint64_t *chunk) {
  if (receive->got + receive->flying >= receive->chunks)
    return NULL;
  for (size_t i = 0; i < receive->feeders.order_count; i++) {
    struct feeder *feeder = receive->feeders.order[i];
    enum choice choice = consider(receive, feeder, chunk);
    if (choice == CHOICE_NEXT)
      continue;
    receive->current = feeder;
    return choice == CHOICE_READ ? feeder : NULL;
  }
  receive->current = NULL;
  return NULL;
}

/* ---- Flights ---- */

static struct flight *free_flight(struct receive *receive) {
  struct flight *flight = receive->flights;
  while (flight->transfer)
    flight++;
  return flight;
}

static bool fly(struct receive *receive, struct feeder *feeder, uint64_t chunk, bool probe) {
  const struct haul_broadcast_version *version = &receive->version;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  uint64_t offset = chunk * version->chunk;
  struct haul_piece piece = {offset, offset, chunk_length(version->length, version->chunk, chunk)};
  struct flight *flight = free_flight(receive);
  options.deadline = receive->until;
  int code = haul_read(receive->region, feeder->data, &piece, 1, &options, &flight->transfer);
  if (code) {
    flight->transfer = NULL;
    feeder_fail(&receive->feeders, feeder, code);
    return false;
  }
  *flight = (struct flight){flight->transfer, feeder, chunk, now_ns(), probe};
  bit_set(receive->taken, chunk);
  if (feeder->flying++ == 0)
    feeder->progress_at = flight->since;
  receive->flying++;
  return true;
}

static void fill_window(struct receive *receive) {
  uint64_t chunk;
  while (receive->flying < receive->window) {
    struct feeder *feeder = pick(receive, &chunk);
    if (!feeder)
      return;
    fly(receive, feeder, chunk, false);
  }
}

static void note_path(struct flight *flight) {
  struct haul_report report = HAUL_REPORT_INIT;
  struct haul_broadcast_feeder *told = &flight->feeder->told;
  if (haul_transfer_report(flight->transfer, &report) == 0 && report.path_count)
    memcpy(told->path, report.paths[0].name, sizeof told->path);
}

/* The current feeder is blocked after SLOW_PROBES in a row that took less than half the time of a
 * chunk from it: one alone may just have found an idle moment. */
static void judge(struct receive *receive, const struct flight *flight) {
  int64_t took = now_ns() - flight->since, pace = receive->pace;
  struct feeder *current = receive->current;
  if (!current || current == flight->feeder || current->source)
    return;
  current->slow = took * 2 < pace ? current->slow + 1 : 0;
  if (current->slow < SLOW_PROBES)
    return;
  current->slow = 0;
  feeder_block(current, "slow: %.1f ms a chunk, and %.1f from %s", (double)pace / 1e6,
               (double)took / 1e6, flight->feeder->told.name);
}

static void chunk_came(struct receive *receive, const struct flight *flight) {
  struct feeder *feeder = flight->feeder;
  int64_t now = now_ns();
  chunk_here(receive, flight->chunk);
  feeder->told.bytes +=
      chunk_length(receive->version.length, receive->version.chunk, flight->chunk);
  feeder->progress_at = now;
  feeder->failed = 0;
  feeder->lost = 0;
  if (flight->probe) {
    judge(receive, flight);
    return;
  }
  receive->pace += (now - receive->chunk_at - receive->pace) / 8;
  receive->chunk_at = now;
}

static void chunk_failed(struct receive *receive, const struct flight *flight, int code) {
  struct feeder *feeder = flight->feeder;
  bit_clear(receive->taken, flight->chunk);
  receive->report->retries++;
  feeder->told.retries++;
  if (code == HAUL_ECHECKSUM) {
    receive->report->corrupt++;
    feeder->hold = feeder->source ? HAUL_SECOND : 60 * HAUL_SECOND;
    feeder_block(feeder, "wrong bytes");
  } else if (code != HAUL_ECANCELED && feeder->open) {
    feeder_fail(&receive->feeders, feeder, code);
  }
}

/* Takes a flight that has ended. Returns an error of this side only. */
static int land(struct receive *receive, struct flight *flight) {
  bool right = false;
  int code = haul_transfer_test(flight->transfer), own = 0;
  if (code == 1)
    return 0;
  if (!code) {
    note_path(flight);
    own = check_chunk(receive, flight->chunk, &right);
    if (!own && !right)
      code = HAUL_ECHECKSUM;
  }
  haul_transfer_release(flight->transfer);
  flight->transfer = NULL;
  flight->feeder->flying--;
  receive->flying--;
  if (!own && code)
    chunk_failed(receive, flight, code);
  else if (!own)
    chunk_came(receive, flight);
  return own;
}

static int land_all(struct receive *receive) {
  int code = 0;
  for (size_t i = 0; !code && i < FLIGHTS; i++)
    if (receive->flights[i].transfer)
      code = land(receive, &receive->flights[i]);
  return code;
}

static void cancel_from(struct receive *receive, const struct feeder *feeder) {
  for (size_t i = 0; i < FLIGHTS; i++)
    if (receive->flights[i].transfer && (!feeder || receive->flights[i].feeder == feeder))
      haul_transfer_cancel(receive->flights[i].transfer);
}

/* A feeder from which chunks are on their way, and none arrives: others are to send them. */
static void give_up_late(struct receive *receive) {
  for (size_t i = 0; i < receive->feeders.count; i++) {
    struct feeder *feeder = receive->feeders.all[i];
    if (feeder->flying && is_late(feeder)) {
      cancel_from(receive, feeder);
      block_late(feeder);
      feeder->progress_at = now_ns();
    }
  }
}

/* ---- What the feeders have ---- */

static int64_t poll_interval(const struct receive *receive, const struct feeder *feeder) {
  int64_t interval = (now_ns() - feeder->progress_at) / 8;
  if (interval < receive->pace / 2)
    interval = receive->pace / 2;
  return interval < POLL_LEAST ? POLL_LEAST : interval > POLL_MOST ? POLL_MOST : interval;
}

/* Asks the current feeder in time, before all that it is known to have is in flight. Returns when
 * to ask again. */
static int64_t poll_current(struct receive *receive) {
  struct feeder *feeder = receive->current;
  int64_t now = now_ns();
  for (size_t i = 0; i < receive->feeders.count; i++)
    if (receive->feeders.all[i]->poll)
      feeder_polled(&receive->feeders, receive->feeders.all[i]);
  if (!feeder || !feeder->open)
    return now + POLL_MOST;
  if (feeder->source || feeder->poll || feeder->count == receive->chunks)
    return now + POLL_MOST;
  int64_t due = feeder->polled ? feeder->polled_at + poll_interval(receive, feeder) : now;
  if (due > now)
    return due;
  if (!feeder->polled || count_wanted(receive, feeder) < receive->window)
    feeder_poll(&receive->feeders, feeder);
  return now + POLL_MOST;
}

/* The feeder that would be used instead of the current one. */
static struct feeder *alternative(const struct receive *receive) {
  bool behind = false;
  for (size_t i = 0; i < receive->feeders.order_count; i++) {
    struct feeder *feeder = receive->feeders.order[i];
    if (behind && !is_blocked(feeder))
      return feeder;
    behind = behind || feeder == receive->current;
  }
  return NULL;
}

/* Reads a chunk from the alternative now and then, if that has many more chunks than this node. */
static void probe(struct receive *receive) {
  struct feeder *feeder = alternative(receive);
  uint64_t chunk, much = 4 * receive->window;
  if (now_ns() - receive->probe_at < PROBE_NS || !receive->current || receive->current->source)
    return;
  receive->probe_at = now_ns();
  if (much < receive->chunks / 16)
    much = receive->chunks / 16;
  if (!feeder || !open_feeder(receive, feeder))
    return;
  if (!feeder->source)
    feeder_poll(&receive->feeders, feeder); /* for the next time */
  uint64_t there = feeder->source ? receive->chunks : feeder->count;
  if ((feeder->source || feeder->polled) && feeder->open && there > receive->got + much &&
      receive->flying <= receive->window && first_wanted(receive, feeder, &chunk))
    fly(receive, feeder, chunk, true);
}

/* ---- The call ---- */

static int check_newer(struct receive *receive) {
  struct head head;
  int64_t now = now_ns();
  if (!(receive->flags & HAUL_BROADCAST_NEWER) || !receive->join->peer ||
      now - receive->head_at < HEAD_NS)
    return 0;
  receive->head_at = now;
  if (join_head(receive->join, sooner(receive->until, HAUL_SECOND), &head) ||
      head.version <= receive->version.number)
    return 0;
  return fail(HAUL_ESTALE, CALL, receive->broadcast->name,
              "call haul_broadcast_next for the newer version",
              "version %" PRIu64 " follows %" PRIu64, head.version, receive->version.number);
}

/* No chunk has come for a while, and the source does not have the version any more. */
static bool is_nowhere(const struct receive *receive) {
  int failed = receive->feeders.all[0]->failed;
  return (failed == HAUL_ENAME || failed == HAUL_ESTALE) && !receive->flying &&
         now_ns() - receive->chunk_at > LOST_NS;
}

static int check_end(struct receive *receive) {
  uint64_t missing = receive->chunks - receive->got;
  if (now_ns() >= receive->until)
    return fail(HAUL_ETIMEDOUT, CALL, receive->broadcast->name,
                "allow more time, or check that the source still runs",
                "%" PRIu64 " of %" PRIu64 " chunks are missing", missing, receive->chunks);
  if (!receive->flying &&
      haul_node_progress(receive->broadcast->node, HAUL_NO_WAIT) == HAUL_ECLOSED)
    return HAUL_ECLOSED;
  if (is_nowhere(receive))
    return fail(HAUL_ESTALE, CALL, receive->broadcast->name,
                "call haul_broadcast_next for the present version",
                "neither the source nor a known member has the %" PRIu64 " of %" PRIu64
                " chunks that are missing",
                missing, receive->chunks);
  int code = check_progress(receive);
  return code ? code : check_newer(receive);
}

static void wait_for_events(struct receive *receive, int64_t wake) {
  haul_transfer *transfers[FLIGHTS + 1];
  size_t count = 0;
  for (size_t i = 0; i < FLIGHTS; i++)
    if (receive->flights[i].transfer)
      transfers[count++] = receive->flights[i].transfer;
  if (receive->current && receive->current->poll)
    transfers[count++] = receive->current->poll;
  if (wake > receive->until)
    wake = receive->until;
  if (count)
    haul_transfer_wait_any(transfers, count, wake, NULL);
  else
    pause_until(receive->broadcast, wake);
}

static int run(struct receive *receive) {
  int code = 0;
  while (!code && receive->got < receive->chunks) {
    code = feeders_update(&receive->feeders);
    if (code)
      return code;
    if (!receive->current && !receive->flying)
      receive->connect_at = 0; /* there is nothing else to do */
    fill_window(receive);
    probe(receive);
    int64_t wake = poll_current(receive);
    tell(receive);
    join_poll(receive->join, receive->until);
    wait_for_events(receive, wake);
    code = land_all(receive);
    give_up_late(receive);
    if (!code)
      code = receive->got < receive->chunks ? check_end(receive) : 0;
  }
  return code;
}

/* No chunk may arrive after the end of the call. */
static void end_flights(struct receive *receive) {
  haul_deadline until = haul_deadline_in(CONTROL_NS);
  cancel_from(receive, NULL);
  for (size_t i = 0; i < FLIGHTS; i++) {
    haul_transfer *transfer = receive->flights[i].transfer;
    if (transfer)
      haul_transfer_wait(transfer, until);
    haul_transfer_release(transfer);
  }
}

/* Keeps what the caller may list. */
static void keep_feeders(struct receive *receive) {
  struct join *join = receive->join;
  struct feeders *feeders = &receive->feeders;
  free(join->feeders);
  join->feeder_count = 0;
  join->feeders = calloc(feeders->count + 1, sizeof *join->feeders);
  for (size_t i = 0; join->feeders && i < feeders->count; i++) {
    struct haul_broadcast_feeder *told = &feeders->all[i]->told;
    if (told->bytes || told->retries || told->reason[0])
      join->feeders[join->feeder_count++] = *told;
  }
}

static void end(struct receive *receive, int code) {
  struct haul_error error = *haul_error_last();
  end_flights(receive);
  tell(receive);
  keep_feeders(receive);
  if (code) {
    held_end(receive->broadcast, receive->held);
    receive->join->progress.state = HAUL_BROADCAST_WAITING;
  }
  join_report(receive->join, haul_deadline_in(HAUL_SECOND));
  feeders_close(&receive->feeders);
  free(receive->taken);
  receive->report->bytes = receive->join->progress.bytes;
  receive->report->duration_ns = now_ns() - receive->started;
  if (code)
    haul_error_set(&error);
}

static int check_arguments(haul_broadcast *broadcast, const struct haul_broadcast_version *version,
                           haul_region *region, const struct haul_broadcast_report *report) {
  if (!broadcast || !broadcast->join || !version)
    return fail(HAUL_EINVAL, CALL, NULL, "pass a broadcast of haul_broadcast_join, and a version",
                "this is no receiver, or an argument is NULL");
  const struct head *known = &broadcast->join->known;
  if (!known->version || known->version != version->number || known->length != version->length ||
      known->chunk != version->chunk)
    return fail(HAUL_EINVAL, CALL, broadcast->name, "pass the one of the last such call",
                "the version is not as haul_broadcast_next gave it");
  if (version->length > (region ? haul_region_length(region) : 0))
    return fail(HAUL_ERANGE, CALL, broadcast->name, "pass a region of the version's length",
                "the region is shorter than the %" PRIu64 " bytes of the version", version->length);
  if (region && !(haul_region_rights(region) & HAUL_WRITE))
    return fail(HAUL_EACCESS, CALL, broadcast->name, "pass a region that can be written",
                "the region is read-only");
  if (report && report->size != sizeof *report)
    return fail(HAUL_EINVAL, CALL, "report", "start from HAUL_BROADCAST_REPORT_INIT",
                "the report has an unknown size");
  return 0;
}

int haul_broadcast_receive(haul_broadcast *broadcast, const struct haul_broadcast_version *version,
                           haul_region *region, unsigned flags, haul_deadline until,
                           struct haul_broadcast_report *report) {
  struct haul_broadcast_report own = HAUL_BROADCAST_REPORT_INIT;
  int code = check_arguments(broadcast, version, region, report);
  if (code)
    return code;
  if (flags & ~(HAUL_BROADCAST_KEEP | HAUL_BROADCAST_NEWER))
    return fail(HAUL_EINVAL, CALL, "flags", "pass HAUL_BROADCAST_ flags", "unknown flags 0x%x",
                flags);
  if (!report)
    report = &own;
  *report = own;
  report->version = version->number;
  struct receive *receive = calloc(1, sizeof *receive);
  if (!receive)
    return fail_memory(CALL);
  receive->broadcast = broadcast;
  receive->join = broadcast->join;
  receive->version = *version;
  receive->region = region;
  receive->flags = flags;
  receive->until = until;
  receive->report = report;
  receive->started = now_ns();
  code = begin(receive);
  if (!code)
    code = run(receive);
  end(receive, code);
  free(receive);
  return code;
}

int haul_broadcast_feeders(haul_broadcast *broadcast, struct haul_broadcast_feeder *feeders,
                           size_t *count) {
  if (!broadcast || !broadcast->join || !count || (*count && !feeders))
    return fail(HAUL_EINVAL, "haul_broadcast_feeders", NULL,
                "pass a broadcast of haul_broadcast_join, and room",
                "this is no receiver, or an argument is NULL");
  struct join *join = broadcast->join;
  for (size_t i = 0; i < join->feeder_count && i < *count; i++)
    feeders[i] = join->feeders[i];
  *count = join->feeder_count;
  return 0;
}
