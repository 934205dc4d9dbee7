/* SPDX-License-Identifier: MIT
 * The report of a run with thousands of nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "etcd.h"
#include "scale.h"

/* Of all nodes a second; a directory has to bear it. */
#define DIRECTORY_MOST 1000

struct times {
  int64_t *values;
  size_t count, room;
};

/* Requests to the directory. */
struct rate {
  uint64_t sum, peak;
  unsigned seconds;
};

static struct {
  uint64_t messages, connects, failures;
  struct times reconnects;
  struct rate directory;
} stage;

static struct {
  uint64_t connects, failures, codes[64], register_failures;
  struct times connects_took, reconnects;
  struct rate directory, after_outage;
  size_t bare_bytes, bare_descriptors;
} total;

static struct event second;
static uint64_t requests_before;
static struct timespec began;

static void add_time(struct times *times, int64_t value) {
  if (times->count == times->room) {
    times->room = times->room ? 2 * times->room : 1024;
    times->values = realloc(times->values, times->room * sizeof *times->values);
  }
  times->values[times->count++] = value;
}

static int compare(const void *one, const void *other) {
  int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
  return (a > b) - (a < b);
}

static void print_times(const char *what, struct times *times) {
  if (times->count == 0)
    return;
  qsort(times->values, times->count, sizeof *times->values, compare);
  printf("%s: median %.1f ms, p99 %.1f ms, of %zu\n", what,
         (double)times->values[times->count / 2] / MS,
         (double)times->values[times->count * 99 / 100] / MS, times->count);
}

void figures_bare(const struct process *process) {
  total.bare_bytes = process->block_bytes;
  total.bare_descriptors = process->descriptor_count;
}

void figures_message(void) {
  stage.messages++;
}

void figures_connect(int code, int64_t took) {
  stage.connects++;
  total.connects++;
  if (code == 0) {
    add_time(&total.connects_took, took);
    return;
  }
  stage.failures++;
  total.failures++;
  total.codes[-code % 64]++;
}

void figures_reconnect(int64_t took) {
  add_time(&stage.reconnects, took);
  add_time(&total.reconnects, took);
}

void figures_register_failed(void) {
  total.register_failures++;
}

static void count(struct rate *rate, uint64_t requests) {
  rate->sum += requests;
  rate->seconds++;
  if (requests > rate->peak)
    rate->peak = requests;
}

static void on_second(struct event *event) {
  uint64_t requests = etcd_requests - requests_before;
  requests_before = etcd_requests;
  count(&stage.directory, requests);
  count(&total.directory, requests);
  if (scale.stage == RECOVERED)
    count(&total.after_outage, requests);
  /* Those beyond the cut come together when it heals. */
  if (requests > DIRECTORY_MOST && scale.stage != HEALED)
    sim_fail("load", "%llu requests to the directory in a second", (unsigned long long)requests);
  event_schedule(event, sim_now + S, on_second);
}

static void print_rate(const char *what, const struct rate *rate) {
  if (rate->seconds)
    printf("%s: mean %.0f, peak %llu requests a second\n", what, (double)rate->sum / rate->seconds,
           (unsigned long long)rate->peak);
}

void figures_start(void) {
  clock_gettime(CLOCK_MONOTONIC, &began);
  if (scale.directory)
    event_schedule(&second, S, on_second);
}

struct sums {
  double nodes, incoming, outgoing, square, bytes, descriptors, threads, bytes_in, descriptors_in;
};

static struct sums sum_nodes(void) {
  struct sums sums = {0};
  for (unsigned i = 0; i < scale.count; i++) {
    const struct node *node = &scale.nodes[i];
    if (!node->process)
      continue;
    double in = node->incoming, bytes = (double)node->process->block_bytes,
           descriptors = (double)node->process->descriptor_count;
    sums.nodes++;
    sums.incoming += in;
    sums.square += in * in;
    sums.bytes += bytes;
    sums.descriptors += descriptors;
    sums.bytes_in += bytes * in;
    sums.descriptors_in += descriptors * in;
    for (unsigned k = 0; k < LINKS; k++)
      sums.outgoing += node->links[k].peer != NULL;
    list_each(item, &node->process->fibers) sums.threads++;
  }
  return sums;
}

/* Least squares: nodes differ in the links that others make to them. */
static double slope(const struct sums *sums, double product, double sum) {
  double spread = sums->nodes * sums->square - sums->incoming * sums->incoming;
  return spread > 0 ? (sums->nodes * product - sums->incoming * sum) / spread : 0;
}

static void print_links(void) {
  struct sums sums = sum_nodes();
  double bytes = slope(&sums, sums.bytes_in, sums.bytes);
  double descriptors = slope(&sums, sums.descriptors_in, sums.descriptors);
  double own = sums.bytes - (double)total.bare_bytes * sums.nodes - bytes * sums.incoming;
  double own_descriptors =
      sums.descriptors - (double)total.bare_descriptors * sums.nodes - descriptors * sums.incoming;
  printf("a node without links: %.1f KiB, %zu descriptors; with its links: %.1f KiB, %.1f "
         "descriptors, %.1f threads\n",
         (double)total.bare_bytes / 1024, total.bare_descriptors, sums.bytes / sums.nodes / 1024,
         sums.descriptors / sums.nodes, sums.threads / sums.nodes);
  printf("a link: %.1f KiB and %.1f descriptors at the end that made it, %.1f KiB and %.1f at the "
         "other\n",
         own / sums.outgoing / 1024, own_descriptors / sums.outgoing, bytes / 1024, descriptors);
}

/* Nodes that waited for the directory must not come all together. */
static void check_herd(const struct rate *rate) {
  if ((double)rate->peak > 5.0 * (double)rate->sum / rate->seconds + 10)
    sim_fail("load", "%llu requests in a second after the outage, of %llu in %u s",
             (unsigned long long)rate->peak, (unsigned long long)rate->sum, rate->seconds);
}

void figures_stage(const char *name) {
  printf("%s: %.0f s; %u of %u links; %llu connects, %llu failed; %llu messages\n", name,
         (double)(sim_now - scale.stage_began) / S, scale.linked, scale.count * LINKS,
         (unsigned long long)stage.connects, (unsigned long long)stage.failures,
         (unsigned long long)stage.messages);
  print_times("  reconnected after", &stage.reconnects);
  print_rate("  directory", &stage.directory);
  fflush(stdout);
  if (scale.stage == RECOVERED)
    check_herd(&stage.directory);
  free(stage.reconnects.values);
  memset(&stage, 0, sizeof stage);
}

static void print_failures(void) {
  printf("connects: %llu, of these failed: %llu", (unsigned long long)total.connects,
         (unsigned long long)total.failures);
  for (int i = 1; i < 64; i++)
    if (total.codes[i])
      printf(", %s %llu", haul_error_name(-i), (unsigned long long)total.codes[i]);
  printf("\nregistrations failed: %llu\n", (unsigned long long)total.register_failures);
}

void figures_report(void) {
  struct rusage usage;
  struct timespec now;
  getrusage(RUSAGE_SELF, &usage);
  clock_gettime(CLOCK_MONOTONIC, &now);
  puts("All figures of nodes and time are simulated; real seconds and memory are the simulator's.");
  printf("%u nodes, %s directory: %.0f s simulated in %.0f real s, %.0f s of processor time, %.2f "
         "GiB at most\n",
         scale.count, scale.directory ? "with a" : "without", (double)sim_now / S,
         (double)(now.tv_sec - began.tv_sec),
         (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec),
         (double)usage.ru_maxrss / (1 << 20));
  print_links();
  print_times("a connect takes", &total.connects_took);
  print_times("reconnected after", &total.reconnects);
  print_failures();
  print_rate("directory", &total.directory);
  print_rate("directory, after the outage", &total.after_outage);
  if (scale.directory)
    printf("directory: %llu requests, %llu connections, %llu refused\n",
           (unsigned long long)etcd_requests, (unsigned long long)etcd_connects,
           (unsigned long long)etcd_refused);
  printf("faults: %llu, failures: 0\n", (unsigned long long)sim_faults);
}
