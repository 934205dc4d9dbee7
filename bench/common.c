/* SPDX-License-Identifier: MIT */
#include "common.h"

#include <haul/access.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void must(int code, const char *what) {
  if (code >= 0)
    return;
  const struct haul_error *error = haul_error_last();
  fprintf(stderr, "%s: %s: %s (%s)\nhint: %s\n", what, error->call, error->text, error->object,
          error->hint);
  exit(1);
}

void need(int condition, const char *what) {
  if (condition)
    return;
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t clock_ns(clockid_t clock) {
  struct timespec now = {0, 0};
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t cpu_ns(pid_t other) {
  clockid_t clock;
  int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  if (other > 0 && clock_getcpuclockid(other, &clock) == 0)
    cpu += clock_ns(clock);
  return cpu;
}

struct meter meter_begin(pid_t other) {
  return (struct meter){other, now_ns(), cpu_ns(other)};
}

void meter_end(const struct meter *meter, uint64_t bytes) {
  double cpu = (double)(cpu_ns(meter->other) - meter->cpu);
  printf("%.4f ", (double)bytes / (double)(now_ns() - meter->began));
  if (getenv("HAUL_BENCH_ON"))
    puts("-");
  else
    printf("%.3f\n", cpu / (double)bytes);
}

double meter_busy(const struct meter *meter) {
  return (double)(cpu_ns(meter->other) - meter->cpu) / (double)(now_ns() - meter->began);
}

haul_node *open_node(int thread, int64_t spin_ns) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node;
  config.progress = thread ? HAUL_PROGRESS_THREAD : HAUL_PROGRESS_CALLER;
  config.spin_ns = spin_ns;
  config.insecure = getenv("HAUL_BENCH_LISTEN") != NULL;
  must(haul_node_open(&config, &node), "node");
  return node;
}

#define ARGUMENTS_MAX 32

/* The words of HAUL_BENCH_ON, if set; never freed. */
static size_t add_prefix(char **arguments) {
  const char *prefix = getenv("HAUL_BENCH_ON");
  size_t count = 0;
  if (!prefix)
    return 0;
  char *words = strdup(prefix);
  need(words != NULL, "memory");
  for (char *word = strtok(words, " "); word && count < ARGUMENTS_MAX; word = strtok(NULL, " "))
    arguments[count++] = word;
  return count;
}

/* Does not return. */
static void become_second(int argc, char **argv) {
  static char self[4096];
  char *arguments[2 * ARGUMENTS_MAX + 2] = {NULL};
  size_t count = add_prefix(arguments);
  need(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "/proc/self/exe");
  arguments[count++] = self;
  for (int i = 1; i < argc; i++)
    arguments[count++] = argv[i];
  arguments[count] = (char *)(uintptr_t) "--serve";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  execvp(arguments[0], arguments);
  _exit(127);
}

pid_t start_child(int argc, char **argv, char *line, size_t size) {
  int out[2];
  need(argc < ARGUMENTS_MAX && pipe(out) == 0, "pipe");
  pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    close(out[1]);
    become_second(argc, argv);
  }
  close(out[1]);
  FILE *from = fdopen(out[0], "r");
  need(from && fgets(line, (int)size, from), "the second process said nothing");
  line[strcspn(line, "\n")] = '\0';
  fclose(from);
  return child;
}

void end_child(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

void say_line(const char *line) {
  printf("%s\n", line);
  fflush(stdout);
}

int is_child(int argc, char **argv) {
  return argc > 1 && strcmp(argv[argc - 1], "--serve") == 0;
}

const char *listen_address(const char *path) {
  static char address[64];
  const char *given = getenv("HAUL_BENCH_LISTEN");
  if (given)
    return given;
  if (strcmp(path, "map") != 0)
    return "tcp://127.0.0.1:0";
  snprintf(address, sizeof address, "unix://@haul-bench-%d", (int)getpid());
  return address;
}

haul_region *make_region(haul_node *node, const char *place, uint64_t length, int value,
                         unsigned flags) {
  struct haul_place where;
  haul_region *region, *host;
  must(haul_place_parse(place, &where), place);
  must(haul_region_alloc(node, where, length, flags, &region), "region");
  if (where.kind == HAUL_HOST) {
    memset(haul_region_address(region), value, length);
    return region;
  }
  must(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, length, 0, &host), "region");
  memset(haul_region_address(host), value, length);
  must(haul_region_copy(region, 0, host, 0, length, HAUL_FOREVER), "copy");
  haul_region_release(host);
  return region;
}

void serve_target(const char *path, const char *place, uint64_t length) {
  char address[128];
  haul_node *node = open_node(0, SPIN_NS);
  haul_region *region = make_region(node, place, length, 1, 0);
  const char *who = getenv("HAUL_BENCH_GRANT");
  const struct haul_grant grant = {who ? who : "*", HAUL_READ | HAUL_WRITE};
  must(haul_region_publish_to(region, "target", &grant, 1), "publish");
  must(haul_node_listen(node, listen_address(path)), "listen");
  must(haul_node_address(node, 0, address, sizeof address), "address");
  say_line(address);
  for (;;)
    must(haul_node_progress(node, HAUL_FOREVER), "progress");
}

static int ascending(const void *one, const void *other) {
  double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

double median_of(double *values, size_t count) {
  qsort(values, count, sizeof *values, ascending);
  return values[count / 2];
}

uint64_t scattered(uint64_t index, uint64_t count) {
  const uint64_t stride = 7919; /* a prime, which no power of ten or two divides */
  return index * stride % count;
}

uint64_t parse_size(const char *text) {
  char *end;
  uint64_t value = strtoull(text, &end, 10);
  switch (*end) {
  case 'K':
    return value << 10;
  case 'M':
    return value << 20;
  case 'G':
    return value << 30;
  default:
    return value;
  }
}
