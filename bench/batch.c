/* SPDX-License-Identifier: MIT
 * batch haul|memcpy PIECES BYTES ROUNDS: one transfer over `map` to another process with PIECES
 * segments of BYTES bytes, spread over 16 MiB on both sides, or as many memcpy calls. Prints
 * milliseconds. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPREAD (16u << 20)

static void by_haul(int argc, char **argv, const struct haul_piece *pieces, size_t count,
                    unsigned rounds) {
  char address[128];
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  haul_peer *peer;
  haul_remote *remote;
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  haul_region *source = make_region(node, "host", SPREAD, 2, HAUL_REGION_PRIVATE);
  must(haul_write(remote, source, pieces, count, NULL, NULL), "write");
  int64_t began = now_ns();
  for (unsigned i = 0; i < rounds; i++)
    must(haul_write(remote, source, pieces, count, NULL, NULL), "write");
  printf("%.5f\n", (double)(now_ns() - began) / rounds / 1e6);
  end_child(child);
}

static void by_memcpy(const struct haul_piece *pieces, size_t count, unsigned rounds) {
  char *to = malloc(SPREAD), *from = malloc(SPREAD);
  void *(*volatile copy)(void *, const void *, size_t) =
      memcpy; /* volatile: one call per segment */
  need(to && from, "memory");
  memset(to, 1, SPREAD);
  memset(from, 2, SPREAD);
  int64_t began = 0;
  for (unsigned i = 0; i < rounds + 1; i++) {
    if (i == 1)
      began = now_ns();
    for (size_t j = 0; j < count; j++)
      copy(to + pieces[j].remote, from + pieces[j].local, pieces[j].length);
  }
  printf("%.5f\n", (double)(now_ns() - began) / rounds / 1e6);
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: batch haul|memcpy PIECES BYTES ROUNDS\n");
    return 2;
  }
  if (is_child(argc, argv))
    serve_target("map", "host", SPREAD);
  size_t count = strtoul(argv[2], NULL, 10);
  uint64_t bytes = parse_size(argv[3]);
  struct haul_piece *pieces = calloc(count, sizeof *pieces);
  need(pieces != NULL, "memory");
  uint64_t stride = SPREAD / count / 64 * 64;
  for (size_t i = 0; i < count; i++)
    pieces[i] = (struct haul_piece){i * stride, (count - 1 - i) * stride, bytes};
  if (strcmp(argv[1], "haul") == 0)
    by_haul(argc, argv, pieces, count, (unsigned)atoi(argv[4]));
  else
    by_memcpy(pieces, count, (unsigned)atoi(argv[4]));
  return 0;
}
