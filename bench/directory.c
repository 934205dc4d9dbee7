/* SPDX-License-Identifier: MIT
 * directory DIRECTORY NAMES TIMES: a node publishes NAMES regions in the directory, another one
 * looks up TIMES of them in random order. Prints the median in ms. */
#include "common.h"

#include <haul/directory.h>
#include <stdio.h>
#include <stdlib.h>

#define PATIENCE 60000000000 /* ns */

static void publish_all(haul_node *node, int names) {
  char name[32];
  haul_region *region = make_region(node, "host", 4096, 0, 0);
  for (int i = 0; i < names; i++) {
    snprintf(name, sizeof name, "model/layer-%d", i);
    must(haul_region_publish(region, name, HAUL_READ), "publish");
  }
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
  int names = argc > 2 ? atoi(argv[2]) : 0, times = argc > 3 ? atoi(argv[3]) : 0;
  if (names < 1 || times < 1) {
    fprintf(stderr, "usage: directory DIRECTORY NAMES TIMES\n");
    return 2;
  }
  haul_node *owner = open_node(1, 0), *client = open_node(1, 0);
  double *took = calloc((size_t)times, sizeof *took);
  need(took != NULL, "memory");
  must(haul_node_listen(owner, "tcp://127.0.0.1:0"), "listen");
  publish_all(owner, names);
  must(haul_node_register(owner, argv[1], NULL, haul_deadline_in(PATIENCE)), "register");
  for (int i = 0; i < times; i++)
    took[i] = find(client, argv[1], (int)((unsigned)i * 7919u % (unsigned)names));
  printf("%.4f\n", median_of(took, (size_t)times));
  free(took);
  haul_node_close(client);
  haul_node_close(owner);
  return 0;
}
