/* SPDX-License-Identifier: MIT
 * Simple peers; print GB/s and CPU seconds a GB.
 *   plain memcpy SIZE SECONDS
 *       one process, two buffers of SIZE bytes
 *   plain sendrecv SIZE SECONDS
 *       send and recv over loopback, 1 MiB per call, buffers of SIZE bytes
 *   plain sockets SIZE IN_FLIGHT COUNT SECONDS
 *       a stand-in for NCCL's socket transport: messages of SIZE bytes between IN_FLIGHT buffers
 *       a side, each after its size, in parts of 64 KiB or more on COUNT connections with a thread
 *       each
 *   plain read SIZE FILE SECONDS
 *       pread of SIZE bytes a call, again and again through the file
 */
#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL (1u << 20)

static char *buffer(uint64_t size, int value) {
  char *bytes = malloc(size);
  need(bytes != NULL, "memory");
  memset(bytes, value, size);
  return bytes;
}

static void by_memcpy(uint64_t size, double seconds) {
  char *to = buffer(size, 1), *from = buffer(size, 2);
  void *(*volatile copy)(void *, const void *, size_t) = memcpy;
  uint64_t moved = 0;
  copy(to, from, size);
  struct meter meter = meter_begin(0);
  int64_t end = meter.began + (int64_t)(seconds * 1e9);
  while (now_ns() < end) {
    copy(to, from, size);
    moved += size;
  }
  meter_end(&meter, moved);
}

static void by_read(uint64_t size, const char *file, double seconds) {
  char *to = buffer(size, 1);
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  need(fd >= 0, file);
  uint64_t moved = 0, at = 0;
  struct meter meter = meter_begin(0);
  int64_t end = meter.began + (int64_t)(seconds * 1e9);
  while (now_ns() < end) {
    ssize_t got = pread(fd, to, size, (off_t)at);
    need(got >= 0 && (got > 0 || at > 0), file);
    at = got ? at + (uint64_t)got : 0;
    moved += (uint64_t)got;
  }
  meter_end(&meter, moved);
}

static void receive(int fd, char *to, uint64_t size) {
  for (uint64_t at = 0;; at %= size) {
    ssize_t got = recv(fd, to + at, size - at < CALL ? size - at : CALL, 0);
    if (got <= 0)
      _exit(0);
    at += (uint64_t)got;
  }
}

static void by_sendrecv(uint64_t size, double seconds) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
  need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0,
       "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    receive(accept(listener, NULL, NULL), buffer(size, 1), size);
  }
  need(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
  char *from = buffer(size, 2);
  uint64_t moved = 0;
  struct meter meter;
  int64_t warm = now_ns() + 200000000, end = INT64_MAX;
  for (uint64_t at = 0; now_ns() < end; at %= size) {
    ssize_t put = send(fd, from + at, size - at < CALL ? size - at : CALL, MSG_NOSIGNAL);
    need(put > 0, "send");
    at += (uint64_t)put;
    moved += (uint64_t)put;
    if (end == INT64_MAX && now_ns() > warm) {
      meter = meter_begin(child);
      moved = 0;
      end = meter.began + (int64_t)(seconds * 1e9);
    }
  }
  meter_end(&meter, moved);
  end_child(child);
}

/* A message's parts go to the sockets in turn; a socket's thread moves its part of each. */
#define SOCKETS 16
#define PART    (64u << 10)

static struct {
  uint64_t part;
  unsigned in_flight;
  int fds[SOCKETS][2];
  _Atomic uint64_t moved;
} sockets;

static void *send_parts(void *argument) {
  const int *fds = argument;
  const uint64_t size = sockets.part;
  char *from = buffer(size * sockets.in_flight, 2);
  ssize_t put = 1;
  for (unsigned i = 0; put > 0; i = (i + 1) % sockets.in_flight) {
    need(fds != sockets.fds[0] || send(fds[0], &size, sizeof size, 0) == sizeof size, "send");
    for (uint64_t at = 0; at < size && put > 0; at += (uint64_t)put)
      put = send(fds[0], from + i * size + at, size - at, MSG_NOSIGNAL);
    sockets.moved += size;
  }
  return NULL;
}

static void *receive_parts(void *argument) {
  const int *fds = argument;
  char *to = buffer(sockets.part * sockets.in_flight, 1);
  uint64_t size;
  for (unsigned i = 0;; i = (i + 1) % sockets.in_flight) {
    if (fds == sockets.fds[0] && recv(fds[1], &size, sizeof size, MSG_WAITALL) != sizeof size)
      _exit(0);
    for (uint64_t at = 0; at < sockets.part;) {
      ssize_t got = recv(fds[1], to + i * sockets.part + at, sockets.part - at, 0);
      if (got <= 0)
        _exit(0);
      at += (uint64_t)got;
    }
  }
}

static void connect_pair(int fds[2]) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  const int on = 1;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  fds[0] = socket(AF_INET, SOCK_STREAM, 0);
  need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0,
       "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  need(connect(fds[0], (struct sockaddr *)&address, sizeof address) == 0, "connect");
  fds[1] = accept(listener, NULL, NULL);
  setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  close(listener);
}

static void start_threads(void *(*run)(void *), unsigned count) {
  pthread_t thread;
  for (unsigned i = 0; i < count; i++)
    need(pthread_create(&thread, NULL, run, sockets.fds[i]) == 0, "a thread");
}

static void by_sockets(uint64_t size, unsigned in_flight, unsigned most, double seconds) {
  unsigned count = size / PART < most ? (unsigned)(size / PART) : most;
  count = count > SOCKETS ? SOCKETS : count > 0 ? count : 1;
  sockets.part = size / count;
  sockets.in_flight = in_flight;
  for (unsigned i = 0; i < count; i++)
    connect_pair(sockets.fds[i]);
  pid_t child = fork();
  if (child == 0)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  start_threads(child == 0 ? receive_parts : send_parts, count);
  usleep(child == 0 ? UINT32_MAX : 200000);
  struct meter meter = meter_begin(child);
  uint64_t before = sockets.moved;
  usleep((useconds_t)(seconds * 1e6));
  meter_end(&meter, sockets.moved - before);
  end_child(child);
  _exit(fflush(stdout) ? 1 : 0); /* with sends in progress */
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: plain memcpy|sendrecv SIZE SECONDS, plain read SIZE FILE SECONDS, "
                    "plain sockets SIZE IN_FLIGHT COUNT SECONDS\n");
    return 2;
  }
  if (strcmp(argv[1], "memcpy") == 0)
    by_memcpy(parse_size(argv[2]), atof(argv[3]));
  else if (strcmp(argv[1], "read") == 0 && argc > 4)
    by_read(parse_size(argv[2]), argv[3], atof(argv[4]));
  else if (strcmp(argv[1], "sockets") == 0 && argc > 5)
    by_sockets(parse_size(argv[2]), (unsigned)atoi(argv[3]), (unsigned)atoi(argv[4]),
               atof(argv[5]));
  else
    by_sendrecv(parse_size(argv[2]), atof(argv[3]));
  return 0;
}
