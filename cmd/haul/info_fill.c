/* SPDX-License-Identifier: MIT
 * The graph of `haul info --graph`, from the library. */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/session.h"
#include "common/text.h"
#include "info.h"
#include "info_graph.h"

#define EXPLAINED (UINT64_C(1) << 20) /* bytes of the transfers whose paths are shown */

static void add_devices(struct graph *graph, const struct state *state) {
  for (size_t i = 0; i < state->device_count; i++) {
    const struct haul_device *device = &state->devices[i];
    struct graph_box *box = graph_add_box(graph);
    snprintf(box->name, sizeof box->name, "%s", place_text(device->place).text);
    snprintf(box->detail, sizeof box->detail, "%s%s", device->name,
             device->emulated && !strstr(device->name, "emulated") ? " (emulated)" : "");
    box->numa = device->numa;
    box->usable = true;
  }
}

static void add_ports(struct graph *graph, const struct ports *ports) {
  for (size_t i = 0; i < ports->count; i++) {
    const struct haul_port *port = &ports->seen[0][i];
    struct graph_box *box = graph_add_box(graph);
    snprintf(box->name, sizeof box->name, "%s", port->name);
    snprintf(box->detail, sizeof box->detail, "%s, %s%s%s%s%s", port->path,
             line_rate_text((double)port->bits_per_second).text, *port->interface ? ", " : "",
             port->interface, *port->pci ? ", " : "", port->pci);
    snprintf(box->note, sizeof box->note, "%s", port->reason);
    box->numa = port->numa;
    box->nic = true;
    box->usable = port->usable != 0;
  }
}

static void add_interfaces(struct graph *graph, const struct state *state) {
  for (size_t i = 0; i < state->interface_count; i++) {
    const struct interface *one = &state->interfaces[i];
    struct graph_box *box = graph_add_box(graph);
    snprintf(box->name, sizeof box->name, "%s", one->name);
    snprintf(box->detail, sizeof box->detail, "tcp, %.120s",
             *one->addresses ? one->addresses : "no address");
    if (!one->up)
      snprintf(box->note, sizeof box->note, "the interface is down");
    box->numa = (int)one->numa;
    box->nic = true;
    box->usable = one->up && *one->addresses;
  }
}

static void link_port(struct graph *graph, size_t place, size_t box, const struct haul_port *port) {
  struct graph_link *there = graph_link_of(graph, place, box),
                    *back = graph_link_of(graph, box, place);
  there->chosen = port->chosen != 0;
  if (port->bridges > 0)
    snprintf(there->near, sizeof there->near, "PCI%d", port->bridges);
  else if (port->numa_distance >= 0)
    snprintf(there->near, sizeof there->near, "%s", port->numa_distance == 10 ? "NODE" : "SYS");
  *back = *there;
  if (!port->chosen)
    return;
  struct graph_box *device = &graph->boxes[place];
  size_t used = strlen(device->note);
  snprintf(device->note + used, sizeof device->note - used, "%s%s: %s", used ? "; " : "",
           port->name, port->choice);
}

static void link_ports(struct graph *graph, const struct state *state) {
  for (size_t i = 0; i < state->device_count; i++) {
    for (size_t j = 0; j < state->ports.count; j++) {
      const struct haul_port *port = ports_as_seen(&state->ports, i, &state->ports.seen[0][j]);
      if (port)
        link_port(graph, i, state->device_count + j, port);
    }
  }
}

void graph_fill(struct graph *graph, const struct state *state) {
  snprintf(graph->title, sizeof graph->title, "haul %s: places, NICs and NUMA nodes of this host",
           haul_version());
  add_devices(graph, state);
  add_ports(graph, &state->ports);
  add_interfaces(graph, state);
  graph_link_all(graph);
  link_ports(graph, state);
  snprintf(graph->peer, sizeof graph->peer, "other nodes");
  for (size_t i = 0; i < state->path_count; i++) {
    struct graph_path *path = graph_add_path(graph);
    snprintf(path->from, sizeof path->from, "places");
    snprintf(path->name, sizeof path->name, "%s", state->paths[i].name);
    snprintf(path->label, sizeof path->label, "%s", check_state_text(state->paths[i].state));
    snprintf(path->why, sizeof path->why, "%s", state->paths[i].text);
    path->state = state->paths[i].state == HAUL_CHECK_MISSING ? GRAPH_CLOSED : GRAPH_OPEN;
  }
}

static void add_path(struct graph *graph, const char *from, const struct haul_path *found,
                     uint64_t bytes) {
  struct graph_path *path = graph_add_path(graph);
  char reason[sizeof found->reason];
  snprintf(reason, sizeof reason, "%s", found->reason);
  use_command_terms(reason, sizeof reason);
  snprintf(path->from, sizeof path->from, "%s", from);
  snprintf(path->name, sizeof path->name, "%s", found->name);
  path->state = found->chosen ? GRAPH_CHOSEN : found->open ? GRAPH_OPEN : GRAPH_CLOSED;
  snprintf(path->label, sizeof path->label, "%s",
           found->chosen ? "chosen"
           : found->open ? "open"
                         : "closed");
  if (found->open)
    snprintf(path->label + strlen(path->label), sizeof path->label - strlen(path->label),
             ", %s %s for %s", found->measured ? "measured" : "estimated",
             time_text(found->cost_ns).text, size_text(bytes).text);
  snprintf(path->why, sizeof path->why, "%s%s%s", found->detail,
           *found->detail && *reason ? "; " : "", reason);
}

/* The paths from a place; one closed path if there is no memory. */
static void explain_place(struct graph *graph, const struct session *session,
                          struct haul_place place) {
  struct haul_path found[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  haul_region *local = NULL;
  uint64_t length = haul_remote_length(session->remote);
  uint64_t bytes = length < EXPLAINED ? length : EXPLAINED;
  enum haul_operation operation =
      haul_remote_rights(session->remote) & HAUL_WRITE ? HAUL_OP_WRITE : HAUL_OP_READ;
  int code = haul_region_alloc(session->node, place, (size_t)bytes, 0, &local);
  if (code == 0)
    code = haul_explain(local, session->remote, operation, bytes, &options, found, &count);
  if (code) {
    struct haul_path none = {.name = "all"};
    snprintf(none.reason, sizeof none.reason, "%.190s", haul_error_last()->text);
    found[0] = none;
    count = 1;
  }
  for (size_t i = 0; i < count && i < HAUL_PATHS_MAX; i++)
    add_path(graph, place_text(place).text, &found[i], bytes);
  haul_region_release(local);
}

int graph_explain(struct graph *graph, const struct state *state, const struct target *target) {
  struct session session = {.node = NULL};
  int status = session_open(&session, NULL, target->address, 0);
  if (status == EXIT_DONE)
    status = session_lookup(&session, target->name, 0);
  if (status == EXIT_DONE) {
    graph->path_count = 0;
    snprintf(graph->peer, sizeof graph->peer, "%s", haul_peer_name(session.peer));
    snprintf(graph->peer_detail, sizeof graph->peer_detail, "%.100s at %s", target->name,
             place_text(haul_remote_place(session.remote)).text);
    for (size_t i = 0; i < state->device_count; i++)
      explain_place(graph, &session, state->devices[i].place);
  }
  session_close(&session);
  return status;
}
