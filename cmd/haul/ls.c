/* SPDX-License-Identifier: MIT
 * haul ls: the regions of a node or of a directory, and exported files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <haul/directory.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "exported.h"

struct values {
  int json, follow;
  int64_t timeout;
};

static struct values given;

static const struct option_spec options[] = {
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {"follow", OPTION_FLAG, offsetof(struct values, follow), NULL,
     "print a line for each later change of a directory"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the time to connect, and that to list (default: 10)"},
    {0},
};

static void print_ls_table(const struct haul_published *entries, size_t count) {
  struct table table = table_begin("lrll", "NAME", "SIZE", "PLACE", "RIGHTS");
  for (size_t i = 0; i < count; i++)
    table_row(&table, entries[i].name, size_text(entries[i].length).text,
              place_text(entries[i].place).text, rights_text(entries[i].rights));
  table_end(&table);
}

/* `node` is NULL where the whole list is of one node. */
static void region_json(struct json *json, const char *name, const char *node, uint64_t length,
                        struct haul_place place, unsigned rights) {
  json_object(json, NULL);
  json_text(json, "name", name);
  if (node)
    json_text(json, "node", node);
  json_number(json, "bytes", length);
  json_text(json, "place", place_text(place).text);
  json_text(json, "rights", rights_text(rights));
  json_end_object(json);
}

static void print_node_json(const struct session *session, const struct haul_published *entries,
                            size_t count) {
  struct json json = json_open();
  json_text(&json, "node", haul_peer_name(session->peer));
  json_array(&json, "regions");
  for (size_t i = 0; i < count; i++)
    region_json(&json, entries[i].name, NULL, entries[i].length, entries[i].place,
                entries[i].rights);
  json_end_array(&json);
  json_end_object(&json);
}

static int list_node(const struct session *session, const char *node, int as_json) {
  struct haul_published *entries;
  size_t count;
  int status = session_list(session, given.timeout, &entries, &count);
  if (status)
    return status;
  if (as_json)
    print_node_json(session, entries, count);
  else
    print_ls_table(entries, count);
  if (count == 0 && !as_json)
    fprintf(stderr,
            "hint: the node publishes no region for this side; list its exports: haul ls %s/\n",
            node);
  free(entries);
  return EXIT_DONE;
}

struct listing {
  haul_directory *handle;
  struct haul_directory_entry *entries;
  size_t count, room;
};

/* Orders by kind, name and node. */
static int compare_entries(const void *one, const void *other) {
  const struct haul_directory_entry *a = one, *b = other;
  int order = a->kind - b->kind;
  if (order == 0)
    order = strcmp(a->name, b->name);
  return order ? order : strcmp(a->node, b->node);
}

static int collect(struct listing *listing, haul_deadline until) {
  struct haul_directory_event event;
  do {
    if (interrupted())
      return fail_because(NULL, "interrupted");
    if (haul_directory_next(listing->handle, until, &event))
      return fail_library("cannot read the directory");
    if (event.kind != HAUL_DIRECTORY_HOLDS)
      continue;
    listing->entries =
        must_grow(listing->entries, listing->count, &listing->room, sizeof *listing->entries);
    listing->entries[listing->count++] = event.entry;
  } while (event.kind != HAUL_DIRECTORY_TOLD);
  if (listing->count > 0)
    qsort(listing->entries, listing->count, sizeof *listing->entries, compare_entries);
  return EXIT_DONE;
}

static void join_addresses(const struct haul_directory_entry *entry, char *text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (unsigned i = 0; i < entry->address_count && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", entry->addresses[i]);
}

static void print_tables(const struct listing *listing) {
  char addresses[HAUL_DIRECTORY_ADDRESSES * 162];
  struct table nodes = table_begin("ll", "NODE", "ADDRESSES");
  struct table regions = table_begin("llrll", "NAME", "NODE", "SIZE", "PLACE", "RIGHTS");
  for (size_t i = 0; i < listing->count; i++) {
    const struct haul_directory_entry *entry = &listing->entries[i];
    join_addresses(entry, addresses, sizeof addresses);
    if (entry->kind == HAUL_DIRECTORY_NODE)
      table_row(&nodes, entry->node, addresses);
    else
      table_row(&regions, entry->name, entry->node, size_text(entry->length).text,
                place_text(entry->place).text, rights_text(entry->rights));
  }
  table_end(&nodes);
  printf("\n");
  table_end(&regions);
}

static void node_json(struct json *json, const struct haul_directory_entry *entry) {
  json_object(json, NULL);
  json_text(json, "node", entry->node);
  json_array(json, "addresses");
  for (unsigned i = 0; i < entry->address_count; i++)
    json_text(json, NULL, entry->addresses[i]);
  json_end_array(json);
  json_end_object(json);
}

static void print_directory_json(const struct listing *listing) {
  struct json json = json_open();
  json_array(&json, "nodes");
  for (size_t i = 0; i < listing->count; i++)
    if (listing->entries[i].kind == HAUL_DIRECTORY_NODE)
      node_json(&json, &listing->entries[i]);
  json_end_array(&json);
  json_array(&json, "regions");
  for (size_t i = 0; i < listing->count; i++) {
    const struct haul_directory_entry *entry = &listing->entries[i];
    if (entry->kind == HAUL_DIRECTORY_REGION)
      region_json(&json, entry->name, entry->node, entry->length, entry->place, entry->rights);
  }
  json_end_array(&json);
  json_end_object(&json);
}

/* One line for each change: "came node NODE ADDRESSES", "went region NAME NODE". */
static void print_change(struct haul_directory_event *event) {
  struct haul_directory_entry *entry = &event->entry;
  char addresses[HAUL_DIRECTORY_ADDRESSES * 162];
  const char *change = event->kind == HAUL_DIRECTORY_CAME ? "came" : "went";
  join_addresses(entry, addresses, sizeof addresses);
  text_clean(addresses);
  text_clean(entry->node);
  text_clean(entry->name);
  if (entry->kind == HAUL_DIRECTORY_REGION)
    printf("%s region %s %s\n", change, entry->name, entry->node);
  else
    printf("%s node %s%s%s\n", change, entry->node, *addresses ? " " : "", addresses);
}

static int follow_changes(const struct listing *listing) {
  struct haul_directory_event event;
  while (!interrupted()) {
    if (fflush(stdout))
      return fail_system(errno, "cannot write to standard output");
    int code = haul_directory_next(listing->handle, haul_deadline_in(INTERRUPT_SLICE_NS), &event);
    if (code == 0)
      print_change(&event);
    else if (code != HAUL_ETIMEDOUT && code != HAUL_ECONNECT && code != HAUL_EPEER)
      return fail_library("cannot follow the directory");
  }
  return EXIT_DONE;
}

/* Prints the nodes and the regions of a directory; with `follow` also each change, until SIGINT. */
static int list_directory(const char *address, int64_t timeout_ns, int as_json, int follow) {
  struct listing listing = {0};
  haul_deadline until = connect_deadline(timeout_ns);
  haul_node *node = open_client_node();
  if (!node)
    return EXIT_FAILED;
  interrupt_catch();
  int status = haul_directory_open(node, address, until, &listing.handle)
                   ? fail_library("cannot open the directory")
                   : collect(&listing, until);
  if (status == EXIT_DONE)
    (as_json ? print_directory_json : print_tables)(&listing);
  if (status == EXIT_DONE && follow)
    status = follow_changes(&listing);
  haul_directory_close(listing.handle);
  haul_node_close(node);
  free(listing.entries);
  return status;
}

static int run_ls(const struct command *self, char **operands) {
  struct session session;
  struct target target;
  char directory[ADDRESS_MAX];
  if (directory_parse(operands[0], directory))
    return given.json && given.follow
               ? options_wrong(self, "--follow and --json exclude each other")
               : list_directory(directory, given.timeout, given.json, given.follow);
  if (given.follow)
    return options_wrong(self, "--follow requires a directory, etcd://HOST[:PORT]/PREFIX");
  if (!target_or_node_parse(operands[0], &target))
    return options_wrong(
        self, "invalid address '%s': expected HOST[:PORT], unix:///PATH or etcd://…", operands[0]);
  if (target.name) {
    const struct exported exported = {
        .target = &target, .text = operands[0], .timeout = given.timeout, .json = given.json};
    return exported_list(&exported);
  }
  int status = session_open(&session, NULL, target.address, given.timeout);
  if (status == EXIT_DONE)
    status = list_node(&session, operands[0], given.json);
  session_close(&session);
  return status;
}

const struct command ls_command = {
    .name = "ls",
    .summary = "List the regions of a node or a directory, or exported files",
    .usage = "NODE[/[EXPORT[/PATH]]]|DIRECTORY [OPTIONS]",
    .about = "Prints name, size, place and rights of each region. NODE is tcp://HOST:PORT,\n"
             "unix:///PATH or unix://@NAME; HOST:PORT is short for tcp, and HOST for port 7420.\n"
             "NODE/ lists the exports of the node, and NODE/EXPORT/PATH a folder of one.\n"
             "DIRECTORY, etcd://HOST[:PORT]/PREFIX, lists the registered nodes and their regions;\n"
             "etcd://HOST[:PORT]/PREFIX/NODE is a NODE.",
    .options = options,
    .examples = "  haul ls tcp://127.0.0.1:7420\n"
                "  haul ls 10.0.0.2/weights/llama\n"
                "  haul ls unix:///run/haul.sock --json\n"
                "  haul ls etcd://10.0.0.9/cluster --follow\n",
    .values = &given,
    .least = 1,
    .most = 1,
    .run = run_ls,
};
