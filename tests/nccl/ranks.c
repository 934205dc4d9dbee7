/* SPDX-License-Identifier: MIT */
#include "ranks.h"

#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE INT64_C(60000000000)

int64_t rank_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

_Noreturn void rank_fail(const struct rank *rank, const char *format, ...) {
  va_list arguments;
  fprintf(stderr, "rank %u: ", rank->number);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  _exit(1);
}

bool ranks_run(unsigned ranks, int version, void (*work)(struct rank *rank)) {
  struct world *world =
      mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t pids[RANKS_MAX];
  bool good = world != MAP_FAILED;
  world->ranks = ranks;
  for (unsigned i = 0; i < ranks && good; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      struct rank rank = {.world = world, .number = i};
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      rank_ok(&rank, harness_open(version));
      work(&rank);
      _exit(0);
    }
  }
  for (unsigned i = 0; i < ranks && good; i++) {
    int status;
    bool ended = waitpid(pids[i], &status, 0) == pids[i];
    good &= ended && (status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  }
  munmap(world, sizeof *world);
  return good;
}

static void check_time(const struct rank *rank, int64_t until, const char *what) {
  if (rank_now() > until)
    rank_fail(rank, "timeout: %s", what);
  sched_yield();
}

void rank_barrier(struct rank *rank) {
  int64_t until = rank_now() + PATIENCE;
  _Atomic unsigned *arrived = &rank->world->arrived[rank->barriers++];
  rank_need(rank, rank->barriers < 64);
  atomic_fetch_add(arrived, 1);
  while (atomic_load(arrived) < rank->world->ranks)
    check_time(rank, until, "a barrier");
}

/* Makes each call once, like a proxy thread; true if all are connected. */
static bool connect_some(struct rank *rank, const bool peers[RANKS_MAX]) {
  bool all = true;
  for (unsigned i = 0; i < rank->world->ranks; i++) {
    if (!peers[i])
      continue;
    if (!rank->to[i])
      rank_ok(rank, net_connect(0, rank->world->handles[i][rank->number], &rank->to[i]));
    if (!rank->from[i])
      rank_ok(rank, net_accept(rank->listeners[i], &rank->from[i]));
    all &= rank->to[i] && rank->from[i];
  }
  return all;
}

void rank_connect(struct rank *rank, const bool peers[RANKS_MAX]) {
  int64_t until = rank_now() + PATIENCE;
  for (unsigned i = 0; i < rank->world->ranks; i++)
    if (peers[i])
      rank_ok(rank, net_listen(0, rank->world->handles[rank->number][i], &rank->listeners[i]));
  rank_barrier(rank);
  while (!connect_some(rank, peers))
    check_time(rank, until, "connecting");
}

void rank_disconnect(struct rank *rank) {
  rank_barrier(rank); /* no data is in flight any more */
  for (unsigned i = 0; i < rank->world->ranks; i++) {
    rank_ok(rank, net_close_send(rank->to[i]));
    rank_ok(rank, net_close_receive(rank->from[i]));
    rank_ok(rank, net_close_listen(rank->listeners[i]));
  }
  rank_ok(rank, harness_close());
}

void rank_wait(const struct rank *rank, void *request, int *sizes) {
  int64_t until = rank_now() + PATIENCE;
  int done = 0;
  for (;;) {
    int result = net_test(request, &done, sizes);
    if (result != NCCL_SUCCESS)
      rank_fail(rank, "a request failed with %d", result);
    if (done)
      return;
    check_time(rank, until, "a request");
  }
}
