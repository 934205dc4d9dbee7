/* SPDX-License-Identifier: MIT
 * Simple peers; print GB/s and CPU seconds a GB.
 *   plain memcpy SIZE SECONDS     one process, two buffers of SIZE bytes
 *   plain sendrecv SIZE SECONDS   send and recv over loopback, 1 MiB per call, buffers of SIZE
 * bytes plain read SIZE FILE SECONDS  pread of SIZE bytes a call, again and again through the file
 */
#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
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

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: plain memcpy|sendrecv SIZE SECONDS, plain read SIZE FILE SECONDS\n");
    return 2;
  }
  if (strcmp(argv[1], "memcpy") == 0)
    by_memcpy(parse_size(argv[2]), atof(argv[3]));
  else if (strcmp(argv[1], "read") == 0 && argc > 4)
    by_read(parse_size(argv[2]), argv[3], atof(argv[4]));
  else
    by_sendrecv(parse_size(argv[2]), atof(argv[3]));
  return 0;
}
