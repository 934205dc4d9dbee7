/* SPDX-License-Identifier: MIT
 *
 * haul explain: the paths that a transfer would have.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/json.h"
#include "common/options.h"
#include "common/paths.h"
#include "common/session.h"
#include "common/table.h"
#include "common/units.h"
#include "common/words.h"

#define SIZE_DEFAULT (UINT64_C(1) << 20)
#define SIZE_ATOMIC  UINT64_C(8)

struct values {
  uint64_t size; /* 0: not given */
  const char *operation;
  struct transfer_choices transfer;
  int json;
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
  snprintf(note, sizeof(note), "%s%s%s", path->detail, *path->detail && *path->reason ? "; " : "",
           path->reason);
  table_row(table, path->name, path_state(path), path->open ? time_text(path->cost_ns).text : "-",
            path->open ? rate_text(bytes, (int64_t)path->cost_ns).text : "-", copies,
            !path->open       ? "-"
            : path->zero_copy ? "yes"
                              : "no",
            note);
}

static void print_table(const struct answer *answer) {
  struct table table;
  bool writes = strcmp(answer->operation, "write") == 0;
  printf("%s %s, %s at %s %s %s\n", answer->operation, size_text(answer->size).text, answer->target,
         place_text(answer->there).text, writes ? "<-" : "->", place_text(answer->here).text);
  table_init(&table, "llrrlll");
  table_row(&table, "PATH", "STATE", "COST", "RATE", "COPIES", "ZERO-COPY", "WHY");
  for (size_t i = 0; i < answer->count; i++)
    add_row(&table, &answer->paths[i], answer->size);
  table_print(&table, stdout);
  table_free(&table);
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
  json_end_object(&json);
}

static int fail_size(const struct answer *answer, uint64_t length) {
  return fail_because("`haul ls` shows the sizes of regions",
                      "cannot explain %llu bytes: %s has %llu", (unsigned long long)answer->size,
                      answer->target, (unsigned long long)length);
}

static int ask(const struct session *session, const struct values *values, struct answer *answer) {
  struct haul_transfer_options choices = transfer_options(&values->transfer);
  if (!answer->operation)
    answer->operation = haul_remote_rights(session->remote) & HAUL_WRITE ? "write" : "read";
  enum haul_operation operation = (enum haul_operation)operation_named(answer->operation);
  uint64_t usual = is_atomic((int)operation) ? SIZE_ATOMIC : SIZE_DEFAULT;
  uint64_t length = haul_remote_length(session->remote);
  haul_region *local = NULL;
  answer->there = haul_remote_place(session->remote);
  answer->size = values->size ? values->size : length < usual ? length : usual;
  if (answer->size > length)
    return fail_size(answer, length);
  if (haul_region_alloc(session->node, answer->here, (size_t)answer->size, 0, &local))
    return fail_library("cannot allocate %s at %s", size_text(answer->size).text,
                        place_text(answer->here).text);
  answer->count = HAUL_PATHS_MAX;
  int result = haul_explain(local, session->remote, operation, answer->size, &choices,
                            answer->paths, &answer->count);
  if (answer->count > HAUL_PATHS_MAX)
    answer->count = HAUL_PATHS_MAX;
  for (size_t i = 0; i < answer->count; i++)
    words_of_command(answer->paths[i].reason, sizeof(answer->paths[i].reason));
  int status = result ? fail_library("cannot explain the way to %s", answer->target) : EXIT_DONE;
  haul_region_release(local);
  return status;
}

static int explain(const struct target *target, const struct values *values,
                   struct answer *answer) {
  struct session session;
  int64_t timeout = values->transfer.timeout;
  int status = session_open(&session, NULL, target->address, timeout);
  if (status == EXIT_DONE)
    status = session_lookup(&session, target->name, timeout);
  if (status == EXIT_DONE)
    status = ask(&session, values, answer);
  if (status == EXIT_DONE && values->json)
    print_json(answer);
  else if (status == EXIT_DONE)
    print_table(answer);
  session_close(&session);
  return status;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {.operation = NULL};
  struct answer answer = {0};
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
  if (haul_place_parse(operands[0], &answer.here))
    return options_wrong(self, "'%s' is no place; `haul info` lists the places", operands[0]);
  if (!target_parse(operands[1], &target))
    return options_wrong(self, "'%s' is not NODE/NAME", operands[1]);
  answer.operation = values.operation;
  answer.target = operands[1];
  return explain(&target, &values, &answer);
}

const struct command explain_command = {
    .name = "explain",
    .summary = "Show the paths that a transfer would have, without moving a byte",
    .usage = "PLACE NODE/NAME [OPTIONS]",
    .about = "Lists the paths between memory at PLACE (host, sim:0) and the region NAME of the\n"
             "node: the one that would be taken, the other open ones by estimated cost, and for\n"
             "each closed one the reason.",
    .options = options,
    .examples = "  haul explain host 127.0.0.1:7420/weights\n"
                "  haul explain sim:0 unix:///run/haul.sock/weights --op read --size 64M --json\n",
    .run = run,
};
