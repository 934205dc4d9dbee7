/* SPDX-License-Identifier: MIT
 * fairness PATH idle|loaded ROUNDS: consecutive high-priority writes of 4 KiB to another process
 * over PATH, alone or with four writes of 64 MiB always in flight. Prints the 99th percentile of
 * one write in us. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE ((uint64_t)64 << 20)
#define BULK  4

static struct {
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  haul_region *region;
  haul_transfer *bulk[BULK];
} at;

static void start_bulk(const char *path) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {4096, 4096, LARGE};
  options.only = path;
  for (unsigned i = 0; i < BULK; i++) {
    if (at.bulk[i] && haul_transfer_test(at.bulk[i]) == 1)
      continue;
    haul_transfer_release(at.bulk[i]);
    must(haul_write(at.remote, at.region, &piece, 1, &options, &at.bulk[i]), "write");
  }
}

static int64_t one(const char *path) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  const struct haul_piece piece = {0, 0, 4096};
  options.only = path;
  options.priority = HAUL_PRIORITY_HIGH;
  int64_t began = now_ns();
  must(haul_write(at.remote, at.region, &piece, 1, &options, NULL), "write");
  return now_ns() - began;
}

static int by_size(const void *one, const void *other) {
  int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
  return (left > right) - (left < right);
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 4) {
    fprintf(stderr, "usage: fairness PATH idle|loaded ROUNDS\n");
    return 2;
  }
  if (is_child(argc, argv))
    serve_target(argv[1], "host", LARGE + 4096);
  int loaded = strcmp(argv[2], "loaded") == 0;
  size_t rounds = parse_size(argv[3]);
  int64_t *times = calloc(rounds + 1, sizeof *times);
  need(times != NULL, "calloc");
  pid_t child = start_child(argc, argv, address, sizeof address);
  at.node = open_node(1, SPIN_NS);
  at.region = make_region(at.node, "host", LARGE + 4096, 1, 0);
  must(haul_peer_connect(at.node, address, haul_deadline_in(10000000000), &at.peer), "connect");
  must(haul_peer_lookup(at.peer, "target", haul_deadline_in(10000000000), &at.remote), "lookup");
  for (size_t i = 0; i < rounds + rounds / 10; i++) {
    if (loaded)
      start_bulk(argv[1]);
    times[i < rounds / 10 ? 0 : i - rounds / 10] = one(argv[1]);
  }
  qsort(times, rounds, sizeof *times, by_size);
  printf("%.3f\n", (double)times[rounds * 99 / 100] / 1e3);
  fprintf(stderr, "median %.3f us\n", (double)times[rounds / 2] / 1e3);
  for (unsigned i = 0; i < BULK; i++) {
    if (at.bulk[i])
      must(haul_transfer_wait(at.bulk[i], HAUL_FOREVER), "wait");
    haul_transfer_release(at.bulk[i]);
  }
  haul_remote_release(at.remote);
  haul_peer_close(at.peer);
  haul_region_release(at.region);
  haul_node_close(at.node);
  end_child(child);
  free(times);
  return 0;
}
