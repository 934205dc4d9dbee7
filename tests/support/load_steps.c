/* SPDX-License-Identifier: MIT */
#include "support/load_steps.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

void load_must(int code, const char *what) {
  if (code >= 0)
    return;
  const struct haul_error *error = haul_error_last();
  fprintf(stderr, "load: %s: %s: %s (%s)\nhint: %s\n", what, error->call, error->text,
          error->object, error->hint);
  exit(1);
}

void load_fail(const char *what) {
  fprintf(stderr, "load: %s\n", what);
  exit(1);
}

int64_t load_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

haul_deadline load_deadline(void) {
  return haul_deadline_in(LOAD_PATIENCE_MS * INT64_C(1000000));
}

struct haul_node_config load_config(const struct load_job *job) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.progress = HAUL_PROGRESS_CALLER;
  config.liveness_ns = job->liveness_ns;
  config.transfer_ns = job->transfer_ns;
  config.paths = "tcp";
  return config;
}

void load_name(unsigned region, char name[LOAD_NAME]) {
  snprintf(name, LOAD_NAME, "region-%u", region);
}

static uint64_t count_descriptors(void) {
  uint64_t count = 0;
  DIR *entries = opendir("/proc/self/fd");
  load_need(entries != NULL, "no /proc");
  for (const struct dirent *entry; (entry = readdir(entries));)
    count += entry->d_name[0] != '.';
  closedir(entries);
  return count - 1; /* opendir's own */
}

static int64_t nanoseconds(struct timeval time) {
  return (int64_t)time.tv_sec * 1000000000 + (int64_t)time.tv_usec * 1000;
}

struct load_use load_use_now(void) {
  struct load_use use = {.descriptors = count_descriptors()};
  struct rusage taken;
  char line[128];
  unsigned long kib;
  FILE *status = fopen("/proc/self/status", "r");
  load_need(status && getrusage(RUSAGE_SELF, &taken) == 0, "no /proc");
  while (fgets(line, sizeof line, status)) {
    if (sscanf(line, "VmRSS: %lu", &kib) == 1)
      use.resident = (uint64_t)kib << 10;
    if (sscanf(line, "RssAnon: %lu", &kib) == 1)
      use.private = (uint64_t)kib << 10;
  }
  fclose(status);
  use.processor_ns = nanoseconds(taken.ru_utime) + nanoseconds(taken.ru_stime);
  return use;
}

uint64_t load_under_way(haul_node *node) {
  static struct haul_peer_stats peers[LOAD_PEERS_MAX];
  struct haul_node_stats stats;
  size_t count = LOAD_PEERS_MAX;
  uint64_t sum = 0;
  load_must(haul_node_stats(node, &stats, peers, &count), "the counters");
  for (size_t i = 0; i < count && i < LOAD_PEERS_MAX; i++)
    sum += peers[i].transfers;
  return sum;
}

static void note_end(void *ended, haul_transfer *transfer) {
  (void)transfer;
  *(int64_t *)ended = load_now();
}

haul_transfer *load_post(haul_remote *remote, haul_region *local, const struct haul_piece *piece,
                         bool write, int64_t *ended) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  haul_transfer *transfer;
  options.done = note_end;
  options.user = ended;
  *ended = 0;
  load_must(write ? haul_write(remote, local, piece, 1, &options, &transfer)
                  : haul_read(local, remote, piece, 1, &options, &transfer),
            "a transfer");
  return transfer;
}

void load_end(haul_node *node, haul_transfer **transfer, const int64_t *ended) {
  haul_deadline until = load_deadline();
  load_must(haul_transfer_wait(*transfer, until), "waiting for a transfer");
  while (*ended == 0) {
    load_need(load_now() < until, "a transfer ended without its callback");
    load_must(haul_node_progress(node, haul_deadline_in(1000000)), "progress");
  }
  haul_transfer_release(*transfer);
  *transfer = NULL;
}
