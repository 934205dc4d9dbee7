/* SPDX-License-Identifier: MIT
 * transfer PATH SIZE DEPTH SECONDS [write|read [PLACE [apart]]]: transfers of SIZE bytes to or from
 * another process, DEPTH in flight, only over PATH; both regions at PLACE (host). All use the same
 * bytes, or with `apart` each in flight its own. Prints GB/s and CPU seconds a GB. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
  const char *path, *place;
  uint64_t size;
  unsigned depth;
  double seconds;
  enum haul_operation operation;
  int apart;
};

static haul_transfer *start(const struct job *job, unsigned slot, haul_remote *remote,
                            haul_region *region) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  uint64_t offset = job->apart ? slot * job->size : 0;
  struct haul_piece piece = {offset, offset, job->size};
  haul_transfer *transfer;
  options.only = job->path;
  if (job->operation == HAUL_OP_WRITE)
    must(haul_write(remote, region, &piece, 1, &options, &transfer), "write");
  else
    must(haul_read(region, remote, &piece, 1, &options, &transfer), "read");
  return transfer;
}

static void run(const struct job *job, haul_remote *remote, haul_region *region, pid_t child) {
  haul_transfer *ring[DEPTH_MAX] = {NULL};
  uint64_t moved = 0;
  struct meter meter;
  int64_t warm = now_ns() + 200000000, end = 0, now = 0;
  for (unsigned i = 0; !end || now < end; i = (i + 1) % job->depth) {
    if (ring[i]) {
      must(haul_transfer_wait(ring[i], HAUL_FOREVER), "wait");
      haul_transfer_release(ring[i]);
      moved += job->size;
    }
    ring[i] = start(job, i, remote, region);
    now = now_ns();
    if (!end && now > warm && moved > 0) {
      meter = meter_begin(child);
      moved = 0;
      end = now + (int64_t)(job->seconds * 1e9);
    }
  }
  meter_end(&meter, moved);
  for (unsigned i = 0; i < job->depth; i++) {
    if (ring[i])
      must(haul_transfer_wait(ring[i], HAUL_FOREVER), "wait");
    haul_transfer_release(ring[i]);
  }
}

static struct job parse(int argc, char **argv) {
  struct job job = {.path = argv[1],
                    .size = parse_size(argv[2]),
                    .depth = (unsigned)atoi(argv[3]),
                    .seconds = atof(argv[4]),
                    .operation = HAUL_OP_WRITE,
                    .place = "host"};
  argc -= is_child(argc, argv);
  if (argc > 5 && strcmp(argv[5], "read") == 0)
    job.operation = HAUL_OP_READ;
  if (argc > 6)
    job.place = argv[6];
  job.apart = argc > 7 && strcmp(argv[7], "apart") == 0;
  return job;
}

static uint64_t length_of(const struct job *job) {
  return job->apart ? job->depth * job->size : job->size;
}

int main(int argc, char **argv) {
  char address[128];
  if (argc < 5 || atoi(argv[3]) < 1 || atoi(argv[3]) > DEPTH_MAX) {
    fprintf(stderr, "usage: transfer PATH SIZE DEPTH SECONDS [write|read [PLACE [apart]]]\n");
    return 2;
  }
  struct job job = parse(argc, argv);
  if (is_child(argc, argv))
    serve_target(job.path, job.place, length_of(&job));
  pid_t child = start_child(argc, argv, address, sizeof address);
  haul_node *node = open_node(0, SPIN_NS);
  haul_peer *peer;
  haul_remote *remote;
  must(haul_peer_connect(node, address, haul_deadline_in(5000000000), &peer), "connect");
  must(haul_peer_lookup(peer, "target", haul_deadline_in(5000000000), &remote), "lookup");
  haul_region *region = make_region(node, job.place, length_of(&job), 2, HAUL_REGION_PRIVATE);
  run(&job, remote, region, child);
  haul_region_release(region);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  end_child(child);
  return 0;
}
