/* SPDX-License-Identifier: MIT
 * segments PATH COUNT SIZE SECONDS [PLACE]: writes of COUNT scattered segments of SIZE bytes each,
 * one after the other, to another process over PATH; both regions at PLACE (host). Prints GB/s and
 * CPU seconds a GB. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

static void run(haul_remote *remote, haul_region *region, const char *path, uint64_t count,
                double seconds, pid_t child) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  uint64_t length = haul_region_length(region), size = length / count, moved = 0;
  struct haul_piece *pieces = calloc(count, sizeof *pieces);
  struct meter meter;
  int64_t stop = 0;
  need(pieces != NULL, "memory");
  options.only = path;
  for (uint64_t i = 0; i < count; i++)
    pieces[i] = (struct haul_piece){i * size, scattered(i, count) * size, size};
  while (!stop || now_ns() < stop) {
    must(haul_write(remote, region, pieces, count, &options, NULL), "write");
    moved += length;
    if (!stop) { /* the first one does not count, as it does not for the peers */
      moved = 0;
      meter = meter_begin(child);
      stop = meter.began + (int64_t)(seconds * 1e9);
    }
  }
  meter_end(&meter, moved);
  free(pieces);
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 5) {
    fprintf(stderr, "usage: segments PATH COUNT SIZE SECONDS [PLACE]\n");
    return 2;
  }
  uint64_t count = parse_size(argv[2]), length = count * parse_size(argv[3]);
  const char *place = argc - is_child(argc, argv) > 5 ? argv[5] : "host";
  if (is_child(argc, argv))
    serve_target(argv[1], place, length);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  /* Before the connection: meanwhile no call drives the node. */
  haul_region *region = make_region(node, place, length, 2, HAUL_REGION_PRIVATE);
  haul_peer *peer;
  haul_remote *remote;
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  run(remote, region, argv[1], count, atof(argv[4]), child);
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  end_child(child);
  return 0;
}
