/* SPDX-License-Identifier: MIT
 * gaudi kept|anew|inside|staged SIZE ROUNDS: copies SIZE bytes to a Gaudi: from a region that stays
 * mapped for the device, or from one that is wrapped for each copy; within the device, or to
 * another one through the host. Prints the median in GB/s. */
#include "common.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  need(argc == 4, "usage: gaudi kept|anew|inside|staged SIZE ROUNDS");
  size_t size = parse_size(argv[2]), rounds = strtoull(argv[3], NULL, 10);
  bool anew = strcmp(argv[1], "anew") == 0, devices = strchr("is", *argv[1]) != NULL;
  haul_node *node = open_node(1, 0);
  const char *from_place = *argv[1] == 's' ? "gaudi:1" : "gaudi:0";
  haul_region *to = make_region(node, "gaudi:0", size, 1, 0), *from = NULL, *wrapped;
  from = make_region(node, devices ? from_place : "host", size, 2, 0);
  double *rates = calloc(rounds, sizeof *rates);
  need(rates != NULL, "memory");
  for (size_t i = 0; i < rounds; i++) {
    int64_t began = now_ns();
    wrapped = from;
    if (anew)
      must(haul_region_wrap(node, haul_region_address(from), size, &wrapped), "wrap");
    must(haul_region_copy(to, 0, wrapped, 0, size, HAUL_FOREVER), "copy");
    if (anew)
      haul_region_release(wrapped);
    rates[i] = (double)size / (double)(now_ns() - began);
  }
  printf("%.3f\n", median_of(rates, rounds));
  free(rates);
  haul_region_release(from);
  haul_region_release(to);
  haul_node_close(node);
  return 0;
}
