/* SPDX-License-Identifier: MIT
 * haul_broadcast_receive: the checksums, the chunks that are here already, and then the others,
 * until all are here or the call ends. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "broadcast/receive.h"

#define CALL "haul_broadcast_receive"

#define IN_FLIGHT_BYTES (UINT64_C(4) << 20)
#define HEAD_NS         (500 * HAUL_MILLISECOND) /* between looks for a newer version */
#define CALL_NS         (100 * HAUL_MILLISECOND) /* between calls of `progress` */
#define LOST_NS         (5 * HAUL_SECOND) /* until a version without chunks anywhere is stale */
#define WRONG_TURNS     5                 /* at 1 s each: it may be the network, once */

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

/* Reads the checksums from a source or member. They must be those that the source's head names. */
static int read_sums(struct receive *receive, haul_peer *peer, haul_deadline until) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, receive->chunks * sizeof(uint64_t)};
  char name[MEMBER_NAME_ROOM];
  haul_remote *remote;
  member_name(receive->broadcast, receive->version.number, "sums", name);
  int code = haul_peer_lookup(peer, name, until, &remote);
  if (code)
    return code;
  options.deadline = receive->until;
  code = haul_read(receive->held->sums, remote, &piece, 1, &options, NULL);
  haul_remote_release(remote);
  if (!code && XXH3_64bits(receive->sums, piece.length) != receive->join->known.sums)
    code = HAUL_ECHECKSUM;
  return code;
}

static int read_sums_of(struct receive *receive, const struct feeder *feeder) {
  haul_deadline until = sooner(receive->until, HAUL_SECOND);
  haul_peer *peer;
  int code = haul_peer_connect(receive->broadcast->node, feeder->card.address, until, &peer);
  if (code)
    return code;
  code = read_sums(receive, peer, until);
  haul_peer_close(peer);
  return code;
}

static int fail_sums(const struct receive *receive, int code) {
  const char *name = receive->broadcast->name;
  if (code == HAUL_ENAME || code == HAUL_ESTALE)
    return fail(HAUL_ESTALE, CALL, name, "call haul_broadcast_next for the present version",
                "neither the source nor a member has version %" PRIu64 " any more",
                receive->version.number);
  if (code == HAUL_ECHECKSUM)
    return fail(code, CALL, name, "try again; if it stays, find the member that sends wrong bytes",
                "the list of checksums is not the source's");
  return fail(code, CALL, name, "check that the source runs, and try again",
              "neither the source nor a member sends the checksums");
}

/* From the source, else from a member. If none sends them the source's code counts: members that
 * have not begun have no such name, and those that leave withdraw it. */
static int load_sums(struct receive *receive) {
  struct haul_place host = {HAUL_HOST, 0};
  haul_peer *source = receive->join->peer;
  int code = haul_region_alloc(receive->broadcast->node, host, receive->chunks * sizeof(uint64_t),
                               0, &receive->held->sums);
  if (code)
    return code;
  receive->sums = haul_region_address(receive->held->sums);
  code = source ? read_sums(receive, source, sooner(receive->until, CONTROL_NS)) : HAUL_EPEER;
  const int of_source = code;
  for (size_t i = 0; code && i < receive->feeders.order_count; i++)
    if (!receive->feeders.order[i]->source && now_ns() < receive->until)
      code = read_sums_of(receive, receive->feeders.order[i]);
  return code ? fail_sums(receive, of_source) : 0;
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

static int keep_right_chunks(struct receive *receive) {
  for (uint64_t i = 0; i < receive->chunks; i++) {
    bool right;
    int code = chunk_check(receive, i, &right);
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
  receive->join->running = &receive->feeders;
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

static bool source_lacks_it(const struct receive *receive) {
  int failed = receive->feeders.all[0]->failed;
  return failed == HAUL_ENAME || failed == HAUL_ESTALE ||
         (!receive->join->peer && receive->join->ended);
}

/* No chunk has come for a while, nor to a feeder that is waited for, and the source does not have
 * the version any more. */
static bool is_nowhere(const struct receive *receive) {
  bool gains = receive->current && now_ns() - receive->current->gained_at < LOST_NS;
  return source_lacks_it(receive) && !receive->flying && !gains && !member_may_send(receive) &&
         now_ns() - receive->chunk_at > LOST_NS;
}

/* Of a failure: what else is known about the chunks that are missing. */
static void note_wrong(const struct receive *receive, char *text, size_t size) {
  text[0] = 0;
  if (receive->wrong)
    snprintf(text, size, "; the source sent wrong bytes %" PRIu64 " times: did they change?",
             receive->wrong);
  else if (receive->report->corrupt)
    snprintf(text, size, "; members sent wrong bytes %" PRIu64 " times", receive->report->corrupt);
}

static int fail_late(const struct receive *receive) {
  char wrong[96];
  note_wrong(receive, wrong, sizeof wrong);
  return fail(HAUL_ETIMEDOUT, CALL, receive->broadcast->name,
              receive->wrong ? "publish them again, as a new version"
                             : "allow more time, or check that the source still runs",
              "%" PRIu64 " of %" PRIu64 " chunks are missing%s", receive->chunks - receive->got,
              receive->chunks, wrong);
}

static int fail_nowhere(const struct receive *receive) {
  bool ended = receive->join->ended;
  return fail(HAUL_ESTALE, CALL, receive->broadcast->name,
              ended ? "start the source again, and call haul_broadcast_next for its version"
                    : "call haul_broadcast_next for the present version",
              "%s has the %" PRIu64 " of %" PRIu64 " chunks that are missing",
              ended ? "the source has ended, and no known member"
                    : "neither the source nor a known member",
              receive->chunks - receive->got, receive->chunks);
}

static int check_end(struct receive *receive) {
  if (now_ns() >= receive->until)
    return fail_late(receive);
  if (!receive->flying &&
      haul_node_progress(receive->broadcast->node, HAUL_NO_WAIT) == HAUL_ECLOSED)
    return HAUL_ECLOSED;
  if (receive->wrong_turns >= WRONG_TURNS)
    return fail(HAUL_ECHECKSUM, CALL, receive->broadcast->name,
                "publish them again, as a new version",
                "%" PRIu64 " of %" PRIu64 " chunks are missing, of which the source sent wrong "
                "bytes %" PRIu64 " times: did they change?",
                receive->chunks - receive->got, receive->chunks, receive->wrong);
  if (is_nowhere(receive))
    return fail_nowhere(receive);
  int code = check_progress(receive);
  return code ? code : check_newer(receive);
}

static int run(struct receive *receive) {
  int code = 0;
  while (!code && receive->got < receive->chunks) {
    code = feeders_update(&receive->feeders);
    if (code)
      return code;
    if (!receive->current && !receive->flying)
      receive->connect_at = 0; /* there is nothing else to do */
    flights_start(receive);
    int64_t wake = poll_feeders(receive);
    tell(receive);
    join_poll(receive->join, receive->until);
    flights_wait(receive, wake);
    code = flights_land(receive);
    if (!code)
      code = receive->got < receive->chunks ? check_end(receive) : 0;
  }
  return code;
}

/* Copies those that have a part in it, as far as there is room. Returns their number. */
static size_t list_feeders(const struct feeders *feeders, struct haul_broadcast_feeder *list,
                           size_t room) {
  size_t count = 0;
  for (size_t i = 0; i < feeders->count; i++) {
    const struct haul_broadcast_feeder *told = &feeders->all[i]->told;
    if (!told->bytes && !told->retries && !told->reason[0])
      continue;
    if (count < room)
      list[count] = *told;
    count++;
  }
  return count;
}

/* Keeps what the caller may list. */
static void keep_feeders(struct receive *receive) {
  struct join *join = receive->join;
  size_t room = receive->feeders.count;
  free(join->feeders);
  join->feeders = calloc(room + 1, sizeof *join->feeders);
  join->feeder_count = join->feeders ? list_feeders(&receive->feeders, join->feeders, room) : 0;
  join->running = NULL;
}

static void end(struct receive *receive, int code) {
  struct haul_error error = *haul_error_last();
  flights_end(receive);
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
  int code = owner_check(broadcast->owner, CALL);
  if (code)
    return code;
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
  int code = owner_check(broadcast->owner, "haul_broadcast_feeders");
  if (code)
    return code;
  if (join->running) {
    *count = list_feeders(join->running, feeders, *count);
    return 0;
  }
  for (size_t i = 0; i < join->feeder_count && i < *count; i++)
    feeders[i] = join->feeders[i];
  *count = join->feeder_count;
  return 0;
}
