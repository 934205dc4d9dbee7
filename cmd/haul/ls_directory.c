/* SPDX-License-Identifier: MIT */
#include "ls_directory.h"

#include <errno.h>
#include <haul/directory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/interrupt.h"
#include "common/json.h"
#include "common/session.h"
#include "common/table.h"
#include "common/text.h"
#include "common/units.h"

struct listing {
  haul_directory *walk;
  struct haul_directory_entry *entries;
  size_t count, room;
};

/* By kind, then name, then node. */
static int compare(const void *one, const void *other) {
  const struct haul_directory_entry *a = one, *b = other;
  int order = a->kind - b->kind;
  if (order == 0)
    order = strcmp(a->name, b->name);
  return order ? order : strcmp(a->node, b->node);
}

static void keep(struct listing *listing, const struct haul_directory_entry *entry) {
  if (listing->count == listing->room) {
    listing->room = listing->room ? listing->room * 2 : 64;
    listing->entries = must_realloc(listing->entries, listing->room * sizeof *listing->entries);
  }
  listing->entries[listing->count++] = *entry;
}

static int collect(struct listing *listing, haul_deadline until) {
  struct haul_directory_event event;
  do {
    if (interrupted())
      return fail_because(NULL, "interrupted");
    if (haul_directory_next(listing->walk, until, &event))
      return fail_library("cannot read the directory");
    if (event.kind == HAUL_DIRECTORY_HOLDS)
      keep(listing, &event.entry);
  } while (event.kind != HAUL_DIRECTORY_TOLD);
  if (listing->count > 0)
    qsort(listing->entries, listing->count, sizeof *listing->entries, compare);
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
  struct table nodes, regions;
  table_init(&nodes, "ll");
  table_init(&regions, "llrll");
  table_row(&nodes, "NODE", "ADDRESSES");
  table_row(&regions, "NAME", "NODE", "SIZE", "PLACE", "RIGHTS");
  for (size_t i = 0; i < listing->count; i++) {
    const struct haul_directory_entry *entry = &listing->entries[i];
    join_addresses(entry, addresses, sizeof addresses);
    if (entry->kind == HAUL_DIRECTORY_NODE)
      table_row(&nodes, entry->node, addresses);
    else
      table_row(&regions, entry->name, entry->node, size_text(entry->length).text,
                place_text(entry->place).text, rights_text(entry->rights));
  }
  table_print(&nodes, stdout);
  printf("\n");
  table_print(&regions, stdout);
  table_free(&nodes);
  table_free(&regions);
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

static void region_json(struct json *json, const struct haul_directory_entry *entry) {
  json_object(json, NULL);
  json_text(json, "name", entry->name);
  json_text(json, "node", entry->node);
  json_number(json, "bytes", entry->length);
  json_text(json, "place", place_text(entry->place).text);
  json_text(json, "rights", rights_text(entry->rights));
  json_end_object(json);
}

static void print_json(const struct listing *listing) {
  struct json json;
  json_begin(&json, stdout);
  json_object(&json, NULL);
  json_array(&json, "nodes");
  for (size_t i = 0; i < listing->count; i++)
    if (listing->entries[i].kind == HAUL_DIRECTORY_NODE)
      node_json(&json, &listing->entries[i]);
  json_end_array(&json);
  json_array(&json, "regions");
  for (size_t i = 0; i < listing->count; i++)
    if (listing->entries[i].kind == HAUL_DIRECTORY_REGION)
      region_json(&json, &listing->entries[i]);
  json_end_array(&json);
  json_end_object(&json);
}

/* A line a change: "came node NODE ADDRESSES", "went region NAME NODE". */
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
    int code = haul_directory_next(listing->walk, haul_deadline_in(INTERRUPT_SLICE_NS), &event);
    if (code == 0)
      print_change(&event);
    else if (code != HAUL_ETIMEDOUT && code != HAUL_ECONNECT && code != HAUL_EPEER)
      return fail_library("cannot follow the directory");
  }
  return EXIT_DONE;
}

int directory_list(const char *address, int64_t timeout_ns, int as_json, int follow) {
  struct listing listing = {0};
  haul_deadline until = haul_deadline_in(timeout_ns ? timeout_ns : CONNECT_TIMEOUT_NS);
  haul_node *node = open_quiet_node();
  if (!node)
    return EXIT_FAILED;
  interrupt_catch();
  int status = haul_directory_open(node, address, until, &listing.walk)
                   ? fail_library("cannot open the directory")
                   : collect(&listing, until);
  if (status == EXIT_DONE)
    (as_json ? print_json : print_tables)(&listing);
  if (status == EXIT_DONE && follow)
    status = follow_changes(&listing);
  haul_directory_close(listing.walk);
  haul_node_close(node);
  free(listing.entries);
  return status;
}
