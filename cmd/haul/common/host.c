/* SPDX-License-Identifier: MIT */
#include "host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../command.h"
#include "fail.h"
#include "output.h"
#include "session.h"
#include "text.h"

static int list_checks(void *node, void *list, size_t *count) {
  return haul_check_list(node, list, count);
}

int checks_load(struct checks *checks, haul_node *node) {
  checks->list = load_list(list_checks, node, sizeof(*checks->list), &checks->count);
  return checks->list ? EXIT_DONE : fail_library("cannot run the checks");
}

void checks_free(struct checks *checks) {
  free(checks->list);
  *checks = (struct checks){NULL, 0};
}

bool checks_know(const struct checks *checks, const char *name) {
  for (size_t i = 0; i < checks->count; i++)
    if (strcmp(checks->list[i].name, name) == 0 || strcmp(checks->list[i].backend, name) == 0)
      return true;
  return false;
}

const char *check_state_text(int state) {
  static const char *const names[] = {"ok", "limited", "missing"};
  return state >= 0 && state <= HAUL_CHECK_MISSING ? names[state] : "unknown";
}

/* The number in /sys/class/net/NAME/FILE; -1: unknown. */
static long read_number(const char *name, const char *file) {
  char path[128];
  long number = -1;
  snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, file);
  FILE *in = fopen(path, "re");
  if (!in)
    return -1;
  if (fscanf(in, "%ld", &number) != 1)
    number = -1;
  fclose(in);
  return number;
}

static struct interface *find_or_add(struct interface *list, size_t *count,
                                     const struct ifaddrs *entry) {
  for (size_t i = 0; i < *count; i++)
    if (strcmp(list[i].name, entry->ifa_name) == 0)
      return &list[i];
  if (*count == INTERFACES_MAX)
    return NULL;
  struct interface *added = &list[(*count)++];
  *added = (struct interface){.up = (entry->ifa_flags & IFF_UP) != 0};
  snprintf(added->name, sizeof(added->name), "%s", entry->ifa_name);
  added->megabits = read_number(added->name, "speed");
  added->mtu = read_number(added->name, "mtu");
  added->numa = read_number(added->name, "device/numa_node");
  return added;
}

static void add_address(struct interface *to, const struct sockaddr *address) {
  char text[INET6_ADDRSTRLEN];
  const void *bytes = NULL;
  if (address && address->sa_family == AF_INET)
    bytes = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
  else if (address && address->sa_family == AF_INET6)
    bytes = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
  if (!bytes || !inet_ntop(address->sa_family, bytes, text, sizeof(text)))
    return;
  size_t used = strlen(to->addresses);
  if (used + strlen(text) + 2 < sizeof(to->addresses))
    snprintf(to->addresses + used, sizeof(to->addresses) - used, "%s%s", used ? " " : "", text);
}

size_t interfaces_list(struct interface list[INTERFACES_MAX]) {
  struct ifaddrs *all;
  size_t count = 0;
  if (getifaddrs(&all))
    return 0;
  for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
    struct interface *to = find_or_add(list, &count, entry);
    if (to)
      add_address(to, entry->ifa_addr);
  }
  freeifaddrs(all);
  return count;
}

struct port_query {
  haul_node *node;
  struct haul_place place;
};

static int list_ports(void *context, void *list, size_t *count) {
  const struct port_query *query = context;
  return haul_port_list(query->node, query->place, list, count);
}

int ports_load(struct ports *ports, haul_node *node, const struct haul_device *devices,
               size_t count) {
  *ports = (struct ports){.devices = devices, .device_count = count};
  if (count == 0)
    return EXIT_DONE;
  ports->seen = must_realloc(NULL, count * sizeof(struct haul_port *));
  ports->seen_counts = must_realloc(NULL, count * sizeof(size_t));
  memset(ports->seen, 0, count * sizeof(struct haul_port *));
  memset(ports->seen_counts, 0, count * sizeof(size_t));
  for (size_t i = 0; i < count; i++) {
    struct port_query query = {node, devices[i].place};
    ports->seen[i] =
        load_list(list_ports, &query, sizeof(struct haul_port), &ports->seen_counts[i]);
    if (!ports->seen[i])
      return fail_library("cannot list the ports");
  }
  ports->count = ports->seen_counts[0];
  return EXIT_DONE;
}

void ports_free(struct ports *ports) {
  for (size_t i = 0; i < ports->device_count; i++)
    free(ports->seen[i]);
  free(ports->seen);
  free(ports->seen_counts);
  *ports = (struct ports){0};
}

const struct haul_port *ports_as_seen(const struct ports *ports, size_t device,
                                      const struct haul_port *port) {
  for (size_t i = 0; i < ports->seen_counts[device]; i++) {
    const struct haul_port *one = &ports->seen[device][i];
    if (strcmp(one->path, port->path) == 0 && strcmp(one->name, port->name) == 0)
      return one;
  }
  return NULL;
}

static void print_ports(const struct ports *ports) {
  struct table table =
      table_begin("lllrrlll", "PORT", "PATH", "STATE", "SPEED", "NUMA", "PCI", "ADDRESS", "FOUND");
  for (size_t i = 0; i < ports->count; i++) {
    const struct haul_port *port = &ports->seen[0][i];
    table_row(&table, port->name, port->path, port->usable ? "usable" : "closed",
              line_rate_text((double)port->bits_per_second).text, number_text(port->numa).text,
              *port->pci ? port->pci : "-", *port->address ? port->address : "-",
              *port->reason    ? port->reason
              : port->emulated ? "in software"
                               : "");
  }
  table_end(&table);
}

static void print_connections(const struct ports *ports) {
  struct table table = table_begin("lrrrrrrr", "PORT", "GID", "PKEY", "MTU", "TRAFFIC CLASS",
                                   "SERVICE LEVEL", "TIMEOUT", "RETRIES");
  for (size_t i = 0; i < ports->count; i++) {
    const struct haul_port *port = &ports->seen[0][i];
    char pkey[16];
    snprintf(pkey, sizeof(pkey), "0x%04x", port->pkey);
    if (port->usable)
      table_row(&table, port->name, number_text((int)port->gid_index).text, pkey,
                number_text((int)port->mtu).text, number_text((int)port->traffic_class).text,
                number_text((int)port->service_level).text, number_text((int)port->timeout).text,
                number_text((int)port->retry_count).text);
  }
  table_end(&table);
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

/* One line for each pair: the places may not fit beside each other. */
static void print_distances(const struct ports *ports) {
  struct table table = table_begin("lllll", "PORT", "PLACE", "DISTANCE", "CHOSEN", "WHY");
  for (size_t i = 0; i < ports->count; i++) {
    for (size_t device = 0; device < ports->device_count; device++) {
      const struct haul_port *port = ports_as_seen(ports, device, &ports->seen[0][i]);
      char text[64];
      distance_text(port, text, sizeof(text));
      table_row(&table, ports->seen[0][i].name, place_text(ports->devices[device].place).text, text,
                port && port->chosen ? "yes" : "no",
                !port           ? "it is not there any more"
                : *port->choice ? port->choice
                                : "it is not usable");
    }
  }
  table_end(&table);
}

void ports_print(const struct ports *ports) {
  if (ports->count == 0)
    return;
  print_ports(ports);
  printf("\n");
  print_connections(ports);
  printf("\n");
  print_distances(ports);
  printf("\n");
}

static void distances_to_json(const struct ports *ports, const struct haul_port *port,
                              struct json *json) {
  json_array(json, "places");
  for (size_t device = 0; device < ports->device_count; device++) {
    const struct haul_port *seen = ports_as_seen(ports, device, port);
    json_object(json, NULL);
    json_text(json, "place", place_text(ports->devices[device].place).text);
    json_signed(json, "bridges", seen ? seen->bridges : 0);
    json_signed(json, "numa_distance", seen ? seen->numa_distance : -1);
    json_bool(json, "chosen", seen && seen->chosen);
    json_text(json, "choice", seen ? seen->choice : "");
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
    json_number(json, "mtu", port->mtu);
    json_number(json, "gid_index", port->gid_index);
    json_number(json, "pkey", port->pkey);
    json_number(json, "traffic_class", port->traffic_class);
    json_number(json, "service_level", port->service_level);
    json_number(json, "timeout", port->timeout);
    json_number(json, "retry_count", port->retry_count);
    distances_to_json(ports, port, json);
    json_end_object(json);
  }
  json_end_array(json);
}
