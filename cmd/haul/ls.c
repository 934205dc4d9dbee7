/* SPDX-License-Identifier: MIT
 *
 * haul ls: what a node publishes, and the files that it exports.
 */
#include <stdio.h>
#include <stdlib.h>

#include "command.h"
#include "common/fail.h"
#include "common/json.h"
#include "common/options.h"
#include "common/session.h"
#include "common/table.h"
#include "common/units.h"
#include "exported.h"
#include "ls_directory.h"

struct values {
  int json, follow;
  int64_t timeout;
};

static const struct option_spec options[] = {
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {"follow", OPTION_FLAG, offsetof(struct values, follow), NULL,
     "of a directory: go on with a line for each change"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "give up connecting after this (default: 10)"},
    {0},
};

static void print_table(const struct haul_published *entries, size_t count) {
  struct table table;
  table_init(&table, "lrll");
  table_row(&table, "NAME", "SIZE", "PLACE", "RIGHTS");
  for (size_t i = 0; i < count; i++)
    table_row(&table, entries[i].name, size_text(entries[i].length).text,
              place_text(entries[i].place).text, rights_text(entries[i].rights));
  table_print(&table, stdout);
  table_free(&table);
}

static void print_json(const struct session *session, const struct haul_published *entries,
                       size_t count) {
  struct json json;
  json_begin(&json, stdout);
  json_object(&json, NULL);
  json_text(&json, "node", haul_peer_name(session->peer));
  json_array(&json, "regions");
  for (size_t i = 0; i < count; i++) {
    json_object(&json, NULL);
    json_text(&json, "name", entries[i].name);
    json_number(&json, "bytes", entries[i].length);
    json_text(&json, "place", place_text(entries[i].place).text);
    json_text(&json, "rights", rights_text(entries[i].rights));
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

static int list(const struct session *session, const char *node, int as_json) {
  struct haul_published *entries;
  size_t count;
  int status = session_list(session, &entries, &count);
  if (status)
    return status;
  if (as_json)
    print_json(session, entries, count);
  else
    print_table(entries, count);
  if (count == 0 && !as_json)
    fprintf(stderr,
            "hint: it publishes no regions; `haul ls %s/` lists the files that it exports\n", node);
  free(entries);
  return EXIT_DONE;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {0};
  struct session session;
  struct target target;
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){1, 1}, &operands, &status))
    return status;
  char directory[ADDRESS_MAX];
  if (directory_parse(operands[0], directory))
    return values.json && values.follow
               ? options_wrong(self, "--follow prints lines, and no JSON")
               : directory_list(directory, values.timeout, values.json, values.follow);
  if (values.follow)
    return options_wrong(self, "--follow is for a directory, etcd://HOST[:PORT]/PREFIX");
  if (!target_or_node_parse(operands[0], &target))
    return options_wrong(self, "'%s' is no address", operands[0]);
  if (target.name) {
    const struct exported exported = {
        .target = &target, .text = operands[0], .timeout = values.timeout, .json = values.json};
    return exported_list(&exported);
  }
  status = session_open(&session, NULL, target.address, values.timeout);
  if (status == EXIT_DONE)
    status = list(&session, operands[0], values.json);
  session_close(&session);
  return status;
}

const struct command ls_command = {
    .name = "ls",
    .summary = "List the regions of a node or a directory, or exported files",
    .usage = "NODE[/[EXPORT[/PATH]]]|DIRECTORY [OPTIONS]",
    .about =
        "Prints name, size, place and rights of each region. NODE is tcp://HOST:PORT,\n"
        "unix:///PATH or unix://@NAME; HOST:PORT is short for tcp, and HOST for port 7420.\n"
        "NODE/ lists the trees of files that the node exports, and NODE/EXPORT/PATH what is in\n"
        "a folder of one. DIRECTORY, etcd://HOST[:PORT]/PREFIX, lists the nodes that registered\n"
        "there and their regions; a NODE of one is etcd://HOST[:PORT]/PREFIX/NODE.",
    .options = options,
    .examples = "  haul ls tcp://127.0.0.1:7420\n"
                "  haul ls 10.0.0.2/weights/llama\n"
                "  haul ls unix:///run/haul.sock --json\n"
                "  haul ls etcd://10.0.0.9/cluster --follow\n",
    .run = run,
};
