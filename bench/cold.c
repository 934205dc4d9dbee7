/* SPDX-License-Identifier: MIT
 * cold PLACE SIZE PERCENTILE [WARM]: allocates memory of SIZE bytes and writes to each of its
 * pages, up to 200 times without frees. WARM: bytes of the pool that are filled before. Prints that
 * percentile in microseconds. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 200
#define PAGE 4096

static int by_size(const void *one, const void *other) {
  int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
  return (a > b) - (a < b);
}

static haul_node *open_warm(uint64_t bytes) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node;
  config.progress = HAUL_PROGRESS_CALLER;
  config.warm_bytes = bytes;
  must(haul_node_open(&config, &node), "node");
  return node;
}

static void touch(haul_region *region, uint64_t size) {
  volatile char *bytes = haul_region_address(region);
  for (uint64_t at = 0; bytes && at < size; at += PAGE)
    bytes[at] = 1;
}

int main(int argc, char **argv) {
  static int64_t took[MOST];
  static haul_region *regions[MOST];
  struct haul_place place;
  haul_region *first;
  unsigned count = 0;
  if (argc < 4) {
    fprintf(stderr, "usage: cold PLACE SIZE PERCENTILE [WARM]\n");
    return 2;
  }
  uint64_t size = parse_size(argv[2]), percentile = strtoull(argv[3], NULL, 10);
  haul_node *node = open_warm(argc > 4 ? parse_size(argv[4]) : 0);
  must(haul_place_parse(argv[1], &place), argv[1]);
  must(haul_region_alloc(node, place, 1, 0, &first), "region"); /* one-time initialization */
  while (count < MOST) {
    int64_t began = now_ns();
    if (haul_region_alloc(node, place, size, 0, &regions[count]) != 0)
      break;
    touch(regions[count], size);
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
