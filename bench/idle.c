/* SPDX-License-Identifier: MIT
 * idle LINKS TIMES: a write of 64 bytes over tcp on loopback between two nodes that have LINKS more
 * connections, which are idle. Prints the median in us.
 * idle cpu PEERS SECONDS: a node that PEERS other nodes are connected to, all idle. Prints the
 * percentage of a core that its process uses. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX    64
#define ADDRESS_SIZE 64

static double once(haul_remote *remote, haul_region *region) {
  struct haul_piece piece = {0, 0, 64};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "tcp";
  int64_t began = now_ns();
  must(haul_write(remote, region, &piece, 1, &options, NULL), "write");
  return (double)(now_ns() - began) / 1e3;
}

static int by_writes(int links, int times, int argc, char **argv) {
  char address[128];
  haul_peer *peer;
  haul_remote *remote;
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

/* The second process: nodes that only listen, and all their addresses in a line. */
static _Noreturn void serve_nodes(int count) {
  char line[NODES_MAX * ADDRESS_SIZE];
  size_t length = 0;
  for (int i = 0; i < count; i++) {
    char address[ADDRESS_SIZE];
    haul_node *node = open_node(1, 0);
    must(haul_node_listen(node, listen_address("tcp")), "listen");
    must(haul_node_address(node, 0, address, sizeof address), "address");
    length += (size_t)snprintf(line + length, sizeof line - length, "%s ", address);
  }
  say_line(line);
  for (;;)
    pause();
}

static int by_cpu(int count, int seconds, int argc, char **argv) {
  const struct timespec settle = {1, 0}, idle = {seconds, 0};
  char line[NODES_MAX * ADDRESS_SIZE], *rest = line, *address;
  if (is_child(argc, argv))
    serve_nodes(count);
  pid_t child = start_child(argc, argv, line, sizeof line);
  haul_node *node = open_node(1, 0);
  while ((address = strtok_r(rest, " ", &rest))) {
    haul_peer *peer;
    must(haul_peer_connect(node, address, haul_deadline_in(10000000000), &peer), "connect");
  }
  nanosleep(&settle, NULL);
  struct meter meter = meter_begin(0);
  nanosleep(&idle, NULL);
  printf("%.5f\n", meter_busy(&meter) * 100);
  end_child(child);
  return 0;
}

int main(int argc, char **argv) {
  struct rlimit files;
  int cpu = argc > 3 && strcmp(argv[1], "cpu") == 0;
  int count = argc > 2 ? atoi(argv[1 + cpu]) : -1, times = argc > 2 ? atoi(argv[2 + cpu]) : 0;
  if (count < 0 || times < 1 || (cpu && count > NODES_MAX)) {
    fprintf(stderr, "usage: idle LINKS TIMES | cpu PEERS SECONDS\n");
    return 2;
  }
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  return cpu ? by_cpu(count, times, argc, argv) : by_writes(count, times, argc, argv);
}
