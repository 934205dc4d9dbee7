/* SPDX-License-Identifier: MIT
 * haul info: the places, network interfaces and paths of this host. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/host.h"
#include "common/options.h"
#include "common/outfile.h"
#include "common/output.h"
#include "common/session.h"
#include "common/text.h"
#include "info.h"
#include "info_graph.h"

struct values {
  int json, config;
  const char *graph;
};

static struct values given;

static const struct option_spec options[] = {
    {"config", OPTION_FLAG, offsetof(struct values, config), NULL,
     "print the settings of a node and the source of each value"},
    {"graph", OPTION_MAYBE, offsetof(struct values, graph), "FORM",
     "draw the devices and paths as text, svg, or into FORM, a file named *.svg"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {0},
};

static int list_devices(void *node, void *list, size_t *count) {
  return haul_device_list(node, list, count);
}

/* A backend is a place, whose name the library can parse, or a path. */
static bool is_place(const char *backend) {
  char first[32];
  struct haul_place place;
  snprintf(first, sizeof(first), "%s:0", backend);
  return haul_place_parse(backend, &place) == 0 || haul_place_parse(first, &place) == 0;
}

static struct path_line *find_path(struct state *state, const char *name) {
  for (size_t i = 0; i < state->path_count; i++)
    if (strcmp(state->paths[i].name, name) == 0)
      return &state->paths[i];
  if (state->path_count == HAUL_PATHS_MAX)
    return NULL;
  struct path_line *added = &state->paths[state->path_count++];
  *added = (struct path_line){name, "", HAUL_CHECK_OK};
  return added;
}

static void find_paths(struct state *state) {
  for (size_t i = 0; i < state->checks.count; i++) {
    const struct haul_check *check = &state->checks.list[i];
    struct path_line *path = is_place(check->backend) ? NULL : find_path(state, check->backend);
    if (!path || (*path->text && check->state <= path->state))
      continue;
    path->state = check->state;
    path->text = check->text;
  }
}

static int load(struct state *state) {
  haul_node *node = open_client_node();
  if (!node)
    return EXIT_FAILED;
  state->devices = load_list(list_devices, node, sizeof(*state->devices), &state->device_count);
  int status = state->devices ? EXIT_DONE : fail_library("cannot list the devices");
  if (status == EXIT_DONE)
    status = checks_load(&state->checks, node);
  if (status == EXIT_DONE)
    status = ports_load(&state->ports, node, state->devices, state->device_count);
  haul_node_close(node);
  if (status == EXIT_DONE)
    find_paths(state);
  state->interface_count = interfaces_list(state->interfaces);
  return status;
}

static void print_devices(const struct state *state) {
  struct table table = table_begin("llrlll", "PLACE", "NAME", "MEMORY", "NUMA", "PCI", "SHARED BY");
  for (size_t i = 0; i < state->device_count; i++) {
    const struct haul_device *device = &state->devices[i];
    char name[96];
    snprintf(name, sizeof(name), "%s%s", device->name,
             device->emulated && !strstr(device->name, "emulated") ? " (emulated)" : "");
    table_row(&table, place_text(device->place).text, name,
              device->memory ? size_text(device->memory).text : "-", number_text(device->numa).text,
              *device->pci ? device->pci : "-", *device->exports ? device->exports : "-");
  }
  table_end(&table);
}

static void print_interfaces(const struct state *state) {
  struct table table = table_begin("llrrll", "NIC", "STATE", "SPEED", "MTU", "NUMA", "ADDRESSES");
  for (size_t i = 0; i < state->interface_count; i++) {
    const struct interface *one = &state->interfaces[i];
    table_row(&table, one->name, one->up ? "up" : "down",
              line_rate_text((double)one->megabits * 1e6).text, number_text(one->mtu).text,
              number_text(one->numa).text, *one->addresses ? one->addresses : "-");
  }
  table_end(&table);
}

static void print_paths(const struct state *state) {
  struct table table = table_begin("lll", "PATH", "STATE", "FOUND");
  for (size_t i = 0; i < state->path_count; i++)
    table_row(&table, state->paths[i].name, check_state_text(state->paths[i].state),
              state->paths[i].text);
  table_end(&table);
}

static void print_text(const struct state *state) {
  printf("haul %s\n\n", haul_version());
  print_devices(state);
  printf("\n");
  print_interfaces(state);
  printf("\n");
  ports_print(&state->ports);
  print_paths(state);
}

static void devices_to_json(const struct state *state, struct json *json) {
  json_array(json, "places");
  for (size_t i = 0; i < state->device_count; i++) {
    const struct haul_device *device = &state->devices[i];
    json_object(json, NULL);
    json_text(json, "place", place_text(device->place).text);
    json_text(json, "name", device->name);
    json_bool(json, "emulated", device->emulated != 0);
    json_number(json, "memory_bytes", device->memory);
    json_signed(json, "numa", device->numa);
    json_text(json, "pci", device->pci);
    json_text(json, "exports", device->exports);
    json_end_object(json);
  }
  json_end_array(json);
}

static void interfaces_to_json(const struct state *state, struct json *json) {
  json_array(json, "interfaces");
  for (size_t i = 0; i < state->interface_count; i++) {
    const struct interface *one = &state->interfaces[i];
    json_object(json, NULL);
    json_text(json, "name", one->name);
    json_bool(json, "up", one->up);
    json_signed(json, "megabits_per_second", one->megabits);
    json_signed(json, "mtu", one->mtu);
    json_signed(json, "numa", one->numa);
    json_text(json, "addresses", one->addresses);
    json_end_object(json);
  }
  json_end_array(json);
}

static void path_states_to_json(const struct state *state, struct json *json) {
  json_array(json, "paths");
  for (size_t i = 0; i < state->path_count; i++) {
    json_object(json, NULL);
    json_text(json, "name", state->paths[i].name);
    json_text(json, "state", check_state_text(state->paths[i].state));
    json_text(json, "text", state->paths[i].text);
    json_end_object(json);
  }
  json_end_array(json);
}

static void print_info_json(const struct state *state) {
  struct json json = json_open();
  json_text(&json, "version", haul_version());
  devices_to_json(state, &json);
  interfaces_to_json(state, &json);
  ports_to_json(&state->ports, &json, "ports");
  path_states_to_json(state, &json);
  json_end_object(&json);
}

static void print_settings(const struct haul_setting *settings, size_t count) {
  struct table table = table_begin("lll", "SETTING", "VALUE", "FROM");
  for (size_t i = 0; i < count; i++)
    table_row(&table, settings[i].name, settings[i].value, settings[i].origin);
  table_end(&table);
}

static void print_settings_json(const struct haul_setting *settings, size_t count) {
  struct json json = json_open();
  json_array(&json, "settings");
  for (size_t i = 0; i < count; i++) {
    json_object(&json, NULL);
    json_text(&json, "name", settings[i].name);
    json_text(&json, "value", settings[i].value);
    json_text(&json, "origin", settings[i].origin);
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

static int list_settings(void *context, void *list, size_t *count) {
  (void)context;
  return haul_setting_list(NULL, list, count);
}

static int show_settings(bool as_json) {
  size_t count;
  struct haul_setting *settings = load_list(list_settings, NULL, sizeof *settings, &count);
  if (!settings)
    return fail_library("cannot read the configuration");
  (as_json ? print_settings_json : print_settings)(settings, count);
  free(settings);
  return EXIT_DONE;
}

static bool is_svg(const char *form) {
  const char *end = strrchr(form, '.');
  return strcmp(form, "svg") == 0 || (end && strcmp(end, ".svg") == 0);
}

/* Draws to standard output, or to the file named *.svg. */
static int draw_graph(const struct graph *graph) {
  char *picture = NULL;
  size_t length = 0;
  if (!is_svg(given.graph)) {
    graph_print(graph, stdout, terminal_columns());
    return EXIT_DONE;
  }
  FILE *memory = open_memstream(&picture, &length);
  if (!memory)
    return fail_because(NULL, "out of memory");
  graph_svg(graph, memory);
  struct outfile file;
  int status =
      fclose(memory)
          ? fail_because(NULL, "out of memory")
          : outfile_open(&file, strcmp(given.graph, "svg") == 0 ? "-" : given.graph, length, 0);
  if (status == EXIT_DONE)
    status = outfile_write(&file, picture, length);
  if (status == EXIT_DONE)
    status = outfile_commit(&file);
  outfile_discard(&file);
  free(picture);
  return status;
}

/* `target`: the paths lead to this region; NULL: to any node. */
static int show_graph(const struct state *state, const struct target *target) {
  struct graph graph = {0};
  graph_fill(&graph, state);
  int status = target ? graph_explain(&graph, state, target) : EXIT_DONE;
  if (status == EXIT_DONE)
    status = draw_graph(&graph);
  graph_free(&graph);
  return status;
}

static int check_info(const struct command *self, const char *operand, struct target *target) {
  if (operand && !given.graph)
    return options_wrong(self, "NODE/NAME requires --graph");
  if (given.graph && (given.json || given.config))
    return options_wrong(self, "--graph excludes --json and --config");
  if (given.graph && *given.graph && strcmp(given.graph, "text") != 0 && !is_svg(given.graph))
    return options_wrong(self, "invalid --graph '%s': expected text, svg or a file named *.svg",
                         given.graph);
  if (operand && (strcmp(operand, "text") == 0 || is_svg(operand)) && !strchr(operand, '/'))
    return options_wrong(self, "'%s' is not a NODE/NAME; the form follows a '=': --graph=%s",
                         operand, operand);
  return operand && !options_target(self, operand, target) ? EXIT_USAGE : EXIT_DONE;
}

static int run_info(const struct command *self, char **operands) {
  struct state state = {0};
  struct target target;
  int status = check_info(self, operands[0], &target);
  if (status)
    return status;
  if (given.config)
    return show_settings(given.json);
  status = load(&state);
  if (status == EXIT_DONE && given.graph)
    status = show_graph(&state, operands[0] ? &target : NULL);
  else if (status == EXIT_DONE && given.json)
    print_info_json(&state);
  else if (status == EXIT_DONE)
    print_text(&state);
  ports_free(&state.ports);
  free(state.devices);
  checks_free(&state.checks);
  return status;
}

const struct command info_command = {
    .name = "info",
    .summary = "Show this host's places, network interfaces and paths",
    .usage = "[--graph[=FORM] [NODE/NAME]] [OPTIONS]",
    .about = "Emulated devices are marked. The state of a path is that of its worst check; `haul\n"
             "doctor` shows all checks. NIC ports are shown with their distance to each place.\n"
             "--graph draws them, with the paths to other nodes, or from each place to the region\n"
             "NODE/NAME, and why a path is not taken.",
    .options = options,
    .examples = "  haul info\n"
                "  haul info --json\n"
                "  haul info --config\n"
                "  haul info --graph\n"
                "  haul info --graph=paths.svg 10.0.0.2/weights\n",
    .most = 1,
    .values = &given,
    .run = run_info,
};
