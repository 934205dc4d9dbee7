/* SPDX-License-Identifier: MIT
 * `haul info --graph`: places, NICs and NUMA nodes of this host, and the paths to other nodes, as
 * text and as SVG. The drawings need nothing but this description. */
#ifndef HAUL_INFO_GRAPH_H
#define HAUL_INFO_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A place, a NIC port or a network interface. */
struct graph_box {
  char name[64], detail[128];
  char note[192]; /* why it is not used, or ""; of a port also why a place uses it */
  int numa;       /* -1: unknown */
  bool nic;
  bool usable;
};

/* How near two boxes are: "PCI2", "NODE", "SYS", "X" or "-". */
struct graph_link {
  char near[16];
  bool chosen; /* the port carries the transfers of the place */
};

enum graph_state { GRAPH_CHOSEN, GRAPH_OPEN, GRAPH_CLOSED };

struct graph_path {
  char from[64]; /* the place */
  char name[16];
  char label[64]; /* its state in words */
  char why[256];
  enum graph_state state;
};

struct graph {
  char title[128];
  char peer[128], peer_detail[128]; /* the other end of the paths */
  struct graph_box *boxes;          /* places, then NICs */
  struct graph_link *links;         /* count * count */
  size_t count;
  struct graph_path *paths; /* ordered by `from` */
  size_t path_count;
};

/* Begins a box with zeros and returns it; graph_free is due. */
struct graph_box *graph_add_box(struct graph *graph);
struct graph_path *graph_add_path(struct graph *graph);
/* Allocates the links, from the NUMA nodes of the boxes. Call it after the last box. */
void graph_link_all(struct graph *graph);
struct graph_link *graph_link_of(const struct graph *graph, size_t from, size_t to);
void graph_free(struct graph *graph);

/* `columns`: of the terminal, the matrix is split at them; 0: unlimited. */
void graph_print(const struct graph *graph, FILE *out, int columns);
void graph_svg(const struct graph *graph, FILE *out);

#endif
