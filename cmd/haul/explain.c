/* SPDX-License-Identifier: MIT
 *
 * haul explain: the paths that a transfer would have, for one size and over all.
 */
#include <stdbool.h>
#include <stdlib.h>
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

static const struct option_spec options[] = {
    {"size", OPTION_LENGTH, offsetof(struct values, size), "SIZE",
     "bytes to be moved (default: 1M, or the region where it is smaller; 8 where atomic)"},
    {"op", OPTION_TEXT, offsetof(struct values, operation), "OPERATION",
     "write, read, fetch-add or compare-swap (default: write, or read of what is read-only)"},
    {"only", OPTION_TEXT, offsetof(struct values, transfer.only), "PATH",
     "as if this path alone (map, rdma, tcp) were allowed"},
    {"require-zero-copy", OPTION_FLAG, offsetof(struct values, transfer.zero_copy), NULL,
     "as if no buffer were allowed between source and destination"},
    {"measure", OPTION_FLAG, offsetof(struct values, measure), NULL,
     "read the region by each path first, up to 256 MiB of it, a few times for each size"},
    {"plot", OPTION_TEXT, offsetof(struct values, plot), "FILE.svg",
     "draw what each path costs over size, and where the choice changes, with gnuplot"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, transfer.timeout), "SECONDS",
     "give up connecting, or the lookup, after this (default: 10)"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {0},
};

static const char *const operations[] = {[HAUL_OP_WRITE] = "write",
                                         [HAUL_OP_READ] = "read",
                                         [HAUL_OP_FETCH_ADD] = "fetch-add",
                                         [HAUL_OP_COMPARE_SWAP] = "compare-swap"};

/* 0: there is none of this name. */
static int operation_named(const char *name) {
  for (int i = HAUL_OP_WRITE; i <= HAUL_OP_COMPARE_SWAP; i++)
    if (strcmp(operations[i], name) == 0)
      return i;
  return 0;
}

static bool is_atomic(int operation) {
  return operation >= HAUL_OP_FETCH_ADD;
}

/* What was asked, and the answer. */
struct answer {
  const char *operation, *target;
  uint64_t size;
  struct haul_place here, there;
  size_t count;
  struct haul_path paths[HAUL_PATHS_MAX];
  struct curve curve; /* of an atomic operation there is none: no points */
};

static void copies_text(const struct haul_path *path, char *text, size_t size) {
  if (path->open)
    snprintf(text, size, "cpu %u, kernel %u, dma %u", path->copies_cpu, path->copies_kernel,
             path->copies_dma);
  else
    snprintf(text, size, "-");
}

static void add_row(struct table *table, const struct haul_path *path, uint64_t bytes) {
  char copies[64], note[sizeof(path->detail) + sizeof(path->reason) + 4];
  copies_text(path, copies, sizeof(copies));
  snprintf(note, sizeof(note), "%s%s%s", path->open ? path->detail : "",
           path->open && *path->detail && *path->reason ? "; " : "", path->reason);
  table_row(table, path->name, path_state(path), path->open ? time_text(path->cost_ns).text : "-",
            path->open ? rate_text(bytes, (int64_t)path->cost_ns).text : "-", copies,
            !path->open       ? "-"
            : path->zero_copy ? "yes"
                              : "no",
            note);
}

/* As reports have it: from where to where. */
static void heading(const struct answer *answer, char *text, size_t size) {
  if (strcmp(answer->operation, "write") == 0)
    snprintf(text, size, "%s -> %s at %s", place_text(answer->here).text, answer->target,
             place_text(answer->there).text);
  else
    snprintf(text, size, "%s at %s -> %s", answer->target, place_text(answer->there).text,
             place_text(answer->here).text);
}

static void print_heading(const struct answer *answer) {
  char ends[512];
  heading(answer, ends, sizeof(ends));
  printf("%s %s, %s\n", answer->operation, size_text(answer->size).text, ends);
}

static void print_table(const struct answer *answer) {
  struct table table;
  print_heading(answer);
  table_init(&table, "llrrlll");
  table_row(&table, "PATH", "STATE", "COST", "RATE", "COPIES", "ZERO-COPY", "WHY");
  for (size_t i = 0; i < answer->count; i++)
    add_row(&table, &answer->paths[i], answer->size);
  table_print(&table, stdout);
  table_free(&table);
  if (answer->curve.points == 0)
    return;
  putchar('\n');
  curve_print(&answer->curve, stdout);
}

static void print_json(const struct answer *answer) {
  struct json json;
  json_begin(&json, stdout);
  json_object(&json, NULL);
  json_text(&json, "operation", answer->operation);
  json_text(&json, "target", answer->target);
  json_text(&json, "local_place", place_text(answer->here).text);
  json_text(&json, "remote_place", place_text(answer->there).text);
  json_number(&json, "bytes", answer->size);
  paths_to_json(&json, "paths", answer->paths, answer->count);
  if (answer->curve.points)
    curve_to_json(&answer->curve, &json);
  json_end_object(&json);
}

static int fail_size(const struct answer *answer, uint64_t length) {
  return fail_because("`haul ls` shows the sizes of regions",
                      "cannot explain %llu bytes: %s has %llu", (unsigned long long)answer->size,
                      answer->target, (unsigned long long)length);
}

static int ask_for_one(const struct curve_asked *asked, struct answer *answer) {
  answer->count = HAUL_PATHS_MAX;
  int result = haul_explain(asked->local, asked->remote, asked->operation, answer->size,
                            &asked->options, answer->paths, &answer->count);
  if (answer->count > HAUL_PATHS_MAX)
    answer->count = HAUL_PATHS_MAX;
  for (size_t i = 0; i < answer->count; i++)
    use_command_terms(answer->paths[i].reason, sizeof(answer->paths[i].reason));
  return result;
}

static int ask_for_all(const struct curve_asked *asked, bool measure, struct answer *answer) {
  bool told = true;
  int result = measure ? curve_measure(asked, &told) : 0;
  if (result == 0 && !told)
    return fail_because("the setting estimates_only ends all corrections: leave it out",
                        "cannot measure the way to %s: nothing is learned", answer->target);
  if (result == 0)
    result = ask_for_one(asked, answer);
  if (result == 0 && !is_atomic((int)asked->operation))
    result = curve_make(asked, &answer->curve);
  return result ? fail_library("cannot explain the way to %s", answer->target) : EXIT_DONE;
}

/* What is measured is read into as much memory as that takes. */
static uint64_t bytes_needed(const struct answer *answer, bool measure, uint64_t length) {
  uint64_t most = !measure ? 0 : length < CURVE_MOST ? length : CURVE_MOST;
  return most > answer->size ? most : answer->size;
}

static int ask(const struct session *session, const struct values *values, struct answer *answer) {
  struct curve_asked asked = {.remote = session->remote,
                              .options = transfer_options(&values->transfer)};
  if (!answer->operation)
    answer->operation =
        haul_remote_rights(session->remote) & HAUL_WRITE && !values->measure ? "write" : "read";
  asked.operation = (enum haul_operation)operation_named(answer->operation);
  asked.most = haul_remote_length(session->remote);
  uint64_t usual = is_atomic((int)asked.operation) ? SIZE_ATOMIC : SIZE_DEFAULT;
  answer->there = haul_remote_place(session->remote);
  answer->size = values->size ? values->size : asked.most < usual ? asked.most : usual;
  if (answer->size > asked.most)
    return fail_size(answer, asked.most);
  uint64_t needed = bytes_needed(answer, values->measure, asked.most);
  if (haul_region_alloc(session->node, answer->here, (size_t)needed, 0, &asked.local))
    return fail_library("cannot allocate %s at %s", size_text(needed).text,
                        place_text(answer->here).text);
  int status = ask_for_all(&asked, values->measure, answer);
  haul_region_release(asked.local);
  return status;
}

static int draw(const struct answer *answer, struct gnuplot *plot) {
  char title[600], ends[512];
  heading(answer, ends, sizeof(ends));
  snprintf(title, sizeof(title), "haul explain: %s, %s", answer->operation, ends);
  return curve_plot(&answer->curve, title, plot);
}

static int explain(const struct target *target, const struct values *values,
                   struct answer *answer) {
  struct session session = {.node = NULL};
  struct gnuplot *plot = NULL;
  int64_t timeout = values->transfer.timeout;
  int status = values->plot ? gnuplot_open(values->plot, &plot) : EXIT_DONE;
  if (status == EXIT_DONE)
    status = session_open(&session, NULL, target->address, timeout);
  if (status == EXIT_DONE)
    status = session_lookup(&session, target->name, timeout);
  if (status == EXIT_DONE)
    status = ask(&session, values, answer);
  if (status == EXIT_DONE && plot && !answer->paths[0].open)
    status = fail_because("the table without --plot says why", "every path is closed: there is "
                                                               "nothing to draw");
  else if (status == EXIT_DONE && plot)
    status = draw(answer, plot);
  if (status == EXIT_DONE && values->json)
    print_json(answer);
  else if (status == EXIT_DONE)
    print_table(answer);
  session_close(&session);
  gnuplot_close(plot);
  return status;
}

/* What fits not together. */
static const char *contradiction(const struct values *values, int operation) {
  if (values->measure && values->operation && operation != HAUL_OP_READ)
    return "--measure reads the region, and takes no other --op";
  if (values->plot && strcmp(values->plot, "-") == 0)
    return "the picture goes into a file: standard output has the tables";
  if (values->plot && is_atomic(operation))
    return "an atomic operation has one size: there is nothing to --plot";
  return NULL;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {.operation = NULL};
  static struct answer answer;
  struct target target;
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){2, 2}, &operands, &status))
    return status;
  int operation = values.operation ? operation_named(values.operation) : HAUL_OP_WRITE;
  if (!operation)
    return options_wrong(self, "'%s' is none of write, read, fetch-add and compare-swap",
                         values.operation);
  if (is_atomic(operation) && values.size && values.size != SIZE_ATOMIC)
    return options_wrong(self, "%s is one of 8 bytes: leave --size out", values.operation);
  const char *wrong = contradiction(&values, operation);
  if (wrong)
    return options_wrong(self, "%s", wrong);
  if (!options_place(self, operands[0], &answer.here) ||
      !options_target(self, operands[1], &target))
    return EXIT_USAGE;
  answer.operation = values.operation;
  answer.target = operands[1];
  return explain(&target, &values, &answer);
}

const struct command explain_command = {
    .name = "explain",
    .summary = "Show the paths that a transfer would have, and what they cost",
    .usage = "PLACE NODE/NAME [OPTIONS]",
    .about = "Lists the paths between memory at PLACE (host, sim:0) and the region NAME of the\n"
             "node: the one that would be taken, the other open ones by estimated cost, and for\n"
             "each closed one the reason. Then, over sizes: which path is taken, how it sends\n"
             "(short: within the call; buffered: copied first; direct: from where the bytes lie),\n"
             "and what each costs; est. is estimated, all else measured.",
    .options = options,
    .examples = "  haul explain host 127.0.0.1:7420/weights\n"
                "  haul explain sim:0 unix:///run/haul.sock/weights --op read --size 64M --json\n"
                "  haul explain host 10.0.0.2:7420/weights --measure --plot weights.svg\n",
    .run = run,
};
