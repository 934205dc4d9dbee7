/* SPDX-License-Identifier: MIT
 * load PEERS REGIONS TRANSFERS ROUNDS [in|out [SEED]]: one node with REGIONS published regions and
 * PEERS peer processes, over tcp on loopback. Each round has TRANSFERS reads and writes of 64 B to
 * 1 MiB over all regions, all in flight at the same time, posted by the peers (`in`) or by the node
 * (`out`). Verifies every byte after each round, and at the end that the node uses what it used
 * without peers. Prints one line per phase. */
#include "common.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "support/load_rig.h"

#define MOST         (UINT64_C(1) << 20)
#define SEED_DEFAULT 1
#define KEPT_BYTES   (UINT64_C(1) << 20) /* slack for memory that the allocator keeps */
#define MIB          1048576.0

static double seconds(int64_t nanoseconds) {
  return (double)nanoseconds / 1e9;
}

static void demand(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "load: %s\n", what);
  exit(1);
}

struct figures {
  double rate, bytes_rate, p50, p99, posting, node_processor, peers_processor;
};

static int compare(const void *a, const void *b) {
  int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
  return (one > other) - (one < other);
}

static int64_t peers_processor(const struct load_rig *rig) {
  int64_t sum = 0;
  for (unsigned i = 0; i < rig->job.peers; i++)
    sum += rig->peers[i].use.processor_ns;
  return sum;
}

static struct figures figures_of(struct load_rig *rig) {
  unsigned count = rig->job.count;
  uint64_t bytes = load_bytes(&rig->plan, true) + load_bytes(&rig->plan, false);
  qsort(rig->times, count, sizeof *rig->times, compare);
  int64_t last = rig->times[count - 1];
  return (struct figures){.rate = count / seconds(last),
                          .bytes_rate = (double)bytes / (double)last,
                          .p50 = seconds(rig->times[count / 2]) * 1e3,
                          .p99 = seconds(rig->times[count - count / 100 - 1]) * 1e3};
}

/* Pages of all sockets of this network namespace. */
static unsigned long socket_pages(void) {
  char line[256];
  unsigned long pages = 0;
  FILE *file = fopen("/proc/net/sockstat", "r");
  need(file != NULL, "/proc/net/sockstat");
  while (fgets(line, sizeof line, file)) {
    const char *memory = strncmp(line, "TCP:", 4) == 0 ? strstr(line, " mem ") : NULL;
    if (memory)
      pages = strtoul(memory + 5, NULL, 10);
  }
  fclose(file);
  return pages;
}

static void run_round(struct load_rig *rig, unsigned round) {
  load_rig_fill(rig, round);
  int64_t began = load_now();
  uint64_t in_flight = load_rig_post(rig);
  double posting = seconds(load_now() - began);
  printf("round %u in_flight %llu posted_s %.3f sockets_mib %.1f", round,
         (unsigned long long)in_flight, posting, (double)socket_pages() * 4096 / MIB);
  demand(in_flight == rig->job.count, "not all were in flight at once");
  int64_t node = load_use_now().processor_ns, peers = peers_processor(rig);
  load_rig_go(rig);
  node = load_use_now().processor_ns - node;
  peers = peers_processor(rig) - peers;
  struct figures figures = figures_of(rig);
  printf(" transfers_per_s %.0f gb_per_s %.3f p50_ms %.1f p99_ms %.1f cpu_node_s %.2f "
         "cpu_peers_s %.2f\n",
         figures.rate, figures.bytes_rate, figures.p50, figures.p99, seconds(node), seconds(peers));
  fflush(stdout);
  demand(load_rig_check(rig) == 0, "bytes are not where they should be");
}

/* Gauges of the node and of its process. */
struct state {
  struct haul_node_stats stats;
  uint64_t transfers_bytes;
  struct load_use use;
};

static struct state state_of(const struct load_rig *rig) {
  struct state state;
  size_t none = 0;
  malloc_trim(0); /* free memory of the allocator does not count */
  must(haul_node_stats(rig->node, &state.stats, NULL, &none), "stats");
  must(haul_counter_read(rig->node, "node.transfers_bytes", &state.transfers_bytes), "counter");
  state.use = load_rig_use(rig);
  return state;
}

/* The mean per process. */
static void print_use(const char *who, const struct load_use *use, double processes) {
  printf("%s resident_mib %.1f private_mib %.2f descriptors %.0f cpu_s %.2f\n", who,
         (double)use->resident / MIB / processes, (double)use->private / MIB / processes,
         (double)use->descriptors / processes, seconds(use->processor_ns) / processes);
}

static void print_peers(const struct load_rig *rig) {
  struct load_use sum = {0};
  for (unsigned i = 0; i < rig->job.peers; i++) {
    const struct load_use *use = &rig->peers[i].use;
    sum.resident += use->resident;
    sum.private += use->private;
    sum.descriptors += use->descriptors;
    sum.processor_ns += use->processor_ns;
  }
  print_use("a_peer", &sum, rig->job.peers);
}

static void demand_return(const struct state *before, const struct state *after) {
  demand(after->stats.peers == 0, "the node has peers left");
  demand(after->stats.published == before->stats.published, "the node has lost regions");
  demand(after->stats.transfers == 0 && after->transfers_bytes == 0, "the node has transfers left");
  demand(after->stats.failed == 0 && after->stats.retried == 0, "transfers have failed");
  demand(after->stats.staging_bytes == before->stats.staging_bytes &&
             after->stats.pool_bytes == before->stats.pool_bytes,
         "the node has buffers left");
  demand(after->use.descriptors == before->use.descriptors, "the node has descriptors left");
  demand(after->use.private <= before->use.private + KEPT_BYTES, "the node has memory left");
}

static void raise_descriptors(void) {
  struct rlimit limit;
  need(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  printf("settings paths=tcp descriptors=%llu (ulimit -n), callers drive their nodes\n",
         (unsigned long long)limit.rlim_cur);
}

static void run(const struct load_job *job, unsigned rounds) {
  static struct load_rig rig;
  load_rig_open(&rig, job);
  printf("load peers %u regions %u transfers %u posted_by %s to_node_mb %.1f from_node_mb %.1f\n",
         job->peers, job->regions, job->count, job->node_posts ? "node" : "peers",
         (double)load_bytes(&rig.plan, true) / 1e6, (double)load_bytes(&rig.plan, false) / 1e6);
  struct state before = state_of(&rig);
  print_use("node_without_peers", &before.use, 1);
  int64_t began = load_now();
  load_rig_connect(&rig);
  int64_t connected = load_now();
  load_rig_look_up(&rig);
  printf("connect_s %.3f look_up_s %.3f look_ups %u\n", seconds(connected - began),
         seconds(load_now() - connected), job->node_posts ? job->peers : job->peers * job->regions);
  struct state with = state_of(&rig);
  print_use("node_with_peers", &with.use, 1);
  for (unsigned round = 1; round <= rounds; round++)
    run_round(&rig, round);
  with = state_of(&rig);
  print_use("node_after_rounds", &with.use, 1);
  print_peers(&rig);
  load_rig_leave(&rig);
  struct state after = state_of(&rig);
  print_use("node_after_peers", &after.use, 1);
  demand_return(&before, &after);
  load_rig_close(&rig);
}

static unsigned number(const char *text) {
  return text && atoi(text) > 0 ? (unsigned)atoi(text) : 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], LOAD_PEER_MODE) == 0)
    return load_peer_main();
  unsigned rounds = argc > 4 ? number(argv[4]) : 0;
  const char *by = argc > 5 ? argv[5] : "in";
  struct load_job job = {.most = MOST, .seed = argc > 6 ? number(argv[6]) : SEED_DEFAULT};
  if (rounds) {
    job.peers = number(argv[1]);
    job.regions = number(argv[2]);
    job.count = number(argv[3]);
    job.node_posts = strcmp(by, "out") == 0;
  }
  if (!job.peers || !job.regions || job.count < job.regions || job.peers > LOAD_PEERS_MAX ||
      (!job.node_posts && strcmp(by, "in") != 0)) {
    fprintf(stderr, "usage: load PEERS REGIONS TRANSFERS ROUNDS [in|out [SEED]]\n");
    return 2;
  }
  raise_descriptors();
  run(&job, rounds);
  return 0;
}
