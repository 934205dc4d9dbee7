/* SPDX-License-Identifier: MIT
 * startup ROUNDS: from haul_node_open to a published region. Prints the median in microseconds. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 100;
  double *took = calloc(rounds + 1, sizeof *took);
  need(took != NULL && rounds > 0, "usage: startup ROUNDS");
  for (size_t i = 0; i < rounds; i++) {
    haul_node *node;
    haul_region *region;
    int64_t began = now_ns();
    must(haul_node_open(NULL, &node), "node");
    must(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, 1 << 20, 0, &region), "region");
    must(haul_region_publish(region, "r", HAUL_READ), "publish");
    took[i] = (double)(now_ns() - began) / 1000;
    haul_region_release(region);
    haul_node_close(node);
  }
  qsort(took, rounds, sizeof *took, compare);
  printf("%.2f\n", took[rounds / 2]);
  free(took);
  return 0;
}
