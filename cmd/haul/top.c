/* SPDX-License-Identifier: MIT
 * haul top: the activity of a node by path and by peer. Rates are differences of counters between
 * two snapshots. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/screen.h"
#include "common/session.h"
#include "common/text.h"
#include "top.h"

#define INTERVAL_NS INT64_C(1000000000)
#define FIRST_NS    INT64_C(250000000) /* at most, until the screen has rates */
#define HEAD_LINES  8                  /* above the peers, at most */
#define PEERS_MOST  65536              /* bounds memory, as the node chooses the number */
#define NAME_WIDTH  16                 /* of a peer in the table, so that it fits 80 columns */

struct values {
  const char *sort, *color;
  int once, json;
  int64_t interval, timeout;
};

static struct values given = {.sort = "busy", .color = "auto"};

static const struct option_spec options[] = {
    {"interval", OPTION_SECONDS, offsetof(struct values, interval), "SECONDS",
     "set the time between snapshots (default: 1)"},
    {"once", OPTION_FLAG, offsetof(struct values, once), NULL,
     "take two snapshots, print the difference, and exit"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON; requires --once"},
    {"sort", OPTION_TEXT, offsetof(struct values, sort), "ORDER",
     "sort peers by busy, out, in, errors, queue or name (default: busy)"},
    {"color", OPTION_TEXT, offsetof(struct values, color), "WHEN",
     "color the screen: auto (unless NO_COLOR is set), always or never"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the wait for a response (default: 10)"},
    {0},
};

static const char *const sort_names[] = {"busy", "out", "in", "errors", "queue", "name"};

const char *sort_name(enum top_sort sort) {
  return sort_names[sort];
}

/* Returns 0 or a code of the library. */
static int take_snapshot(const struct session *session, struct snapshot *snapshot) {
  haul_deadline until = connect_deadline(given.timeout);
  for (size_t room = snapshot->count + 64;;
       room = 2 * room > snapshot->count ? 2 * room : snapshot->count) {
    if (room > PEERS_MOST)
      room = PEERS_MOST;
    snapshot->count = room;
    snapshot->peers = must_realloc(snapshot->peers, room * sizeof *snapshot->peers);
    int code = haul_peer_stats_of(session->peer, until, &snapshot->node, snapshot->peers,
                                  &snapshot->count);
    if (code)
      return code;
    snapshot->at = now_ns();
    if (snapshot->count > PEERS_MOST)
      snapshot->count = PEERS_MOST;
    if (snapshot->count <= room)
      return 0;
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

void add_rates(struct rates *rates, const struct haul_path_stats *now,
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

/* Scaled by a power of 1000. */
struct unit_text short_rate(double value) {
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

struct unit_text short_number(uint64_t value) {
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
              short_number(rates.errors).text);
  }
  table_end(&table);
}

static double sum(const struct rates *rates) {
  return rates->out + rates->in + rates->served_out + rates->served_in;
}

static double sort_value(const struct line *line, enum top_sort by) {
  switch (by) {
  case SORT_OUT:
    return line->rates.out + line->rates.served_out;
  case SORT_IN:
    return line->rates.in + line->rates.served_in;
  case SORT_ERRORS:
    return (double)line->rates.errors;
  case SORT_QUEUE:
    return line->peer->transfers;
  default:
    return sum(&line->rates);
  }
}

/* The largest value first, names by the alphabet; equal ones by number. */
static int compare(const void *one, const void *other, void *context) {
  const struct line *a = one, *b = other;
  const struct top_order *order = context;
  double value_a = sort_value(a, order->by), value_b = sort_value(b, order->by);
  int result = value_a < value_b ? 1 : value_a > value_b ? -1 : 0;
  if (order->by == SORT_NAME)
    result = strcmp(a->peer->name, b->peer->name);
  if (result != 0)
    return order->reversed ? -result : result;
  return a->peer->number < b->peer->number ? -1 : 1;
}

struct line *sorted_lines(const struct snapshot *now, const struct snapshot *last, double seconds,
                          struct top_order order) {
  struct line *lines = must_realloc(NULL, (now->count + 1) * sizeof *lines);
  for (size_t i = 0; i < now->count; i++) {
    lines[i].peer = &now->peers[i];
    lines[i].rates = rates_of(&now->peers[i], last, seconds, &lines[i].path);
  }
  if (now->count > 0)
    qsort_r(lines, now->count, sizeof *lines, compare, &order);
  return lines;
}

static void print_peers(const struct snapshot *now, const struct snapshot *last, double seconds,
                        struct top_order order, size_t most) {
  struct line *lines = sorted_lines(now, last, seconds, order);
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
              short_rate(rates->served_in).text, short_number(peer->transfers).text,
              short_number(rates->errors).text);
  }
  table_end(&table);
  if (shown < now->count)
    printf("and %zu more\n", now->count - shown);
  free(lines);
}

static void print_tables(const struct snapshot *now, const struct snapshot *last,
                         struct top_order order, size_t most) {
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
  print_peers(now, last, seconds, order, most);
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

/* How the command goes on. */
struct view {
  int64_t interval;
  struct top_order order;
  bool screen, colors;
  bool left; /* by the key q */
};

static void press(struct view *view, int key) {
  if (key == 's')
    view->order.by = (view->order.by + 1) % SORTS;
  if (key == 'r')
    view->order.reversed = !view->order.reversed;
  if (key == 'q')
    view->left = true;
}

/* Draws until it is time for the next snapshot. Returns 0 or an error number. */
static int watch(struct view *view, const struct snapshot *now, const struct snapshot *last) {
  int64_t until = now_ns() + view->interval;
  int error = 0;
  do {
    error = top_draw(now, last, view->order, view->colors);
    press(view, screen_wait(until - now_ns()));
  } while (!error && !view->left && !interrupted() && now_ns() < until);
  return error;
}

/* Returns 0 or an error number. */
static int print_top(const struct view *view, const struct snapshot *now,
                     const struct snapshot *last) {
  if (given.json)
    print_top_json(now, last);
  else
    print_tables(now, last, view->order, lines_for_peers());
  if (!given.once)
    printf("\n");
  return fflush(stdout) ? errno : 0;
}

/* On the screen an interval follows each drawing, a short one the first, which has no rates; else
 * it precedes each output. */
static int show(const struct session *session, struct view *view) {
  struct snapshot snapshots[2] = {0};
  int code = take_snapshot(session, &snapshots[0]), error = 0;
  const int64_t interval = view->interval;
  view->interval = interval < FIRST_NS ? interval : FIRST_NS;
  if (code == 0 && view->screen)
    error = watch(view, &snapshots[0], &snapshots[0]);
  view->interval = interval;
  for (unsigned i = 1; code == 0 && !error && !view->left; i++) {
    struct snapshot *now = &snapshots[i % 2], *last = &snapshots[(i + 1) % 2];
    if (!view->screen)
      wait_for(view->interval);
    if (interrupted() && !given.once)
      break;
    code = take_snapshot(session, now);
    if (code == 0)
      error = view->screen ? watch(view, now, last) : print_top(view, now, last);
    if (given.once)
      break;
  }
  free(snapshots[0].peers);
  free(snapshots[1].peers);
  screen_close(); /* before any message */
  return error  ? fail_system(error, "cannot write to standard output")
         : code ? fail_library("cannot read the statistics of the node")
                : EXIT_DONE;
}

/* False: unknown name. */
static bool find_sort(const char *name, enum top_sort *sort) {
  for (*sort = 0; *sort < SORTS; (*sort)++)
    if (strcmp(sort_names[*sort], name) == 0)
      return true;
  return false;
}

/* https://no-color.org: NO_COLOR has any value. */
static bool wants_colors(void) {
  const char *none = getenv("NO_COLOR");
  return strcmp(given.color, "always") == 0 ||
         (strcmp(given.color, "auto") == 0 && !(none && *none));
}

static bool is_when(const char *text) {
  return strcmp(text, "auto") == 0 || strcmp(text, "always") == 0 || strcmp(text, "never") == 0;
}

static int run_top(const struct command *self, char **operands) {
  struct session session;
  struct view view = {0};
  char address[ADDRESS_MAX];
  if (given.json && !given.once)
    return options_wrong(self, "--json requires --once");
  if (!find_sort(given.sort, &view.order.by))
    return options_wrong(self, "invalid --sort '%s': expected busy, out, in, errors, queue or name",
                         given.sort);
  if (!is_when(given.color))
    return options_wrong(self, "invalid --color '%s': expected auto, always or never", given.color);
  if (!options_address(self, operands[0], DEFAULT_PORT, address))
    return EXIT_USAGE;
  view.interval = given.interval ? given.interval : INTERVAL_NS;
  view.screen = !given.once && screen_is_possible();
  view.colors = wants_colors();
  interrupt_catch();
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  char name[32];
  snprintf(name, sizeof name, "haul-top:%d", (int)getpid());
  config.name = name; /* marks this command among the peers */
  int status = session_open(&session, &config, address, given.timeout);
  if (status == EXIT_DONE && view.screen)
    screen_open();
  if (status == EXIT_DONE)
    status = show(&session, &view);
  session_close(&session);
  return status;
}

const struct command top_command = {
    .name = "top",
    .summary = "Show the activity of a node by path and by peer",
    .usage = "NODE [OPTIONS]",
    .about =
        "Shows, each second until SIGINT, the bytes that the node's own transfers write (OUT) and\n"
        "read (IN), the bytes that transfers of its peers read and write there (SERVED; over map\n"
        "as the peers tell, not over rdma), transfers in progress (QUEUE) and failed slices. The\n"
        "busiest peers come first. On a terminal bars compare the sums, s changes the order of\n"
        "the peers, r reverses it and q quits. A node with a key allows this to its own user over\n"
        "its Unix\n"
        "socket, and to all peers if any_observer is set (haul.conf).",
    .options = options,
    .examples = "  haul top 10.0.0.2\n"
                "  haul top unix:///run/haul.sock --interval 0.2 --sort out\n"
                "  haul top etcd://10.0.0.9/cluster/gpu-7 --once --json\n",
    .values = &given,
    .least = 1,
    .most = 1,
    .run = run_top,
};
