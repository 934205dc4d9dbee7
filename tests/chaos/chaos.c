/* SPDX-License-Identifier: MIT
 * Nodes write to and read from each other while faults are injected: processes are killed, stopped
 * and restarted, connections cut within frames, memory and descriptors refused, clocks skewed.
 * Every byte is checked against a model: no completed operation is lost or torn, every operation
 * ends by its deadline, and a node that has left leaks nothing.
 *
 *   chaos [SECONDS]      HAUL_TEST_SEED=… repeats the random numbers
 *
 * Every second round uses TLS. A seed repeats the faults, but not the kernel's scheduling. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "node.h"
#include "support/check.h"
#include "support/child.h"
#include "support/stuck.h"

#define MORTAL  2u /* nodes from this one on are killed */
#define ROUND_S 40
/* The time of a phase: more than the nodes' own limit. */
#define PHASE_MAX (SANITIZED ? 600 * S : 120 * S)
/* The time by which a round may be longer, for each kind of operation to complete. */
#define PATIENCE (100 * S)

static struct {
  struct shared *shared;
  int descriptor;
  struct {
    pid_t pid;
    int socket;
  } nodes[NODES];
  uint64_t random, kills, stops;
  const char *key_folder;
} run;

extern char **environ;

static int64_t real_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * S + now.tv_nsec;
}

static uint64_t draw(uint64_t below) {
  return next_random(&run.random) % below;
}

static void start(unsigned i) {
  struct process *process = &run.shared->processes[i];
  struct node_arguments arguments = {.number = i,
                                     .life = ++process->lives,
                                     .seed = next_random(&run.random),
                                     .shared = run.descriptor};
  run.nodes[i].pid = child_start(NODE_MODE, &run.nodes[i].socket);
  child_send(run.nodes[i].socket, &arguments, sizeof arguments, -1);
}

static void end(unsigned i) {
  kill(run.nodes[i].pid, SIGKILL);
  child_end(run.nodes[i].pid, run.nodes[i].socket);
  run.nodes[i].pid = 0;
}

static _Noreturn void fail_run(const char *why, unsigned i) {
  fprintf(stderr, "FAILED  node %u %s; HAUL_TEST_SEED=%llu\n", i, why,
          (unsigned long long)run.shared->seed);
  for (unsigned j = 0; j < NODES; j++)
    if (run.nodes[j].pid > 0)
      end(j);
  exit(1);
}

/* A process ends by itself only with status 0, after the phase LEAVE. */
static void check_processes(void) {
  for (unsigned i = 0; i < NODES; i++) {
    int status;
    if (run.nodes[i].pid == 0 || waitpid(run.nodes[i].pid, &status, WNOHANG) == 0)
      continue;
    close(run.nodes[i].socket);
    run.nodes[i].pid = 0;
    if (WIFSIGNALED(status))
      fprintf(stderr, "signal %d ended it\n", WTERMSIG(status));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 ||
        atomic_load(&run.shared->processes[i].phase_done) != LEAVE)
      fail_run("has ended", i);
  }
}

static void kill_one(void) {
  unsigned i = MORTAL + (unsigned)draw(NODES - MORTAL);
  atomic_store(&run.shared->processes[i].ready, 0);
  end(i);
  rest((int64_t)draw(300) * MS);
  start(i);
  run.kills++;
}

static void stop_one(void) {
  unsigned i = (unsigned)draw(NODES);
  kill(run.nodes[i].pid, SIGSTOP);
  rest((int64_t)draw(draw(3) ? 300 : 2500) * MS);
  kill(run.nodes[i].pid, SIGCONT);
  run.stops++;
}

static void enter_phase(enum phase phase) {
  int64_t until = real_now() + PHASE_MAX;
  atomic_store(&run.shared->phase, phase);
  for (unsigned i = 0; i < NODES; i++)
    while (atomic_load(&run.shared->processes[i].phase_done) < (int)phase) {
      check_processes();
      rest(5 * MS);
      if (real_now() > until)
        fail_run("does not complete its phase", i);
    }
}

static void make_key(bool wanted) {
  static char folder[] = "/tmp/haul-chaos-XXXXXX";
  static char path[sizeof folder + 4];
  char *arguments[] = {"haul", "key", "new", path, NULL};
  const char *command = getenv("HAUL");
  pid_t child;
  int status = 1;
  unsetenv("HAUL_KEY");
  if (!wanted)
    return;
  if (!run.key_folder) {
    if (!command || !mkdtemp(folder)) {
      fprintf(stderr, "FAILED  set HAUL to the path of the command, which makes keys\n");
      exit(1);
    }
    run.key_folder = folder;
    snprintf(path, sizeof path, "%s/key", folder);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&child, command, &quiet, NULL, arguments, environ) == 0)
      waitpid(child, &status, 0);
    posix_spawn_file_actions_destroy(&quiet);
    if (status != 0) {
      fprintf(stderr, "FAILED  haul key new %s\n", path);
      exit(1);
    }
  }
  setenv("HAUL_KEY", path, 1);
}

static void remove_key(void) {
  char path[64];
  if (!run.key_folder)
    return;
  snprintf(path, sizeof path, "%s/key", run.key_folder);
  unlink(path);
  rmdir(run.key_folder);
}

static unsigned long long sum_of(size_t offset) {
  unsigned long long sum = 0;
  for (unsigned i = 0; i < NODES; i++)
    sum += atomic_load((_Atomic uint64_t *)((char *)&run.shared->processes[i].counts + offset));
  return sum;
}

#define SUM(field) sum_of(offsetof(struct counts, field))

static void print_summary(bool encrypted) {
  printf("   %s: %llu writes, %llu reads, %llu additions, %llu messages, %.2f GB; %llu blocks "
         "verified\n",
         encrypted ? "TLS" : "plain", SUM(writes), SUM(reads), SUM(adds), SUM(messages),
         (double)SUM(bytes) / 1e9, SUM(verified));
  printf(
      "   %llu killed, %llu stopped, %llu connections cut, memory refused %llu times, descriptors "
      "%llu times, %llu regions replaced, %llu connected\n   failed operations:",
      (unsigned long long)run.kills, (unsigned long long)run.stops, SUM(cuts), SUM(refusals),
      SUM(shortages), SUM(replaced), SUM(connected));
  for (int code = 1; code < 32; code++)
    if (SUM(failed[code]))
      printf(" %llu %s", SUM(failed[code]), haul_error_name(-code));
  puts("");
  fflush(stdout);
}

/* A round without operations proves nothing: it goes on until each kind has completed. */
static bool round_ends(int64_t end) {
  int64_t now = real_now();
  if (now > end + PATIENCE)
    fail_run("and the others completed no operations of some kind", 0);
  return now >= end && SUM(writes) && SUM(reads) && SUM(adds) && SUM(messages);
}

static void one_round(int64_t length, bool encrypted) {
  int64_t until = real_now() + length;
  make_key(encrypted);
  memset(run.shared, 0, sizeof *run.shared);
  run.shared->seed = test_seed();
  run.kills = run.stops = 0;
  for (unsigned i = 0; i < NODES; i++)
    start(i);
  while (!round_ends(until)) {
    rest((int64_t)(100 + draw(500)) * MS);
    check_processes();
    if (draw(2))
      kill_one();
    else
      stop_one();
  }
  enter_phase(SETTLE);
  enter_phase(VERIFY);
  enter_phase(LEAVE);
  for (unsigned i = 0; i < NODES; i++)
    while (run.nodes[i].pid) {
      check_processes();
      rest(5 * MS);
    }
  print_summary(encrypted);
  if (SUM(verified) == 0)
    fail_run("and the others verified no block", 0);
}

int main(int count, char **arguments) {
  if (count > 1 && strcmp(arguments[1], NODE_MODE) == 0)
    return node_main();
  int64_t seconds = count > 1 ? atoll(arguments[1]) : 8;
  int64_t rounds = seconds / ROUND_S > 2 ? seconds / ROUND_S : 2;
  stuck_after((unsigned)seconds + STUCK_SECONDS);
  atexit(remove_key);
  run.shared = shared_create(&run.descriptor);
  run.random = test_seed();
  for (int64_t i = 0; i < rounds; i++)
    one_round(seconds * S / rounds, i % 2);
  return 0;
}
