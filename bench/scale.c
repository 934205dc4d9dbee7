/* SPDX-License-Identifier: MIT
 * scale NODES: NODES processes, each a node that connects to all others and writes 64 KiB to each.
 * Prints one line: nodes; then means per node: descriptors, threads, private memory before and with
 * all peers (KiB), memory per peer; seconds until all have connected and written; and memory per
 * peer after an idle second. */
#include "common.h"

#include <dirent.h>
#include <haul/world.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH   65536
#define PATIENCE 120000000000

struct row {
  double descriptors, threads, before, with, idle, seconds;
};

static double entries_of(const char *folder) {
  double count = 0;
  DIR *entries = opendir(folder);
  need(entries != NULL, folder);
  for (const struct dirent *entry; (entry = readdir(entries));)
    count += entry->d_name[0] != '.';
  closedir(entries);
  return count;
}

/* Private memory of the process in KiB. */
static double private_memory(void) {
  char line[128];
  double sum = 0, value;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  need(file != NULL, "smaps_rollup");
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Private_Clean: %lf", &value) == 1 ||
        sscanf(line, "Private_Dirty: %lf", &value) == 1)
      sum += value;
  fclose(file);
  return sum;
}

static void write_to(haul_node *node, haul_peer *peer, haul_region *local) {
  haul_remote *remote;
  struct haul_piece piece = {0, 0, LENGTH};
  (void)node;
  must(haul_peer_lookup(peer, "target", haul_deadline_in(PATIENCE), &remote), "lookup");
  haul_transfer *transfer;
  must(haul_write(remote, local, &piece, 1, NULL, &transfer), "write");
  must(haul_transfer_wait(transfer, haul_deadline_in(PATIENCE)), "wait");
  haul_transfer_release(transfer);
  haul_remote_release(remote);
}

static void measure(struct row *row) {
  haul_world *world;
  haul_node *node = open_node(1, 0);
  haul_region *target = make_region(node, "host", LENGTH, 0, 0);
  haul_region *local = make_region(node, "host", LENGTH, 1, HAUL_REGION_PRIVATE);
  must(haul_region_publish(target, "target", HAUL_READ | HAUL_WRITE), "publish");
  must(haul_world_join(node, haul_deadline_in(PATIENCE), &world), "join");
  row->before = private_memory();
  int64_t began = now_ns();
  for (unsigned i = 1; i < haul_world_size(world); i++) {
    haul_peer *peer;
    unsigned rank = (haul_world_rank(world) + i) % haul_world_size(world);
    must(haul_world_peer(world, rank, haul_deadline_in(PATIENCE), &peer), "connect");
    write_to(node, peer, local);
    haul_peer_close(peer);
  }
  row->seconds = (double)(now_ns() - began) / 1e9;
  sleep(2); /* until the others are ready */
  row->with = private_memory();
  row->descriptors = entries_of("/proc/self/fd");
  row->threads = entries_of("/proc/self/task");
  sleep(2);
  row->idle = private_memory();
  sleep(1);
  haul_world_leave(world);
  haul_node_close(node);
}

static void run_rank(unsigned rank, unsigned nodes, int to) {
  char number[16];
  struct row row;
  snprintf(number, sizeof number, "%u", rank);
  setenv("RANK", number, 1);
  snprintf(number, sizeof number, "%u", nodes);
  setenv("WORLD_SIZE", number, 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  measure(&row);
  need(write(to, &row, sizeof row) == sizeof row, "pipe");
  _exit(0);
}

int main(int argc, char **argv) {
  unsigned nodes = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
  int ends[2], status, failed = 0;
  struct row row, sum = {0};
  if (nodes < 2 || nodes > 512) {
    fprintf(stderr, "usage: scale NODES\n");
    return 2;
  }
  need(pipe(ends) == 0, "pipe");
  for (unsigned rank = 0; rank < nodes; rank++) {
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0)
      run_rank(rank, nodes, ends[1]);
  }
  close(ends[1]);
  unsigned told = 0;
  for (; read(ends[0], &row, sizeof row) == sizeof row; told++) {
    sum.descriptors += row.descriptors;
    sum.threads += row.threads;
    sum.before += row.before;
    sum.with += row.with;
    sum.idle += row.idle;
    sum.seconds = row.seconds > sum.seconds ? row.seconds : sum.seconds;
  }
  while (wait(&status) > 0)
    failed |= status;
  need(told == nodes && !failed, "a node failed");
  printf("nodes %u descriptors %.1f threads %.1f before_kib %.0f with_kib %.0f peer_kib %.1f "
         "idle_peer_kib %.1f "
         "seconds %.2f\n",
         nodes, sum.descriptors / nodes, sum.threads / nodes, sum.before / nodes, sum.with / nodes,
         (sum.with - sum.before) / nodes / (nodes - 1),
         (sum.idle - sum.before) / nodes / (nodes - 1), sum.seconds);
  return 0;
}
