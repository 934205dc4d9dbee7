/* SPDX-License-Identifier: MIT
 * Nodes that write to and read from each other, while they are killed, stopped and started again,
 * their connections cut in the middle of frames, memory and descriptors refused to them, and their
 * clocks strained. Every byte is checked against a model: nothing that was reported complete may be
 * lost or torn, every operation ends by its deadline, and when all have left nothing is held.
 *
 *   chaos [SECONDS]      HAUL_TEST_SEED=… repeats what is drawn
 *
 * Every other round goes over TLS. Which thread gets how far is the kernel's to say, so a seed
 * repeats the harm that is done and not what it meets. */
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

#define MORTAL  2u /* this node, and those behind it, are killed */
#define ROUND_S 40
/* Of a phase: more than the nodes themselves bear. */
#define PATIENCE (SANITIZED ? 600 * S : 120 * S)

static struct {
  struct board *board;
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

static void rest(int64_t nanoseconds) {
  struct timespec time = {nanoseconds / S, nanoseconds % S};
  nanosleep(&time, NULL);
}

static uint64_t draw(uint64_t below) {
  return next_random(&run.random) % below;
}

/* ---- Processes ---- */

static void start(unsigned i) {
  struct seat *seat = &run.board->seats[i];
  struct brief brief = {
      .seat = i, .life = ++seat->lives, .seed = next_random(&run.random), .board = run.descriptor};
  run.nodes[i].pid = child_start(NODE_MODE, &run.nodes[i].socket);
  child_send(run.nodes[i].socket, &brief, sizeof brief, -1);
}

static void end(unsigned i) {
  kill(run.nodes[i].pid, SIGKILL);
  child_end(run.nodes[i].pid, run.nodes[i].socket);
  run.nodes[i].pid = 0;
}

static _Noreturn void give_up(const char *why, unsigned i) {
  fprintf(stderr, "FAILED  node %u %s; HAUL_TEST_SEED=%llu\n", i, why,
          (unsigned long long)run.board->seed);
  for (unsigned j = 0; j < NODES; j++)
    if (run.nodes[j].pid > 0)
      end(j);
  exit(1);
}

/* None ends by itself, but with 0 and after it has left. */
static void look_after_all(void) {
  for (unsigned i = 0; i < NODES; i++) {
    int status;
    if (run.nodes[i].pid == 0 || waitpid(run.nodes[i].pid, &status, WNOHANG) == 0)
      continue;
    close(run.nodes[i].socket);
    run.nodes[i].pid = 0;
    if (WIFSIGNALED(status))
      fprintf(stderr, "it was ended by signal %d\n", WTERMSIG(status));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 ||
        atomic_load(&run.board->seats[i].phase_done) != LEAVE)
      give_up("has ended", i);
  }
}

static void kill_one(void) {
  unsigned i = MORTAL + (unsigned)draw(NODES - MORTAL);
  atomic_store(&run.board->seats[i].ready, 0);
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

static void enter(enum phase phase) {
  int64_t until = real_now() + PATIENCE;
  atomic_store(&run.board->phase, phase);
  for (unsigned i = 0; i < NODES; i++)
    while (atomic_load(&run.board->seats[i].phase_done) < (int)phase) {
      look_after_all();
      rest(5 * MS);
      if (real_now() > until)
        give_up("does not come to an end", i);
    }
}

/* ---- A round ---- */

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
      fprintf(stderr, "FAILED  HAUL has to name the command, which makes keys\n");
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
    sum += atomic_load((_Atomic uint64_t *)((char *)&run.board->seats[i].tally + offset));
  return sum;
}

#define SUM(field) sum_of(offsetof(struct tally, field))

static void tell(bool encrypted) {
  printf(
      "   %s: %llu writes, %llu reads, %llu additions, %llu messages, %.2f GB; %llu blocks looked "
      "at by their owners\n",
      encrypted ? "TLS" : "plain", SUM(writes), SUM(reads), SUM(adds), SUM(messages),
      (double)SUM(bytes) / 1e9, SUM(verified));
  printf(
      "   %llu killed, %llu stopped, %llu connections cut, memory refused %llu times, descriptors "
      "%llu times, %llu regions replaced, %llu connected\n   ended otherwise:",
      (unsigned long long)run.kills, (unsigned long long)run.stops, SUM(cuts), SUM(refusals),
      SUM(shortages), SUM(replaced), SUM(connected));
  for (int code = 1; code < 32; code++)
    if (SUM(ended[code]))
      printf(" %llu %s", SUM(ended[code]), haul_error_name(-code));
  puts("");
  fflush(stdout);
}

/* A run in which nothing was tried shows nothing. */
static void check_that_something_was(void) {
  if (SUM(writes) == 0 || SUM(reads) == 0 || SUM(adds) == 0 || SUM(messages) == 0 ||
      SUM(verified) == 0)
    give_up("and the others have done nothing", 0);
}

static void one_round(int64_t length, bool encrypted) {
  int64_t until = real_now() + length;
  make_key(encrypted);
  memset(run.board, 0, sizeof *run.board);
  run.board->seed = test_seed();
  run.kills = run.stops = 0;
  for (unsigned i = 0; i < NODES; i++)
    start(i);
  while (real_now() < until) {
    rest((int64_t)(100 + draw(500)) * MS);
    look_after_all();
    if (draw(2))
      kill_one();
    else
      stop_one();
  }
  enter(SETTLE);
  enter(VERIFY);
  enter(LEAVE);
  for (unsigned i = 0; i < NODES; i++)
    while (run.nodes[i].pid) {
      look_after_all();
      rest(5 * MS);
    }
  tell(encrypted);
  check_that_something_was();
}

int main(int count, char **arguments) {
  if (count > 1 && strcmp(arguments[1], NODE_MODE) == 0)
    return node_main();
  int64_t seconds = count > 1 ? atoll(arguments[1]) : 8;
  int64_t rounds = seconds / ROUND_S > 2 ? seconds / ROUND_S : 2;
  stuck_after((unsigned)seconds + STUCK_SECONDS);
  atexit(remove_key);
  run.board = board_make(&run.descriptor);
  run.random = test_seed();
  for (int64_t i = 0; i < rounds; i++)
    one_round(seconds * S / rounds, i % 2);
  return 0;
}
