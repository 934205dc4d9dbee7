/* SPDX-License-Identifier: MIT */
#include "broadcast/members.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define POLL_NS    (500 * HAUL_MILLISECOND)
#define RETRY_NS   (250 * HAUL_MILLISECOND)
#define RETRY_MOST (8 * HAUL_SECOND)

/* ---- The connection ---- */

static void cancel(haul_transfer **transfer, haul_deadline until) {
  if (!*transfer)
    return;
  haul_transfer_cancel(*transfer);
  haul_transfer_wait(*transfer, until);
  haul_transfer_release(*transfer);
  *transfer = NULL;
}

void join_lost(struct join *join) {
  haul_deadline until = haul_deadline_in(HAUL_SECOND);
  cancel(&join->report, until);
  cancel(&join->look, until);
  haul_remote_release(join->head);
  haul_remote_release(join->board);
  haul_peer_close(join->peer);
  join->head = join->board = NULL;
  join->peer = NULL;
  join->renewed = true;
  join->seen = false;
  join->retry_wait = join->retry_wait ? join->retry_wait * 2 : RETRY_NS;
  if (join->retry_wait > RETRY_MOST)
    join->retry_wait = RETRY_MOST;
  join->retry_at = now_ns() + join->retry_wait;
}

static int lookup(struct join *join, const char *what, haul_deadline until, haul_remote **remote) {
  char name[MEMBER_NAME_ROOM];
  member_name(join->broadcast, 0, what, name);
  int code = haul_peer_lookup(join->peer, name, until, remote);
  if (code == HAUL_ENAME)
    return fail(code, JOIN, join->broadcast->name,
                "list the node's regions: haul ls NODE; a broadcast has one called NAME.head",
                "the node is not the source of a broadcast of this name");
  return code;
}

/* Nobody listens at its address, or its node has no head: versions do not outlive that. */
static bool has_source_ended(int code) {
  int system = haul_error_last()->system;
  return code == HAUL_ENAME ||
         (code == HAUL_ECONNECT && (system == ECONNREFUSED || system == ENOENT));
}

int join_connect(struct join *join, haul_deadline until) {
  struct head head = {0};
  if (join->peer && haul_peer_status(join->peer) == 0)
    return 0;
  if (join->peer)
    join_lost(join);
  until = sooner(until, CONTROL_NS);
  int code = haul_peer_connect(join->broadcast->node, join->source, until, &join->peer);
  if (code)
    join->peer = NULL;
  if (!code)
    code = lookup(join, "head", until, &join->head);
  if (!code)
    code = lookup(join, "members", until, &join->board);
  join->ended = code && has_source_ended(code);
  if (!code)
    code = join_head(join, until, &head);
  if (!code) {
    join->source_host = head.host;
    code = join_refresh(join, until);
  }
  if (code)
    join_lost(join);
  else
    join->retry_wait = 0;
  return code;
}

/* ---- While it receives ---- */

static void report_begin(struct join *join) {
  struct haul_transfer_options options = control_options(HAUL_FOREVER);
  struct haul_piece piece = {LOCAL(progress_later), progress_offset(join->capacity, join->place),
                             sizeof(struct progress)};
  join->progress.beat++;
  exchange_of(join)->progress_later = join->progress;
  join->reported_at = now_ns();
  if (haul_write(join->board, join->exchange, &piece, 1, &options, &join->report))
    join->report = NULL;
}

static void look_begin(struct join *join) {
  struct haul_transfer_options options = control_options(HAUL_FOREVER);
  struct haul_piece piece = {LOCAL(board_later), 0, sizeof(struct board)};
  join->looked_at = now_ns();
  if (haul_read(join->exchange, join->board, &piece, 1, &options, &join->look)) {
    join->look = NULL;
    join_lost(join); /* as at an end of the connection that is known already */
  }
}

/* Whether the transfer has ended, which releases it. */
static bool has_ended(haul_transfer **transfer, int *code) {
  *code = 0;
  if (!*transfer)
    return false;
  *code = haul_transfer_test(*transfer);
  if (*code == 1)
    return false;
  haul_transfer_release(*transfer);
  *transfer = NULL;
  return true;
}

/* Whether the list is outdated, and may be read again. */
static bool may_refresh(const struct join *join, const struct board *board, int64_t now) {
  if (board->generation == join->generation && !join->renewed)
    return false;
  return now >= join->all_at || member_knows_changes(join, board, board->used);
}

void join_poll(struct join *join, haul_deadline until) {
  int code;
  int64_t now = now_ns();
  if (!join->peer) {
    if (now >= join->retry_at)
      join_connect(join, sooner(until, HAUL_SECOND));
    return;
  }
  has_ended(&join->report, &code);
  if (has_ended(&join->look, &code)) {
    if (!code && may_refresh(join, &exchange_of(join)->board_later, now))
      code = join_refresh(join, until);
    if (code) {
      join_lost(join);
      return;
    }
  }
  if (!join->report && now - join->reported_at >= POLL_NS)
    report_begin(join);
  if (!join->look && now - join->looked_at >= POLL_NS)
    look_begin(join);
}

void join_report(struct join *join, haul_deadline until) {
  if (!join->peer)
    return;
  cancel(&join->report, until);
  join->progress.beat++;
  exchange_of(join)->progress = join->progress;
  join->reported_at = now_ns();
  member_put(join, progress_offset(join->capacity, join->place), LOCAL(progress),
             sizeof(struct progress), until);
}

/* ---- Open and close ---- */

static int own_address(struct join *join, const char *given) {
  char text[160] = "";
  haul_node *node = join->broadcast->node;
  if (given)
    snprintf(text, sizeof text, "%s", given);
  else if (haul_node_address(node, 0, text, sizeof text))
    text[0] = 0; /* it does not listen */
  if (strstr(text, "//0.0.0.0:") || strstr(text, "//[::]:"))
    return fail(HAUL_EINVAL, JOIN, text, "set the option address to one that others reach",
                "no member can connect to a wildcard address");
  if (strlen(text) >= sizeof join->address || !text_is_valid(text, sizeof text))
    return fail(HAUL_EINVAL, JOIN, "address", "pass an address of at most 95 characters",
                "the address is too long, or not printable");
  memcpy(join->address, text, strlen(text) + 1);
  return 0;
}

static int own_name(struct join *join, const char *given) {
  char host[40] = "host";
  if (!given) {
    gethostname(host, sizeof host - 1);
    snprintf(join->name, sizeof join->name, "%s:%d",
             text_is_valid(host, sizeof host) ? host : "host", (int)getpid());
    return 0;
  }
  if (!given[0] || strlen(given) >= sizeof join->name || !text_is_valid(given, sizeof join->name))
    return fail(HAUL_EINVAL, JOIN, "member", "pass 1 to 63 printable ASCII characters, no blanks",
                "the name of the member is invalid");
  memcpy(join->name, given, strlen(given) + 1);
  return 0;
}

static int check_arguments(haul_node *node, const char *address, const char *name,
                           const struct haul_broadcast_options *options,
                           haul_broadcast **broadcast) {
  if (!node || !address || !name || !broadcast)
    return fail(HAUL_EINVAL, JOIN, NULL, "pass a node, an address, a name and room for a handle",
                "an argument is NULL");
  if (options->size != sizeof *options)
    return fail(HAUL_EINVAL, JOIN, "options", "start from HAUL_BROADCAST_OPTIONS_INIT",
                "the options have an unknown size");
  if (options->in_flight > IN_FLIGHT_MOST)
    return fail(HAUL_EINVAL, JOIN, "in_flight", "pass at most 64", "%u chunks are too many",
                options->in_flight);
  if (!name[0] || strlen(name) > NAME_MOST || !text_is_valid(name, NAME_MOST + 1) ||
      strlen(address) >= sizeof((struct join *)0)->source)
    return fail(HAUL_EINVAL, JOIN, "name",
                "pass 1 to 200 printable ASCII characters, no blanks, and an address of up to 255",
                "the name or the address is invalid");
  return 0;
}

static int join_open(struct join *join, const struct haul_broadcast_options *options) {
  struct haul_place host = {HAUL_HOST, 0};
  int code = own_address(join, options->address);
  join->host = host_number();
  if (!code)
    code = own_name(join, options->member);
  if (!code)
    code =
        haul_region_alloc(join->broadcast->node, host, sizeof(struct exchange), 0, &join->exchange);
  while (!code && !join->id)
    if (getrandom(&join->id, sizeof join->id, 0) != sizeof join->id)
      code = fail(HAUL_ESYSTEM, JOIN, NULL, "see getrandom(2)", "no random number");
  return code;
}

int haul_broadcast_join(haul_node *node, const char *address, const char *name,
                        const struct haul_broadcast_options *options, haul_deadline until,
                        haul_broadcast **broadcast) {
  struct haul_broadcast_options defaults = HAUL_BROADCAST_OPTIONS_INIT;
  if (!options)
    options = &defaults;
  int code = check_arguments(node, address, name, options, broadcast);
  if (code)
    return code;
  haul_broadcast *made = calloc(1, sizeof *made);
  struct join *join = calloc(1, sizeof *join);
  if (!made || !join) {
    free(made);
    free(join);
    return fail_memory(JOIN);
  }
  made->node = node;
  made->owner = getpid();
  made->options = *options;
  made->options.address = made->options.member = NULL; /* the caller's strings */
  made->join = join;
  join->broadcast = made;
  snprintf(made->name, sizeof made->name, "%s", name);
  snprintf(join->source, sizeof join->source, "%s", address);
  code = join_open(join, options);
  if (!code)
    code = join_connect(join, until);
  if (code)
    haul_broadcast_close(made);
  else
    *broadcast = made;
  return code;
}

/* Takes the card off the board, if the source still responds. */
static void leave(struct join *join) {
  haul_deadline until = haul_deadline_in(HAUL_SECOND);
  if (is_forked(join->broadcast->owner) || !join->peer || !join->entered ||
      haul_peer_status(join->peer))
    return;
  join->progress.state = HAUL_BROADCAST_LEFT;
  join_report(join, until);
  member_remove(join, join->place, join->id, until);
}

void join_close(struct join *join) {
  struct haul_error error = *haul_error_last(); /* of the call that fails */
  if (!join)
    return;
  leave(join);
  join_lost(join);
  haul_region_release(join->exchange);
  free(join->cards);
  free(join->order);
  free(join->feeders);
  free(join);
  if (error.code)
    haul_error_set(&error);
}

/* ---- Wait for a version ---- */

/* At the deadline. The last look may have had no time left: then the result of the one before
 * counts. */
static int next_failed(const haul_broadcast *broadcast, uint64_t after, int code,
                       const struct haul_error *before) {
  if (code == HAUL_ETIMEDOUT && before->code) {
    haul_error_set(before);
    return before->code;
  }
  if (code && (code != HAUL_ETIMEDOUT || !broadcast->join->seen))
    return code;
  return fail(HAUL_ETIMEDOUT, "haul_broadcast_next", broadcast->name,
              "publish one at the source, or allow more time",
              "no version newer than %" PRIu64 " came in time", after);
}

int haul_broadcast_next(haul_broadcast *broadcast, uint64_t after, haul_deadline until,
                        struct haul_broadcast_version *version) {
  struct haul_error before = {0};
  if (!broadcast || !broadcast->join || !version)
    return fail(HAUL_EINVAL, "haul_broadcast_next", NULL,
                "pass a broadcast of haul_broadcast_join, and room",
                "this is no receiver, or an argument is NULL");
  struct join *join = broadcast->join;
  int code = owner_check(broadcast->owner, "haul_broadcast_next");
  if (code)
    return code;
  for (;;) {
    struct head head = {0};
    code = join_connect(join, until);
    if (!code)
      code = join_head(join, until, &head);
    if (!code && head.version > after) {
      join->known = head;
      *version = (struct haul_broadcast_version){head.version, head.length, head.chunk};
      return 0;
    }
    if (now_ns() >= until || code == HAUL_ECLOSED)
      return next_failed(broadcast, after, code, &before);
    before = code ? *haul_error_last() : (struct haul_error){0};
    if (code)
      join_lost(join);
    else
      join_poll(join, until);
    pause_until(broadcast, sooner(until, 100 * HAUL_MILLISECOND));
  }
}
