/* SPDX-License-Identifier: MIT */
#include "common.h"

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

haul_node *open_node(int thread, int64_t spin_ns) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node;
  config.progress = thread ? HAUL_PROGRESS_THREAD : HAUL_PROGRESS_CALLER;
  config.spin_ns = spin_ns;
  must(haul_node_open(&config, &node), "node");
  return node;
}

#define ARGUMENTS_MAX 16

pid_t start_child(int argc, char **argv, char *line, size_t size) {
  int out[2];
  need(argc < ARGUMENTS_MAX - 1 && pipe(out) == 0, "pipe");
  pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    char *arguments[ARGUMENTS_MAX + 1] = {NULL};
    memcpy(arguments, argv, (size_t)argc * sizeof *argv);
    arguments[argc] = (char *)(uintptr_t) "--serve";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    close(out[1]);
    execv("/proc/self/exe", arguments);
    _exit(127);
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
  if (strcmp(path, "tcp") == 0)
    return "tcp://127.0.0.1:0";
  snprintf(address, sizeof address, "unix://@haul-bench-%d", (int)getpid());
  return address;
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
