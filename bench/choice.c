/* SPDX-License-Identifier: MIT
 * choice HERE THERE MAX [median|worst|all]: writes of each power of two from 8 bytes to MAX, one at
 * a time, from memory at HERE to memory at THERE in another process: over the path that haul
 * chooses, and over each open path, alternating. Prints the best path's time divided by the chosen
 * path's: the median over sizes, the worst, or one line per size. */
#include "common.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAYS_MAX 8
#define ROUNDS   11
#define BATCH_NS 2000000
#define LEAST    8
#define SIZES    40

struct way {
  char name[16];  /* "": chosen by haul */
  unsigned batch; /* writes per round */
  double rounds[ROUNDS];
};

struct ends {
  haul_remote *remote;
  haul_region *region;
};

static int64_t write_some(const struct ends *ends, const char *only, uint64_t bytes,
                          unsigned count) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, bytes};
  options.only = *only ? only : NULL;
  int64_t began = now_ns();
  for (unsigned i = 0; i < count; i++)
    must(haul_write(ends->remote, ends->region, &piece, 1, *only ? &options : NULL, NULL), "write");
  return now_ns() - began;
}

/* The chosen path, and all open ones. */
static unsigned find_ways(const struct ends *ends, uint64_t bytes, struct way ways[WAYS_MAX]) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  unsigned found = 1;
  must(haul_explain(ends->region, ends->remote, HAUL_OP_WRITE, bytes, NULL, paths, &count),
       "explain");
  ways[0].name[0] = '\0';
  for (size_t i = 0; i < count && found < WAYS_MAX; i++)
    if (paths[i].open)
      memcpy(ways[found++].name, paths[i].name, sizeof paths[i].name);
  return found;
}

/* haul's estimates of the paths. */
static void print_paths(const struct ends *ends, uint64_t bytes) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  must(haul_explain(ends->region, ends->remote, HAUL_OP_WRITE, bytes, NULL, paths, &count),
       "explain");
  for (size_t i = 0; i < count; i++)
    if (paths[i].open)
      printf("  %s%s %.2f us%s", paths[i].name, paths[i].chosen ? "*" : "", paths[i].cost_ns / 1e3,
             paths[i].measured ? "" : " est.");
}

static unsigned batch_of(const struct ends *ends, const char *name, uint64_t bytes) {
  int64_t one = write_some(ends, name, bytes, 4) / 4;
  return one < BATCH_NS ? (unsigned)(BATCH_NS / (one + 1)) + 1 : 1;
}

/* The best path's time divided by the chosen one's. */
static double measure(const struct ends *ends, uint64_t bytes, bool all) {
  struct way ways[WAYS_MAX];
  unsigned count = find_ways(ends, bytes, ways);
  double best = 0;
  for (unsigned i = 0; i < 8; i++) /* warm-up */
    write_some(ends, "", bytes, 1);
  for (unsigned i = 0; i < count; i++)
    ways[i].batch = batch_of(ends, ways[i].name, bytes);
  /* Rotates the order, as the first write after another path finds the peer asleep. */
  for (unsigned round = 0; round < ROUNDS; round++)
    for (unsigned i = 0; i < count; i++) {
      struct way *way = &ways[(i + round) % count];
      way->rounds[round] = (double)write_some(ends, way->name, bytes, way->batch) / way->batch;
    }
  double own = median_of(ways[0].rounds, ROUNDS);
  if (all)
    printf("%12llu: %.2f us", (unsigned long long)bytes, own / 1e3);
  for (unsigned i = 1; i < count; i++) {
    double here = median_of(ways[i].rounds, ROUNDS);
    best = i == 1 || here < best ? here : best;
    if (all)
      printf("  %s %.2f us", ways[i].name, here / 1e3);
  }
  if (all) {
    printf("  ratio %.2f; haul:", best / own);
    print_paths(ends, bytes);
    printf("\n");
  }
  return best / own;
}

static void run(const struct ends *ends, uint64_t most, const char *what) {
  double ratios[SIZES];
  unsigned count = 0;
  bool all = strcmp(what, "all") == 0;
  for (uint64_t bytes = LEAST; bytes <= most && count < SIZES; bytes *= 2) {
    double ratio = measure(ends, bytes, all);
    ratios[count++] = ratio < 1 ? ratio : 1; /* explicit path options have a cost too */
  }
  double middle = median_of(ratios, count);
  if (all)
    printf("median %.3f worst %.3f\n", middle, ratios[0]);
  else
    printf("%.4f\n", strcmp(what, "worst") == 0 ? ratios[0] : middle);
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 4) {
    fprintf(stderr, "usage: choice HERE THERE MOST [median|worst|all]\n");
    return 2;
  }
  uint64_t most = parse_size(argv[3]);
  if (is_child(argc, argv))
    serve_target("any", argv[2], most);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  haul_peer *peer;
  struct ends ends;
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &ends.remote), "lookup");
  ends.region = make_region(node, argv[1], most, 2, 0);
  run(&ends, most, argc > 4 ? argv[4] : "all");
  haul_region_release(ends.region);
  haul_remote_release(ends.remote);
  haul_peer_close(peer);
  haul_node_close(node);
  end_child(child);
  return 0;
}
