/* SPDX-License-Identifier: MIT
 * peers PATH COUNT SIZE DEPTH SECONDS: writes of SIZE bytes from one region to another process over
 * COUNT connections of one node, DEPTH in flight on each. Prints the sum in GB/s. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

#define COUNT_MAX 64

struct lane {
  haul_peer *peer;
  haul_remote *remote;
  haul_transfer *ring[DEPTH_MAX];
  unsigned next;
};

static haul_transfer *start(const char *path, struct lane *lane, haul_region *region) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, haul_region_length(region)};
  haul_transfer *transfer;
  options.only = path;
  must(haul_write(lane->remote, region, &piece, 1, &options, &transfer), "write");
  return transfer;
}

/* Replaces the oldest transfer of the lane if it is complete; then returns 1. */
static int turn(const char *path, struct lane *lane, unsigned depth, haul_region *region) {
  haul_transfer **slot = &lane->ring[lane->next];
  int ended = *slot != NULL;
  if (ended) {
    must(haul_transfer_wait(*slot, HAUL_FOREVER), "wait");
    haul_transfer_release(*slot);
  }
  *slot = start(path, lane, region);
  lane->next = (lane->next + 1) % depth;
  return ended;
}

static double run(const char *path, struct lane *lanes, unsigned count, unsigned depth,
                  haul_region *region, double seconds) {
  int64_t warm = now_ns() + 300000000, began = 0, end = 0, now = 0;
  uint64_t ended = 0;
  while (!end || now < end) {
    for (unsigned i = 0; i < count; i++)
      ended += (uint64_t)turn(path, &lanes[i], depth, region);
    now = now_ns();
    if (!began && now > warm && ended > 0) {
      began = now;
      ended = 0;
      end = now + (int64_t)(seconds * 1e9);
    }
  }
  return (double)(ended * haul_region_length(region)) / (double)(now - began);
}

static void connect_all(haul_node *node, const char *address, struct lane *lanes, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &lanes[i].peer), "connect");
    must(haul_peer_lookup(lanes[i].peer, "target", haul_deadline_in(5000000000), &lanes[i].remote),
         "lookup");
  }
}

static void end_all(struct lane *lanes, unsigned count, unsigned depth) {
  for (unsigned i = 0; i < count; i++) {
    for (unsigned k = 0; k < depth; k++) {
      if (lanes[i].ring[k])
        must(haul_transfer_wait(lanes[i].ring[k], HAUL_FOREVER), "wait");
      haul_transfer_release(lanes[i].ring[k]);
    }
    haul_remote_release(lanes[i].remote);
    haul_peer_close(lanes[i].peer);
  }
}

int main(int argc, char **argv) {
  static struct lane lanes[COUNT_MAX];
  char address[128];
  if (argc < 6 || atoi(argv[2]) < 1 || atoi(argv[2]) > COUNT_MAX || atoi(argv[4]) < 1 ||
      atoi(argv[4]) > DEPTH_MAX) {
    fprintf(stderr, "usage: peers PATH COUNT SIZE DEPTH SECONDS\n");
    return 2;
  }
  unsigned count = (unsigned)atoi(argv[2]), depth = (unsigned)atoi(argv[4]);
  if (is_child(argc, argv))
    serve_target(argv[1], "host", parse_size(argv[3]));
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  connect_all(node, address, lanes, count);
  haul_region *region = make_region(node, "host", parse_size(argv[3]), 2, HAUL_REGION_PRIVATE);
  printf("%.4f\n", run(argv[1], lanes, count, depth, region, atof(argv[5])));
  end_all(lanes, count, depth);
  haul_region_release(region);
  haul_node_close(node);
  end_child(child);
  return 0;
}
