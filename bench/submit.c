/* SPDX-License-Identifier: MIT
 * submit PATH SIZE SECONDS: consecutive writes of SIZE bytes, one per call, to another process over
 * PATH. Prints millions per second. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND 4096

int main(int argc, char **argv) {
  char address[128];
  if (argc < 4) {
    fprintf(stderr, "usage: submit PATH SIZE SECONDS\n");
    return 2;
  }
  uint64_t size = parse_size(argv[2]);
  if (is_child(argc, argv))
    serve_target(argv[1], "host", size);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(1, SPIN_NS);
  haul_peer *peer;
  haul_remote *remote;
  haul_region *region = make_region(node, "host", size, 1, 0);
  const struct haul_piece piece = {0, 0, size};
  must(haul_peer_connect(node, address, haul_deadline_in(10000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(10000000000), &remote), "lookup");
  int64_t warm = now_ns() + 100000000, began = 0, now;
  uint64_t writes = 0;
  for (;;) {
    for (unsigned i = 0; i < ROUND; i++)
      must(haul_write(remote, region, &piece, 1, NULL, NULL), "write");
    writes += ROUND;
    now = now_ns();
    if (!began && now > warm) {
      began = now;
      writes = 0;
    }
    if (began && (double)(now - began) > atof(argv[3]) * 1e9)
      break;
  }
  printf("%.4f\n", (double)writes * 1e3 / (double)(now - began));
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_region_release(region);
  haul_node_close(node);
  end_child(child);
  return 0;
}
