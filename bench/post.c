/* SPDX-License-Identifier: MIT
 * post SIZE ROUNDS: consecutive writes of SIZE bytes over `rdma` from registered memory, from the
 * call to the NIC's doorbell. Prints the median in ns, and the 99th percentile on stderr. The
 * mocked NIC moves no bytes and records the time (HAUL_DOUBLE_MOTION=none, with
 * tests/doubles/ibverbs-moving/with), so this measures only haul's part. */
#include "common.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static int by_size(const void *one, const void *other) {
  int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
  return (left > right) - (left < right);
}

static void run(haul_remote *remote, haul_region *source, uint64_t size, size_t rounds) {
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  _Atomic int64_t *doorbell = library ? dlsym(library, "ibverbs_double_doorbell") : NULL;
  int64_t *times = calloc(rounds, sizeof *times);
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, size};
  haul_transfer *transfer;
  need(doorbell && times, "libibverbs.so.1 is not the double");
  options.only = "rdma";
  options.deadline = HAUL_FOREVER;
  for (size_t i = 0; i < rounds; i++) {
    int64_t began = now_ns();
    must(haul_write(remote, source, &piece, 1, &options, &transfer), "write");
    times[i] = atomic_load_explicit(doorbell, memory_order_relaxed) - began;
    need(times[i] > 0, "the doorbell was not rung in the call");
    must(haul_transfer_wait(transfer, HAUL_FOREVER), "wait");
    haul_transfer_release(transfer);
  }
  qsort(times, rounds, sizeof *times, by_size);
  printf("%lld\n", (long long)times[rounds / 2]);
  fprintf(stderr, "99th percentile %lld ns\n", (long long)times[rounds * 99 / 100]);
  free(times);
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 3) {
    fprintf(stderr, "usage: post SIZE ROUNDS\n");
    return 2;
  }
  uint64_t size = parse_size(argv[1]);
  if (is_child(argc, argv))
    serve_target("tcp", "host", size);
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  haul_peer *peer;
  haul_remote *remote;
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  haul_region *source = make_region(node, "host", size, 2, HAUL_REGION_PRIVATE);
  run(remote, source, size, strtoul(argv[2], NULL, 10));
  haul_region_release(source);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  end_child(child);
  return 0;
}
