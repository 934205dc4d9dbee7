/* SPDX-License-Identifier: MIT
 * pool haul|malloc|PLACE SIZE ROUNDS: allocates and frees SIZE bytes, warm. Prints nanoseconds. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void by_haul(const char *at, uint64_t size, uint64_t rounds) {
  haul_node *node = open_node(0, 0);
  struct haul_place place;
  haul_region *region;
  must(haul_place_parse(at, &place), at);
  int64_t began = 0;
  for (uint64_t i = 0; i < rounds + 1000; i++) {
    if (i == 1000)
      began = now_ns();
    int code = haul_region_alloc(node, place, size, 0, &region);
    if (code)
      must(code, "region");
    haul_region_release(region);
  }
  printf("%.2f\n", (double)(now_ns() - began) / (double)rounds);
  haul_node_close(node);
}

static void by_malloc(uint64_t size, uint64_t rounds) {
  int64_t began = 0;
  for (uint64_t i = 0; i < rounds + 1000; i++) {
    if (i == 1000)
      began = now_ns();
    void *volatile block = malloc(size);
    need(block != NULL, "malloc");
    free(block);
  }
  printf("%.2f\n", (double)(now_ns() - began) / (double)rounds);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: pool haul|malloc|PLACE SIZE ROUNDS\n");
    return 2;
  }
  uint64_t size = parse_size(argv[2]), rounds = strtoull(argv[3], NULL, 10);
  if (strcmp(argv[1], "malloc") == 0)
    by_malloc(size, rounds);
  else
    by_haul(strcmp(argv[1], "haul") == 0 ? "host" : argv[1], size, rounds);
  return 0;
}
