/* SPDX-License-Identifier: MIT
 * ncclnet BYTES IN_FLIGHT SECONDS: messages between two processes through the NCCL network plugin
 * in HAUL_NCCL, called like NCCL does. Prints GB/s at the receiver. */
#include "common.h"

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define MOST    32
#define WARM_NS INT64_C(300000000)

static struct {
  size_t size;
  unsigned in_flight;
  char *bytes;
  void *comm, *memory, *requests[MOST];
} b;

static void want(int result, const char *what) {
  if (result != NCCL_SUCCESS) {
    fprintf(stderr, "ncclnet: %s: %d\n", what, result);
    exit(1);
  }
}

static void open_memory(void) {
  size_t whole = b.size * b.in_flight;
  b.bytes = aligned_alloc(4096, (whole + 4095) & ~(size_t)4095);
  need(b.bytes != NULL, "memory");
  memset(b.bytes, 1, whole);
  want(net_register(b.comm, b.bytes, whole, NCCL_POINTER_HOST, &b.memory), "registering");
}

/* Tests all requests and reposts completed ones; returns the received bytes. */
static uint64_t turn(int sends) {
  uint64_t moved = 0;
  bool idle = true;
  for (unsigned i = 0; i < b.in_flight; i++) {
    void *data = b.bytes + i * b.size;
    int done = 0, got = 0, tag = 1;
    if (b.requests[i]) {
      want(net_test(b.requests[i], &done, &got), "a request");
      if (!done)
        continue;
      b.requests[i] = NULL;
      moved += (uint64_t)got;
    }
    want(sends ? net_send(b.comm, data, b.size, tag, b.memory, &b.requests[i])
               : net_receive(b.comm, 1, &data, &b.size, &tag, &b.memory, &b.requests[i]),
         sends ? "sending" : "receiving");
    idle &= b.requests[i] == NULL;
  }
  if (idle) /* like NCCL's proxy threads */
    sched_yield();
  return moved;
}

static _Noreturn void send_for_ever(char *handle, const _Atomic int *ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (!*ready)
    usleep(1000);
  want(harness_open(12), "the plugin");
  while (!b.comm)
    want(net_connect(0, handle, &b.comm), "connecting");
  open_memory();
  for (;;)
    turn(1);
}

int main(int argc, char **argv) {
  struct shared {
    char handle[NCCL_HANDLE_SIZE];
    _Atomic int ready;
  } *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void *listener;
  if (argc < 4) {
    fprintf(stderr, "usage: ncclnet BYTES IN_FLIGHT SECONDS\n");
    return 2;
  }
  need(shared != MAP_FAILED, "memory");
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  b.size = parse_size(argv[1]);
  b.in_flight = (unsigned)atoi(argv[2]);
  need(b.in_flight > 0 && b.in_flight <= MOST, "IN_FLIGHT is 1 to 32");
  pid_t child = fork();
  if (child == 0)
    send_for_ever(shared->handle, &shared->ready);
  want(harness_open(12), "the plugin");
  want(net_listen(0, shared->handle, &listener), "listening");
  shared->ready = 1;
  while (!b.comm)
    want(net_accept(listener, &b.comm), "accepting");
  open_memory();
  int64_t warm = now_ns() + WARM_NS;
  while (now_ns() < warm)
    turn(0);
  struct meter meter = meter_begin(child);
  int64_t end = meter.began + (int64_t)(atof(argv[3]) * 1e9);
  uint64_t moved = 0;
  do
    moved += turn(0);
  while (now_ns() < end);
  meter_end(&meter, moved);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  _exit(fflush(stdout) ? 1 : 0); /* with requests in flight */
}
