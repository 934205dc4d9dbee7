/* SPDX-License-Identifier: MIT
 * cold PLACE SIZE PERCENTILE: allocates fresh memory of SIZE bytes, up to 200 times without frees.
 * Prints that percentile in microseconds. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 200

static int by_size(const void *one, const void *other) {
  int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
  return (a > b) - (a < b);
}

int main(int argc, char **argv) {
  static int64_t took[MOST];
  static haul_region *regions[MOST];
  struct haul_place place;
  haul_region *first;
  unsigned count = 0;
  if (argc < 4) {
    fprintf(stderr, "usage: cold PLACE SIZE PERCENTILE\n");
    return 2;
  }
  uint64_t size = parse_size(argv[2]), percentile = strtoull(argv[3], NULL, 10);
  haul_node *node = open_node(0, 0);
  must(haul_place_parse(argv[1], &place), argv[1]);
  must(haul_region_alloc(node, place, 1, 0, &first), "region"); /* one-time initialization */
  while (count < MOST) {
    int64_t began = now_ns();
    if (haul_region_alloc(node, place, size, 0, &regions[count]) != 0)
      break;
    took[count++] = now_ns() - began;
  }
  if (count < 20)
    must(haul_region_alloc(node, place, size, 0, &regions[0]), "20 regions");
  qsort(took, count, sizeof took[0], by_size);
  printf("%.3f\n", (double)took[count * percentile / 100] / 1000);
  while (count > 0)
    haul_region_release(regions[--count]);
  haul_region_release(first);
  haul_node_close(node);
  return 0;
}
