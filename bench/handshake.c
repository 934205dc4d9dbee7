/* SPDX-License-Identifier: MIT
 * handshake TIMES: from haul_peer_connect to the end of the first lookup, over loopback TCP, with
 * the key in HAUL_KEY if set. Prints the median in ms. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

static double once(haul_node *node, const char *address) {
  haul_peer *peer;
  haul_remote *remote;
  int64_t began = now_ns();
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  double took = (double)(now_ns() - began) / 1e6;
  haul_remote_release(remote);
  haul_peer_close(peer);
  return took;
}

int main(int argc, char **argv) {
  char address[128];
  int times = argc > 1 ? atoi(argv[1]) : 0;
  if (times < 1) {
    fprintf(stderr, "usage: handshake TIMES\n");
    return 2;
  }
  if (is_child(argc, argv))
    serve_target("tcp", "host", 4096);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(1, 0);
  double *took = calloc((size_t)times, sizeof *took);
  need(took != NULL, "memory");
  for (int i = 0; i < times; i++)
    took[i] = once(node, address);
  printf("%.4f\n", median_of(took, (size_t)times));
  free(took);
  haul_node_close(node);
  end_child(child);
  return 0;
}
