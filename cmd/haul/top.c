/* SPDX-License-Identifier: MIT
 * haul top: the activity of a node by path and by peer. Rates are differences of counters between
 * two snapshots. */
#include <errno.h>
#include <haul/stats.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"

#define INTERVAL_NS INT64_C(1000000000)
#define HEAD_LINES  8     /* above the peers, at most */
#define PEERS_MOST  65536 /* bounds memory, as the node chooses the number */
#define NAME_WIDTH  16    /* of a peer in the table, so that it fits 80 columns */

struct values {
  int once, json;
  int64_t interval, timeout;
};

static struct values given;

static const struct option_spec options[] = {
    {"interval", OPTION_SECONDS, offsetof(struct values, interval), "SECONDS",
     "set the time between snapshots (default: 1)"},
    {"once", OPTION_FLAG, offsetof(struct values, once), NULL,
     "take two snapshots, print the difference, and exit"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON; requires --once"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the wait for a response (default: 10)"},
    {0},
};

/* The counters of a node and its peers. */
struct snapshot {
  int64_t at;
  struct haul_node_stats node;
  struct haul_peer_stats *peers;
  size_t count;
};

/* Rates a second between two snapshots, of one path or a sum of paths. */
struct rates {
  double out, in, served_out, served_in, slices;
  uint64_t errors; /* total, not a rate */
};

static int take_snapshot(const struct session *session, struct snapshot *snapshot) {
  haul_deadline until = connect_deadline(given.timeout);
  for (size_t room = snapshot->count + 64;;
       room = 2 * room > snapshot->count ? 2 * room : snapshot->count) {
    if (room > PEERS_MOST)
      room = PEERS_MOST;
    snapshot->count = room;
    snapshot->peers = must_realloc(snapshot->peers, room * sizeof *snapshot->peers);
    if (haul_peer_stats_of(session->peer, until, &snapshot->node, snapshot->peers,
                           &snapshot->count))
      return fail_library("cannot read the statistics of the node");
    snapshot->at = now_ns();
    if (snapshot->count > PEERS_MOST)
      snapshot->count = PEERS_MOST;
    if (snapshot->count <= room)
      return EXIT_DONE;
  }
}

static int compare_numbers(const void *key, const void *peer) {
  uint64_t wanted = *(const uint64_t *)key, number = ((const struct haul_peer_stats *)peer)->number;
  return wanted < number ? -1 : wanted > number;
}

/* Finds a peer in the last snapshot, which is ordered by number. A new peer has zeros there. */
static const struct haul_peer_stats *find_previous(const struct snapshot *last, uint64_t number) {
  static const struct haul_peer_stats none;
  const struct haul_peer_stats *found = NULL;
  if (last->count > 0)
    found = bsearch(&number, last->peers, last->count, sizeof *last->peers, compare_numbers);
  return found ? found : &none;
}

static double rate(uint64_t now, uint64_t then, double seconds) {
  return now > then && seconds > 0 ? (double)(now - then) / seconds : 0;
}

static void add_rates(struct rates *rates, const struct haul_path_stats *now,
                      const struct haul_path_stats *then, double seconds) {
  rates->out += rate(now->bytes_out, then->bytes_out, seconds);
  rates->in += rate(now->bytes_in, then->bytes_in, seconds);
  rates->served_out += rate(now->served_out, then->served_out, seconds);
  rates->served_in += rate(now->served_in, then->served_in, seconds);
  rates->slices += rate(now->writes + now->reads + now->atomics + now->served,
                        then->writes + then->reads + then->atomics + then->served, seconds);
  rates->errors += now->errors;
}

/* The rates of a peer over all its paths, and the busiest path; "-": none. */
static struct rates rates_of(const struct haul_peer_stats *peer, const struct snapshot *last,
                             double seconds, const char **path) {
  const struct haul_peer_stats *then = find_previous(last, peer->number);
  struct rates sum = {0};
  double most = 0;
  *path = "-";
  for (size_t i = 0; i < HAUL_STATS_PATHS && peer->paths[i].path[0]; i++) {
    struct rates one = {0};
    add_rates(&one, &peer->paths[i], &then->paths[i], seconds);
    add_rates(&sum, &peer->paths[i], &then->paths[i], seconds);
    if (one.slices > most) {
      most = one.slices;
      *path = peer->paths[i].path;
    }
  }
  return sum;
}

/* "1.2G": scaled by a power of 1000, in at most five columns. */
static struct unit_text short_rate(double value) {
  static const char units[] = " KMGTP";
  struct unit_text cell;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 2 < sizeof units; unit++)
    value /= 1000;
  if (unit == 0)
    snprintf(cell.text, sizeof cell.text, "%.0f", value);
  else
    snprintf(cell.text, sizeof cell.text, value < 9.95 ? "%.1f%c" : "%.0f%c", value, units[unit]);
  return cell;
}

static struct unit_text number(uint64_t value) {
  struct unit_text cell;
  snprintf(cell.text, sizeof cell.text, "%" PRIu64, value < 99999999 ? value : 99999999);
  return cell;
}

static void print_paths(const struct snapshot *now, const struct snapshot *last, double seconds) {
  struct table table = table_begin("lrrrrrr", "PATH", "OUT/s", "IN/s", "SERVED OUT/s",
                                   "SERVED IN/s", "SLICES/s", "ERRORS");
  for (size_t i = 0; i < HAUL_STATS_PATHS && now->node.paths[i].path[0]; i++) {
    struct rates rates = {0};
    add_rates(&rates, &now->node.paths[i], &last->node.paths[i], seconds);
    table_row(&table, now->node.paths[i].path, short_rate(rates.out).text,
              short_rate(rates.in).text, short_rate(rates.served_out).text,
              short_rate(rates.served_in).text, short_rate(rates.slices).text,
              number(rates.errors).text);
  }
  table_end(&table);
}

struct line {
  const struct haul_peer_stats *peer;
  struct rates rates;
  const char *path;
};

/* Orders by rate, then by number. */
static int compare(const void *one, const void *other) {
  const struct line *a = one, *b = other;
  double busy_a = a->rates.out + a->rates.in + a->rates.served_out + a->rates.served_in;
  double busy_b = b->rates.out + b->rates.in + b->rates.served_out + b->rates.served_in;
  if (busy_a != busy_b)
    return busy_a < busy_b ? 1 : -1;
  return a->peer->number < b->peer->number ? -1 : 1;
}

static struct line *sorted_lines(const struct snapshot *now, const struct snapshot *last,
                                 double seconds) {
  struct line *lines = must_realloc(NULL, (now->count + 1) * sizeof *lines);
  for (size_t i = 0; i < now->count; i++) {
    lines[i].peer = &now->peers[i];
    lines[i].rates = rates_of(&now->peers[i], last, seconds, &lines[i].path);
  }
  if (now->count > 0)
    qsort(lines, now->count, sizeof *lines, compare);
  return lines;
}

static void print_peers(const struct snapshot *now, const struct snapshot *last, double seconds,
                        size_t most) {
  struct line *lines = sorted_lines(now, last, seconds);
  size_t shown = now->count < most ? now->count : most;
  struct table table = table_begin("lllrrrrrr", "PEER", "WHO", "PATH", "OUT/s", "IN/s", "SRV OUT",
                                   "SRV IN", "QUEUE", "ERR");
  for (size_t i = 0; i < shown; i++) {
    const struct haul_peer_stats *peer = lines[i].peer;
    const struct rates *rates = &lines[i].rates;
    char name[NAME_WIDTH + 1], who[13];
    snprintf(name, sizeof name, "%.*s", NAME_WIDTH, peer->name);
    snprintf(who, sizeof who, "%.12s", peer->identity[0] ? peer->identity : "-");
    table_row(&table, name, who, lines[i].path, short_rate(rates->out).text,
              short_rate(rates->in).text, short_rate(rates->served_out).text,
              short_rate(rates->served_in).text, number(peer->transfers).text,
              number(rates->errors).text);
  }
  table_end(&table);
  if (shown < now->count)
    printf("and %zu more\n", now->count - shown);
  free(lines);
}

static void print_screen(const struct snapshot *now, const struct snapshot *last, size_t most) {
  double seconds = (double)(now->at - last->at) / 1e9;
  char name[64];
  snprintf(name, sizeof name, "%s", now->node.name);
  text_clean(name);
  printf("%s  up %s  peers %u  regions %u  transfers %u  failed %" PRIu64 "  retried %" PRIu64
         "\n\n",
         name, clock_text((int64_t)now->node.uptime_ns).text, now->node.peers, now->node.published,
         now->node.transfers, now->node.failed, now->node.retried);
  print_paths(now, last, seconds);
  printf("\n");
  print_peers(now, last, seconds, most);
}

static void path_json(struct json *json, const struct haul_path_stats *path,
                      const struct haul_path_stats *then, double seconds) {
  struct rates rates = {0};
  add_rates(&rates, path, then, seconds);
  json_object(json, NULL);
  json_text(json, "path", path->path);
  json_number(json, "bytes_out", path->bytes_out);
  json_number(json, "bytes_in", path->bytes_in);
  json_number(json, "served_out", path->served_out);
  json_number(json, "served_in", path->served_in);
  json_number(json, "slices", path->writes + path->reads + path->atomics + path->served);
  json_number(json, "errors", path->errors);
  json_real(json, "bytes_out_per_second", rates.out);
  json_real(json, "bytes_in_per_second", rates.in);
  json_real(json, "served_out_per_second", rates.served_out);
  json_real(json, "served_in_per_second", rates.served_in);
  json_end_object(json);
}

static void paths_json(struct json *json, const struct haul_path_stats *paths,
                       const struct haul_path_stats *then, double seconds) {
  json_array(json, "paths");
  for (size_t i = 0; i < HAUL_STATS_PATHS && paths[i].path[0]; i++)
    path_json(json, &paths[i], &then[i], seconds);
  json_end_array(json);
}

static void print_top_json(const struct snapshot *now, const struct snapshot *last) {
  double seconds = (double)(now->at - last->at) / 1e9;
  struct json json = json_open();
  json_text(&json, "node", now->node.name);
  json_real(&json, "seconds", seconds);
  json_real(&json, "uptime_seconds", (double)now->node.uptime_ns / 1e9);
  json_number(&json, "regions", now->node.published);
  json_number(&json, "transfers", now->node.transfers);
  json_number(&json, "transfers_failed", now->node.failed);
  json_number(&json, "slices_retried", now->node.retried);
  json_number(&json, "pool_bytes", now->node.pool_bytes);
  json_number(&json, "staging_bytes", now->node.staging_bytes);
  paths_json(&json, now->node.paths, last->node.paths, seconds);
  json_array(&json, "peers");
  for (size_t i = 0; i < now->count; i++) {
    const struct haul_peer_stats *peer = &now->peers[i], *then = find_previous(last, peer->number);
    json_object(&json, NULL);
    json_number(&json, "number", peer->number);
    json_text(&json, "name", peer->name);
    json_text(&json, "identity", peer->identity);
    json_text(&json, "side", peer->initiator ? "connected to" : "connected");
    json_number(&json, "transfers", peer->transfers);
    json_real(&json, "silent_seconds", (double)peer->silent_ns / 1e9);
    paths_json(&json, peer->paths, then->paths, seconds);
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

/* The number of peers that fit the terminal; unlimited for other output. */
static size_t lines_for_peers(void) {
  struct winsize size;
  if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0)
    return SIZE_MAX;
  size_t head = HEAD_LINES + HAUL_STATS_PATHS;
  return size.ws_row > head + 1 ? size.ws_row - head - 1 : 1;
}

/* Sleeps in slices, as another thread may receive the signal. */
static void wait_for(int64_t nanoseconds) {
  int64_t until = now_ns() + nanoseconds;
  for (int64_t remaining; !interrupted() && (remaining = until - now_ns()) > 0;) {
    int64_t slice = remaining < INTERRUPT_SLICE_NS ? remaining : INTERRUPT_SLICE_NS;
    nanosleep(&(struct timespec){slice / 1000000000, slice % 1000000000}, NULL);
  }
}

static int show(const struct session *session) {
  int64_t interval = given.interval ? given.interval : INTERVAL_NS;
  bool terminal = isatty(STDOUT_FILENO) && !given.once;
  struct snapshot snapshots[2] = {0};
  int status = take_snapshot(session, &snapshots[0]);
  for (unsigned i = 1; status == EXIT_DONE; i++) {
    struct snapshot *now = &snapshots[i % 2], *last = &snapshots[(i + 1) % 2];
    wait_for(interval);
    if (interrupted() && !given.once)
      break;
    status = take_snapshot(session, now);
    if (status)
      break;
    if (terminal)
      fputs("\033[H\033[2J", stdout); /* home, and clear */
    if (given.json)
      print_top_json(now, last);
    else
      print_screen(now, last, lines_for_peers());
    if (!terminal && !given.once)
      printf("\n");
    if (fflush(stdout))
      status = fail_system(errno, "cannot write to standard output");
    if (given.once)
      break;
  }
  free(snapshots[0].peers);
  free(snapshots[1].peers);
  return status;
}

static int run_top(const struct command *self, char **operands) {
  struct session session;
  char address[ADDRESS_MAX];
  if (given.json && !given.once)
    return options_wrong(self, "--json requires --once");
  if (!options_address(self, operands[0], DEFAULT_PORT, address))
    return EXIT_USAGE;
  interrupt_catch();
  int status = session_open(&session, NULL, address, given.timeout);
  if (status == EXIT_DONE)
    status = show(&session);
  session_close(&session);
  return status;
}

const struct command top_command = {
    .name = "top",
    .summary = "Show the activity of a node by path and by peer",
    .usage = "NODE [OPTIONS]",
    .about =
        "Shows, each second until SIGINT, the bytes that the node's own transfers write (OUT) and\n"
        "read (IN), the bytes that transfers of its peers read and write there (SERVED; over map "
        "as\n"
        "the peers tell, not over rdma), transfers in progress (QUEUE) and failed slices. The\n"
        "busiest peers come first. A node with a key allows this to its own user over its Unix\n"
        "socket, and to all peers if any_observer is set (haul.conf).",
    .options = options,
    .examples = "  haul top 10.0.0.2\n"
                "  haul top unix:///run/haul.sock --interval 0.2\n"
                "  haul top etcd://10.0.0.9/cluster/gpu-7 --once --json\n",
    .values = &given,
    .least = 1,
    .most = 1,
    .run = run_top,
};
