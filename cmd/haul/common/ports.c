/* SPDX-License-Identifier: MIT */
#include "ports.h"

#include <stdlib.h>
#include <string.h>

#include "../command.h"
#include "fail.h"
#include "session.h"
#include "table.h"
#include "text.h"
#include "units.h"

/* ---- Loading ---- */

static int load_seen(struct ports *ports, haul_node *node, size_t device) {
  struct haul_port **list = &ports->seen[device];
  for (size_t room = 8;; room = ports->seen_counts[device]) {
    ports->seen_counts[device] = room;
    *list = must_realloc(*list, room * sizeof(**list));
    if (haul_port_list(node, ports->devices[device].place, *list, &ports->seen_counts[device])) {
      ports->seen_counts[device] = 0;
      return fail_library("cannot list the ports");
    }
    if (ports->seen_counts[device] <= room)
      return EXIT_DONE;
  }
}

int ports_load(struct ports *ports, haul_node *node, const struct haul_device *devices,
               size_t count) {
  int status = EXIT_DONE;
  *ports = (struct ports){.devices = devices, .device_count = count};
  if (count == 0)
    return status;
  ports->seen = must_realloc(NULL, count * sizeof(struct haul_port *));
  ports->seen_counts = must_realloc(NULL, count * sizeof(size_t));
  memset(ports->seen, 0, count * sizeof(struct haul_port *));
  memset(ports->seen_counts, 0, count * sizeof(size_t));
  for (size_t i = 0; i < count && status == EXIT_DONE; i++)
    status = load_seen(ports, node, i);
  ports->count = ports->seen_counts[0];
  return status;
}

void ports_free(struct ports *ports) {
  for (size_t i = 0; i < ports->device_count; i++)
    free(ports->seen[i]);
  free(ports->seen);
  free(ports->seen_counts);
  *ports = (struct ports){0};
}

/* The same port as another device sees it; NULL when it went meanwhile. */
static const struct haul_port *as_seen(const struct ports *ports, size_t device,
                                       const struct haul_port *port) {
  for (size_t i = 0; i < ports->seen_counts[device]; i++) {
    const struct haul_port *one = &ports->seen[device][i];
    if (strcmp(one->path, port->path) == 0 && strcmp(one->name, port->name) == 0)
      return one;
  }
  return NULL;
}

/* ---- Text ---- */

static void print_ports(const struct ports *ports) {
  struct table table;
  table_init(&table, "lllrrlll");
  table_row(&table, "PORT", "PATH", "STATE", "SPEED", "NUMA", "PCI", "ADDRESS", "FOUND");
  for (size_t i = 0; i < ports->count; i++) {
    const struct haul_port *port = &ports->seen[0][i];
    char speed[32] = "-", numa[24] = "-";
    if (port->bits_per_second)
      snprintf(speed, sizeof(speed), "%.3g Gb/s", (double)port->bits_per_second / 1e9);
    if (port->numa >= 0)
      snprintf(numa, sizeof(numa), "%d", port->numa);
    table_row(&table, port->name, port->path, port->usable ? "usable" : "closed", speed, numa,
              *port->pci ? port->pci : "-", *port->address ? port->address : "-",
              *port->reason    ? port->reason
              : port->emulated ? "in software"
                               : "");
  }
  table_print(&table, stdout);
  table_free(&table);
}

static void distance_text(const struct haul_port *port, char *text, size_t size) {
  char bridges[32] = "";
  if (port && port->bridges > 0)
    snprintf(bridges, sizeof(bridges), "%d bridge%s", port->bridges, port->bridges == 1 ? "" : "s");
  if (port && port->numa_distance >= 0)
    snprintf(text, size, "%s%snuma %d", bridges, *bridges ? ", " : "", port->numa_distance);
  else
    snprintf(text, size, "%s", *bridges ? bridges : "-");
}

/* A line for each pair, as there may be more places than fit beside each other. */
static void print_distances(const struct ports *ports) {
  struct table table;
  table_init(&table, "lll");
  table_row(&table, "PORT", "PLACE", "IN COMMON");
  for (size_t i = 0; i < ports->count; i++) {
    for (size_t device = 0; device < ports->device_count; device++) {
      const struct haul_port *port = as_seen(ports, device, &ports->seen[0][i]);
      char text[64];
      distance_text(port, text, sizeof(text));
      table_row(&table, ports->seen[0][i].name, place_text(ports->devices[device].place).text,
                text);
    }
  }
  table_print(&table, stdout);
  table_free(&table);
}

void ports_print(const struct ports *ports) {
  if (ports->count == 0)
    return;
  print_ports(ports);
  printf("\n");
  print_distances(ports);
  printf("\n");
}

/* ---- JSON ---- */

static void distances_to_json(const struct ports *ports, const struct haul_port *port,
                              struct json *json) {
  json_array(json, "places");
  for (size_t device = 0; device < ports->device_count; device++) {
    const struct haul_port *seen = as_seen(ports, device, port);
    json_object(json, NULL);
    json_text(json, "place", place_text(ports->devices[device].place).text);
    json_signed(json, "bridges", seen ? seen->bridges : 0);
    json_signed(json, "numa_distance", seen ? seen->numa_distance : -1);
    json_end_object(json);
  }
  json_end_array(json);
}

void ports_to_json(const struct ports *ports, struct json *json, const char *name) {
  json_array(json, name);
  for (size_t i = 0; i < ports->count; i++) {
    const struct haul_port *port = &ports->seen[0][i];
    json_object(json, NULL);
    json_text(json, "name", port->name);
    json_text(json, "path", port->path);
    json_bool(json, "usable", port->usable != 0);
    json_bool(json, "emulated", port->emulated != 0);
    json_number(json, "bits_per_second", port->bits_per_second);
    json_signed(json, "numa", port->numa);
    json_text(json, "pci", port->pci);
    json_text(json, "interface", port->interface);
    json_text(json, "address", port->address);
    json_text(json, "reason", port->reason);
    distances_to_json(ports, port, json);
    json_end_object(json);
  }
  json_end_array(json);
}
