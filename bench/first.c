/* SPDX-License-Identifier: MIT
 * first PATH SIZE TIMES: the first transfer to a new process, with memory registered at both ends:
 * connect, lookup and a write of SIZE bytes over PATH. Prints the median in ms. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

static double once(haul_node *node, haul_region *region, int argc, char **argv) {
  char address[128];
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, 0, haul_region_length(region)};
  haul_peer *peer;
  haul_remote *remote;
  options.only = argv[1];
  pid_t child = start_child(argc, argv, address, sizeof address);
  int64_t began = now_ns();
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  must(haul_write(remote, region, &piece, 1, &options, NULL), "write");
  double took = (double)(now_ns() - began) / 1e6;
  haul_remote_release(remote);
  haul_peer_close(peer);
  end_child(child);
  while (haul_node_progress(node, HAUL_NO_WAIT) > 0)
    ; /* the connection ends */
  return took;
}

int main(int argc, char **argv) {
  if (argc < 4 || atoi(argv[3]) < 1) {
    fprintf(stderr, "usage: first PATH SIZE TIMES\n");
    return 2;
  }
  uint64_t size = parse_size(argv[2]);
  size_t times = (size_t)atoi(argv[3]);
  if (is_child(argc, argv))
    serve_target(argv[1], "host", size);
  double *took = calloc(times, sizeof *took);
  need(took != NULL, "memory");
  haul_node *node = open_node(0, SPIN_NS);
  haul_region *region = make_region(node, "host", size, 2, HAUL_REGION_PRIVATE);
  for (size_t i = 0; i < times; i++)
    took[i] = once(node, region, argc, argv);
  printf("%.4f\n", median_of(took, times));
  haul_region_release(region);
  haul_node_close(node);
  free(took);
  return 0;
}
