/* SPDX-License-Identifier: MIT
 * The graph of `haul info --graph` as text, in the form of `nvidia-smi topo -m`. */
#include "info_graph.h"

#include <stdlib.h>
#include <string.h>

#include "common/output.h"
#include "common/text.h"

struct graph_box *graph_add_box(struct graph *graph) {
  size_t size = sizeof *graph->boxes;
  graph->boxes = must_realloc(graph->boxes, (graph->count + 1) * size);
  return memset(&graph->boxes[graph->count++], 0, size);
}

struct graph_path *graph_add_path(struct graph *graph) {
  size_t size = sizeof *graph->paths;
  graph->paths = must_realloc(graph->paths, (graph->path_count + 1) * size);
  return memset(&graph->paths[graph->path_count++], 0, size);
}

struct graph_link *graph_link_of(const struct graph *graph, size_t from, size_t to) {
  return &graph->links[from * graph->count + to];
}

void graph_link_all(struct graph *graph) {
  size_t size = graph->count * graph->count * sizeof *graph->links;
  graph->links = must_realloc(NULL, size);
  memset(graph->links, 0, size);
  for (size_t i = 0; i < graph->count; i++) {
    for (size_t j = 0; j < graph->count; j++) {
      int from = graph->boxes[i].numa, to = graph->boxes[j].numa;
      snprintf(graph_link_of(graph, i, j)->near, sizeof graph->links->near, "%s",
               i == j               ? "X"
               : from < 0 || to < 0 ? "-"
               : from == to         ? "NODE"
                                    : "SYS");
    }
  }
}

void graph_free(struct graph *graph) {
  free(graph->boxes);
  free(graph->links);
  free(graph->paths);
}

static int wider(int width, const char *text) {
  return (int)strlen(text) > width ? (int)strlen(text) : width;
}

static void cell_text(const struct graph *graph, size_t row, size_t column, char text[20]) {
  const struct graph_link *link = graph_link_of(graph, row, column);
  snprintf(text, 20, "%s%s", link->near, link->chosen ? "*" : "");
}

static int column_width(const struct graph *graph, size_t column) {
  int width = wider(4, graph->boxes[column].name);
  for (size_t row = 0; row < graph->count; row++) {
    char text[20];
    cell_text(graph, row, column, text);
    width = wider(width, text);
  }
  return width;
}

/* Prints the columns from `first` on that fit, at least one; returns the next one. */
static size_t print_block(const struct graph *graph, FILE *out, size_t first, int columns) {
  int names = 0, used;
  size_t end = first;
  for (size_t i = 0; i < graph->count; i++)
    names = wider(names, graph->boxes[i].name);
  for (used = names; end < graph->count; end++) {
    used += 2 + column_width(graph, end);
    if (columns > 0 && end > first && used > columns)
      break;
  }
  fprintf(out, "%*s", names, "");
  for (size_t column = first; column < end; column++)
    fprintf(out, "  %*s", column_width(graph, column), graph->boxes[column].name);
  fputc('\n', out);
  for (size_t row = 0; row < graph->count; row++) {
    fprintf(out, "%-*s", names, graph->boxes[row].name);
    for (size_t column = first; column < end; column++) {
      char text[20];
      cell_text(graph, row, column, text);
      fprintf(out, "  %*s", column_width(graph, column), text);
    }
    fputc('\n', out);
  }
  return end;
}

static const char legend[] =
    "X     itself\n"
    "PCIn  n PCI bridges in common (more is nearer), at the same NUMA node or not\n"
    "NODE  the same NUMA node\n"
    "SYS   another NUMA node\n"
    "-     unknown\n"
    "*     the port carries the transfers of the place\n";

static void print_boxes(const struct graph *graph) {
  struct table table = table_begin("lrlll", "NAME", "NUMA", "STATE", "WHAT", "WHY");
  for (size_t i = 0; i < graph->count; i++) {
    const struct graph_box *box = &graph->boxes[i];
    table_row(&table, box->name, number_text(box->numa).text, box->usable ? "usable" : "closed",
              box->detail, box->note);
  }
  table_end(&table);
}

static void print_paths(const struct graph *graph) {
  struct table table = table_begin("llll", "FROM", "PATH", "STATE", "WHY");
  for (size_t i = 0; i < graph->path_count; i++)
    table_row(&table, graph->paths[i].from, graph->paths[i].name, graph->paths[i].label,
              graph->paths[i].why);
  table_end(&table);
}

void graph_print(const struct graph *graph, FILE *out, int columns) {
  fprintf(out, "%s\n\n", graph->title);
  for (size_t next = 0; next < graph->count; fputc('\n', out))
    next = print_block(graph, out, next, columns);
  fprintf(out, "%s\n", legend);
  print_boxes(graph);
  fprintf(out, "\npaths to %s%s%s\n", graph->peer, *graph->peer_detail ? ", " : "",
          graph->peer_detail);
  print_paths(graph);
}
