/* SPDX-License-Identifier: MIT
 * transfer PATH SIZE DEPTH SECONDS: writes of SIZE bytes into one region of SIZE bytes of another
 * process, DEPTH in flight, over PATH alone; GB/s. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_NS 50000

static void serve(const char *path, uint64_t size) {
  char address[128];
  haul_region *region;
  haul_node *node = open_node(0, SPIN_NS);
  must(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, size, 0, &region), "region");
  memset(haul_region_address(region), 1, size);
  must(haul_region_publish(region, "target", HAUL_READ | HAUL_WRITE), "publish");
  must(haul_node_listen(node, listen_address(path)), "listen");
  must(haul_node_address(node, 0, address, sizeof address), "address");
  say_line(address);
  for (;;)
    must(haul_node_progress(node, HAUL_FOREVER), "progress");
}

static void run(haul_remote *remote, haul_region *source, const char *path, uint64_t size,
                unsigned depth, double seconds) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, size};
  haul_transfer *ring[64] = {NULL};
  uint64_t moved = 0;
  options.only = path;
  int64_t warm = now_ns() + 200000000, began = 0, end = 0, now = 0;
  for (unsigned i = 0; !end || now < end; i = (i + 1) % depth) {
    if (ring[i]) {
      must(haul_transfer_wait(ring[i], HAUL_FOREVER), "wait");
      haul_transfer_release(ring[i]);
      moved += size;
    }
    must(haul_write(remote, source, &piece, 1, &options, &ring[i]), "write");
    now = now_ns();
    if (!began && now > warm) {
      began = now;
      moved = 0;
      end = now + (int64_t)(seconds * 1e9);
    }
  }
  double took = (double)(now - began);
  for (unsigned i = 0; i < depth; i++) {
    if (ring[i])
      must(haul_transfer_wait(ring[i], HAUL_FOREVER), "wait");
    haul_transfer_release(ring[i]);
  }
  printf("%.4f\n", (double)moved / took);
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 5) {
    fprintf(stderr, "usage: transfer PATH SIZE DEPTH SECONDS\n");
    return 2;
  }
  uint64_t size = parse_size(argv[2]);
  if (is_child(argc, argv))
    serve(argv[1], size);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  haul_peer *peer;
  haul_remote *remote;
  haul_region *source;
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  must(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, size, HAUL_REGION_PRIVATE,
                         &source),
       "source");
  memset(haul_region_address(source), 2, size);
  run(remote, source, argv[1], size, (unsigned)atoi(argv[3]), atof(argv[4]));
  haul_region_release(source);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  end_child(child);
  return 0;
}
