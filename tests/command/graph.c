/* SPDX-License-Identifier: MIT
 * Draws a mock host for graph.py: two NUMA nodes with four GPUs and four NICs each, names that are
 * hostile or long, and paths with and without reasons.
 *
 *   command_graph svg | COLUMNS */
#include <stdlib.h>
#include <string.h>

#include "info_graph.h"

#define EACH 8

static void add_boxes(struct graph *graph) {
  for (int i = 0; i < 2 * EACH; i++) {
    struct graph_box *box = graph_add_box(graph);
    box->nic = i >= EACH;
    box->numa = i % EACH / (EACH / 2);
    box->usable = i != EACH + 1;
    snprintf(box->name, sizeof box->name, box->nic ? "mlx5_%d/1" : "cuda:%d", i % EACH);
    snprintf(box->detail, sizeof box->detail, "mock of a device %d", i % EACH);
  }
  graph->boxes[0].numa = -1;
  snprintf(graph->boxes[1].detail, sizeof graph->boxes[1].detail,
           "</text><script>alert(1)</script> & \"quoted\"");
  memset(graph->boxes[2].detail, 'w', sizeof graph->boxes[2].detail - 1);
  snprintf(graph->boxes[EACH + 1].note, sizeof graph->boxes[EACH + 1].note, "the port is down");
  snprintf(graph->boxes[3].note, sizeof graph->boxes[3].note, "\033[2J\a \xc3\xa9 \xff");
}

static void add_links(struct graph *graph) {
  graph_link_all(graph);
  for (size_t i = 0; i < EACH; i++) {
    struct graph_link *link = graph_link_of(graph, i, EACH + i);
    link->chosen = i != 1;
    snprintf(link->near, sizeof link->near, "PCI%zu", i % 3 + 1);
    *graph_link_of(graph, EACH + i, i) = *link;
  }
}

static void add_paths(struct graph *graph) {
  static const char *const names[] = {"rdma", "map", "tcp"};
  for (int i = 0; i < 6; i++) {
    struct graph_path *path = graph_add_path(graph);
    snprintf(path->from, sizeof path->from, "cuda:%d", i / 3);
    snprintf(path->name, sizeof path->name, "%s", names[i % 3]);
    path->state = (enum graph_state)(i % 3);
    snprintf(path->label, sizeof path->label, "state %d", i % 3);
    if (i % 3 == 1)
      memset(path->why, 'x', sizeof path->why - 1); /* without a blank to wrap at */
    if (i % 3 == 2)
      for (int j = 0; j < 40; j++)
        strcat(path->why, "why & ");
  }
}

int main(int argc, char **argv) {
  struct graph graph = {
      .title = "a mock host <&>", .peer = "peer <b>", .peer_detail = "kv at cuda:3"};
  if (argc != 2)
    return 2;
  add_boxes(&graph);
  add_links(&graph);
  add_paths(&graph);
  if (strcmp(argv[1], "svg") == 0)
    graph_svg(&graph, stdout);
  else
    graph_print(&graph, stdout, atoi(argv[1]));
  graph_free(&graph);
  return 0;
}
