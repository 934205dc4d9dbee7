/* SPDX-License-Identifier: MIT
 * directory DIRECTORY NAMES TIMES [NODES]: NODES nodes, by default one, publish NAMES regions
 * together in the directory, another one looks up TIMES of them in random order. Prints the median
 * in ms; with NODES the 99th percentile. */
#include "common.h"

#include <haul/directory.h>
#include <stdio.h>
#include <stdlib.h>

#define PATIENCE   60000000000 /* ns */
#define NODES_MOST 1000
#define TIMES_MOST 100000

/* Every `step`th name from `first` on. */
static haul_node *register_owner(const char *directory, int names, int first, int step) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node;
  char name[32];
  snprintf(name, sizeof name, "owner-%d", first);
  config.name = name;
  must(haul_node_open(&config, &node), "open");
  haul_region *region = make_region(node, "host", 4096, 0, 0);
  must(haul_node_listen(node, "tcp://127.0.0.1:0"), "listen");
  for (int i = first; i < names; i += step) {
    snprintf(name, sizeof name, "model/layer-%d", i);
    must(haul_region_publish(region, name, HAUL_READ), "publish");
  }
  must(haul_node_register(node, directory, NULL, haul_deadline_in(PATIENCE)), "register");
  return node;
}

static double find(haul_node *node, const char *directory, int number) {
  struct haul_directory_entry entry;
  size_t count = 1;
  char address[256];
  snprintf(address, sizeof address, "%s/model%%2Flayer-%d", directory, number);
  int64_t began = now_ns();
  must(haul_directory_find(node, address, haul_deadline_in(PATIENCE), &entry, &count), "find");
  double took = (double)(now_ns() - began) / 1e6;
  need(count == 1 && entry.length == 4096, "what was found");
  return took;
}

int main(int argc, char **argv) {
  static haul_node *owners[NODES_MOST];
  static double took[TIMES_MOST];
  int names = argc > 2 ? atoi(argv[2]) : 0, times = argc > 3 ? atoi(argv[3]) : 0;
  int nodes = argc > 4 ? atoi(argv[4]) : 1;
  if (names < 1 || times < 1 || times > TIMES_MOST || nodes < 1 || nodes > NODES_MOST) {
    fprintf(stderr, "usage: directory DIRECTORY NAMES TIMES [NODES]\n");
    return 2;
  }
  haul_node *client = open_node(1, 0);
  for (int i = 0; i < nodes; i++)
    owners[i] = register_owner(argv[1], names, i, nodes);
  for (int i = 0; i < times; i++)
    took[i] = find(client, argv[1], (int)((unsigned)i * 7919u % (unsigned)names));
  double median = median_of(took, (size_t)times); /* which sorts them */
  printf("%.4f\n", argc > 4 ? took[times * 99 / 100] : median);
  haul_node_close(client);
  for (int i = 0; i < nodes; i++)
    haul_node_close(owners[i]);
  return 0;
}
