/* SPDX-License-Identifier: MIT
 * haul explain: the paths of a transfer, for one size and over all sizes. */
#include <stdbool.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/gnuplot.h"
#include "common/options.h"
#include "common/output.h"
#include "common/session.h"
#include "common/tally.h"
#include "common/text.h"
#include "explain.h"

#define SIZE_DEFAULT (UINT64_C(1) << 20)
#define SIZE_ATOMIC  UINT64_C(8)

struct values {
  uint64_t size; /* 0: not given */
  const char *operation;
  struct transfer_choices transfer;
  const char *plot;
  int measure, json;
};

static struct values given = {.operation = NULL};

static const struct option_spec options[] = {
    {"size", OPTION_LENGTH, offsetof(struct values, size), "SIZE",
     "size of the transfer (default: 1M, at most the region; 8 for atomic operations)"},
    {"op", OPTION_TEXT, offsetof(struct values, operation), "OPERATION",
     "write, read, fetch-add or compare-swap (default: write; read if read-only or with "
     "--measure)"},
    {"only", OPTION_PATH, offsetof(struct values, transfer.only), "PATH",
     "allow only this path (map, rdma, tcp)"},
    {"require-zero-copy", OPTION_FLAG, offsetof(struct values, transfer.zero_copy), NULL,
     "allow no buffer between source and destination"},
    {"measure", OPTION_FLAG, offsetof(struct values, measure), NULL,
     "read up to 256 MiB of the region over each path first, a few times for each size, "
     "and explain a read"},
    {"plot", OPTION_TEXT, offsetof(struct values, plot), "FILE.svg",
     "plot the cost of each path over size, and the changes of the choice, with gnuplot"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, transfer.timeout), "SECONDS",
     "limit the time to connect and to look the region up (default: 10)"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {0},
};

/* 0: unknown name. */
static int operation_named(const char *name) {
  for (int i = HAUL_OP_WRITE; i <= HAUL_OP_COMPARE_SWAP; i++)
    if (strcmp(operation_text(i), name) == 0)
      return i;
  return 0;
}

static bool is_atomic(int operation) {
  return operation >= HAUL_OP_FETCH_ADD;
}

/* The transfer and its paths. */
struct explanation {
  const char *operation, *target;
  const char *why_read; /* instead of the usual write; NULL: no reason */
  struct haul_place here, there;
  struct curve_point point; /* of its size */
  struct curve curve;       /* no points for an atomic operation */
};

static void add_row(struct table *table, const struct haul_path *path, uint64_t bytes) {
  char copies[64] = "-", note[sizeof(path->detail) + sizeof(path->reason) + 64];
  bool wanted = given.transfer.only && strcmp(given.transfer.only, path->name) == 0;
  if (path->open)
    snprintf(copies, sizeof(copies), "cpu %u, kernel %u, dma %u", path->copies_cpu,
             path->copies_kernel, path->copies_dma);
  snprintf(note, sizeof(note), "%s%s%s%s%s", path->open ? path->detail : "",
           path->open && *path->detail && *path->reason ? "; " : "", path->reason,
           wanted && !path->open ? "; see haul doctor " : "",
           wanted && !path->open ? path->name : "");
  table_row(table, path->name, path_state(path), path->open ? time_text(path->cost_ns).text : "-",
            path->open ? rate_text(bytes, (int64_t)path->cost_ns).text : "-", copies,
            !path->open       ? "-"
            : path->zero_copy ? "yes"
                              : "no",
            note);
}

/* Writes source and destination in the form of reports. */
static void heading(const struct explanation *result, char *text, size_t size) {
  if (strcmp(result->operation, "write") == 0)
    snprintf(text, size, "%s -> %s at %s", place_text(result->here).text, result->target,
             place_text(result->there).text);
  else
    snprintf(text, size, "%s at %s -> %s", result->target, place_text(result->there).text,
             place_text(result->here).text);
}

static void print_explain_table(const struct explanation *result) {
  char ends[512];
  heading(result, ends, sizeof(ends));
  printf("%s %s, %s\n", result->operation, size_text(result->point.bytes).text, ends);
  if (result->why_read)
    printf("a read, %s\n", result->why_read);
  struct table table =
      table_begin("llrrlll", "PATH", "STATE", "COST", "RATE", "COPIES", "ZERO-COPY", "WHY");
  for (size_t i = 0; i < result->point.count; i++)
    add_row(&table, &result->point.paths[i], result->point.bytes);
  table_end(&table);
  if (result->curve.points == 0 || !curve_is_open(&result->curve))
    return;
  putchar('\n');
  curve_print(&result->curve);
}

static void print_explain_json(const struct explanation *result) {
  struct json json = json_open();
  json_text(&json, "operation", result->operation);
  if (result->why_read)
    json_text(&json, "why_read", result->why_read);
  json_text(&json, "target", result->target);
  json_text(&json, "local_place", place_text(result->here).text);
  json_text(&json, "remote_place", place_text(result->there).text);
  json_number(&json, "bytes", result->point.bytes);
  paths_to_json(&json, "paths", result->point.paths, result->point.count);
  if (result->curve.points)
    curve_to_json(&result->curve, &json);
  json_end_object(&json);
}

static int explain_size(const struct curve_input *input, struct explanation *result) {
  struct curve_point *point = &result->point;
  int code = curve_explain(input, point->bytes, point);
  for (size_t i = 0; i < point->count; i++)
    use_command_terms(point->paths[i].reason, sizeof(point->paths[i].reason));
  return code;
}

static int explain_all(const struct curve_input *input, bool measure, struct explanation *result) {
  bool known = true;
  int code = measure ? curve_measure(input, &known) : 0;
  if (code == 0 && !known)
    return fail_because(
        "unset estimates_only",
        "cannot measure the paths to %s: the setting estimates_only disables cost feedback",
        result->target);
  if (code == 0)
    code = explain_size(input, result);
  if (code == 0 && !is_atomic((int)input->operation))
    code = curve_make(input, &result->curve);
  return code ? fail_library("cannot explain the paths to %s", result->target) : EXIT_DONE;
}

/* The size of the local memory. */
static uint64_t bytes_needed(const struct explanation *result, bool measure, uint64_t length) {
  uint64_t measured = length < CURVE_MOST ? length : CURVE_MOST;
  if (!measure || measured < result->point.bytes)
    return result->point.bytes;
  return measured;
}

static int explain_region(const struct session *session, struct explanation *result) {
  struct curve_input input = {.remote = session->remote,
                              .options = transfer_options(&given.transfer)};
  if (!result->operation && given.measure)
    result->why_read = "as --measure leaves the region unchanged";
  else if (!result->operation && !(haul_remote_rights(session->remote) & HAUL_WRITE))
    result->why_read = "as the region is read-only";
  if (!result->operation)
    result->operation = result->why_read ? "read" : "write";
  input.operation = (enum haul_operation)operation_named(result->operation);
  input.most = haul_remote_length(session->remote);
  uint64_t usual = is_atomic((int)input.operation) ? SIZE_ATOMIC : SIZE_DEFAULT;
  result->there = haul_remote_place(session->remote);
  result->point.bytes = given.size ? given.size : input.most < usual ? input.most : usual;
  if (result->point.bytes > input.most)
    return fail_because(
        "`haul ls` shows the sizes of regions", "cannot explain %llu bytes: %s has %llu",
        (unsigned long long)result->point.bytes, result->target, (unsigned long long)input.most);
  uint64_t needed = bytes_needed(result, given.measure, input.most);
  if (haul_region_alloc(session->node, result->here, (size_t)needed, 0, &input.local))
    return fail_library("cannot allocate %s at %s", size_text(needed).text,
                        place_text(result->here).text);
  int status = explain_all(&input, given.measure, result);
  haul_region_release(input.local);
  return status;
}

static int draw(const struct explanation *result, struct gnuplot *plot) {
  char title[600], ends[512];
  heading(result, ends, sizeof(ends));
  snprintf(title, sizeof(title), "haul explain: %s, %s", result->operation, ends);
  return curve_plot(&result->curve, title, plot);
}

static int explain(const struct target *target, struct explanation *result) {
  struct session session = {.node = NULL};
  struct gnuplot *plot = NULL;
  int64_t timeout = given.transfer.timeout;
  int status = given.plot ? gnuplot_open(given.plot, &plot) : EXIT_DONE;
  if (status == EXIT_DONE)
    status = session_open(&session, NULL, target->address, timeout);
  if (status == EXIT_DONE)
    status = session_lookup(&session, target->name, timeout);
  if (status == EXIT_DONE)
    status = explain_region(&session, result);
  if (status == EXIT_DONE && plot && !result->point.paths[0].open)
    status = fail_because("leave --plot out: the table has the reasons",
                          "cannot plot: every path is closed");
  else if (status == EXIT_DONE && plot)
    status = draw(result, plot);
  if (status == EXIT_DONE && given.json)
    print_explain_json(result);
  else if (status == EXIT_DONE)
    print_explain_table(result);
  session_close(&session);
  gnuplot_close(plot);
  return status;
}

/* Returns the error text of options that exclude each other, or NULL. */
static const char *find_conflict(int operation) {
  if (given.measure && given.operation && operation != HAUL_OP_READ)
    return "--measure works with --op read only";
  if (given.plot && strcmp(given.plot, "-") == 0)
    return "--plot needs a file: standard output has the tables";
  if (given.plot && is_atomic(operation))
    return "--plot does not work with atomic operations, which have one size";
  return NULL;
}

static int run_explain(const struct command *self, char **operands) {
  static struct explanation result;
  struct target target;
  int operation = given.operation ? operation_named(given.operation) : HAUL_OP_WRITE;
  if (!operation)
    return options_wrong(self, "invalid --op '%s': expected write, read, fetch-add or compare-swap",
                         given.operation);
  if (is_atomic(operation) && given.size && given.size != SIZE_ATOMIC)
    return options_wrong(self, "invalid --size: %s has 8 bytes", given.operation);
  const char *wrong = find_conflict(operation);
  if (wrong)
    return options_wrong(self, "%s", wrong);
  if (!options_place(self, operands[0], &result.here) ||
      !options_target(self, operands[1], &target))
    return EXIT_USAGE;
  result.operation = given.operation;
  result.target = operands[1];
  return explain(&target, &result);
}

const struct command explain_command = {
    .name = "explain",
    .summary = "Show the paths of a transfer and their cost",
    .usage = "PLACE NODE/NAME [OPTIONS]",
    .about = "Lists the paths between memory at PLACE (host, sim:0) and the region NAME of the\n"
             "node: the chosen one, other open ones by estimated cost, and closed ones with the\n"
             "reason. Then, for each size: the chosen path, its send mode (short: within the\n"
             "call; buffered: copied first; direct: from the memory itself) and the cost of each\n"
             "path, measured or estimated (est.).",
    .options = options,
    .examples = "  haul explain host 127.0.0.1:7420/weights\n"
                "  haul explain sim:0 unix:///run/haul.sock/weights --op read --size 64M --json\n"
                "  haul explain host 10.0.0.2:7420/weights --measure --plot weights.svg\n",
    .values = &given,
    .least = 2,
    .most = 2,
    .run = run_explain,
};
