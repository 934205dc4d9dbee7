/* SPDX-License-Identifier: MIT
 * idle LINKS TIMES: a write of 64 bytes over tcp on loopback between two nodes that have LINKS more
 * connections, which are idle. Prints the median in us. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static double once(haul_remote *remote, haul_region *region) {
  struct haul_piece piece = {0, 0, 64};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "tcp";
  int64_t began = now_ns();
  must(haul_write(remote, region, &piece, 1, &options, NULL), "write");
  return (double)(now_ns() - began) / 1e3;
}

int main(int argc, char **argv) {
  char address[128];
  haul_peer *peer;
  haul_remote *remote;
  struct rlimit files;
  int links = argc > 2 ? atoi(argv[1]) : -1, times = argc > 2 ? atoi(argv[2]) : 0;
  if (links < 0 || times < 1) {
    fprintf(stderr, "usage: idle LINKS TIMES\n");
    return 2;
  }
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (is_child(argc, argv))
    serve_target("tcp", "host", 4096);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(1, 0);
  double *took = calloc((size_t)times, sizeof *took);
  need(took != NULL, "memory");
  for (int i = 0; i <= links; i++) /* the last one is used */
    must(haul_peer_connect(node, address, haul_deadline_in(10000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  haul_region *region = make_region(node, "host", 4096, 1, 0);
  for (int i = 0; i < times; i++)
    took[i] = once(remote, region);
  printf("%.2f\n", median_of(took, (size_t)times));
  end_child(child);
  return 0;
}
