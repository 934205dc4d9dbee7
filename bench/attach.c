/* SPDX-License-Identifier: MIT
 * attach SIZE ROUNDS: imports another process's region of SIZE bytes by ticket and descriptor.
 * Prints the median in microseconds. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: attach SIZE ROUNDS\n");
    return 2;
  }
  size_t rounds = strtoul(argv[2], NULL, 10);
  double *took = calloc(rounds, sizeof *took);
  need(took != NULL, "memory");
  haul_node *owner = open_node(0, 0), *importer = open_node(0, 0);
  haul_region *region;
  struct haul_ticket ticket;
  int descriptor;
  must(haul_region_alloc(owner, (struct haul_place){HAUL_HOST, 0}, parse_size(argv[1]), 0, &region),
       "region");
  must(haul_region_export(region, HAUL_READ | HAUL_WRITE, NULL, &ticket, &descriptor), "export");
  for (size_t i = 0; i < rounds; i++) {
    haul_region *import;
    int64_t began = now_ns();
    must(haul_region_import(importer, &ticket, descriptor, &import), "import");
    took[i] = (double)(now_ns() - began) / 1000;
    haul_region_release(import);
  }
  qsort(took, rounds, sizeof *took, compare);
  printf("%.3f\n", took[rounds / 2]);
  close(descriptor);
  haul_region_release(region);
  haul_node_close(importer);
  haul_node_close(owner);
  free(took);
  return 0;
}
