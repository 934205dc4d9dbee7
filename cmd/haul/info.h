/* SPDX-License-Identifier: MIT
 * The state of this host, as `haul info` reads it. */
#ifndef HAUL_COMMAND_INFO_H
#define HAUL_COMMAND_INFO_H

#include <stddef.h>

#include "common/host.h"

/* A path and the result of its checks. */
struct path_line {
  const char *name;
  const char *text; /* of the worst check */
  int state;
};

struct state {
  size_t device_count, interface_count, path_count;
  struct haul_device *devices;
  struct interface interfaces[INTERFACES_MAX];
  struct path_line paths[HAUL_PATHS_MAX];
  struct checks checks;
  struct ports ports;
};

struct graph;
struct target;

/* Fills an empty graph with devices, NICs and paths; graph_free is due. */
void graph_fill(struct graph *graph, const struct state *state);
/* Replaces the paths by those from each place to a region. Returns an exit status. */
int graph_explain(struct graph *graph, const struct state *state, const struct target *target);

#endif
