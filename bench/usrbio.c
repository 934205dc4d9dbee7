/* SPDX-License-Identifier: MIT
 * usrbio FILE BLOCK DEPTH BYTES read|randread|write|randwrite [device]: BYTES of the file in
 * blocks, through a USRBIO ring of DEPTH entries. `device`: the buffer is memory of the emulated
 * accelerator. FILE is under a haul mount of the process HAUL_BENCH_DAEMON. Prints GB/s, and CPU
 * seconds a GB of both processes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "hf3fs_usrbio_gdr.h"

static struct {
  const char *path, *how;
  uint64_t block, bytes, blocks;
  int depth, fd;
  unsigned seed;
  bool device;
} t;

static bool writes(void) {
  return strstr(t.how, "write") != NULL;
}

static uint64_t next_offset(uint64_t number) {
  uint64_t block = number;
  if (strncmp(t.how, "rand", 4) == 0)
    block = (uint64_t)rand_r(&t.seed) << 16 ^ (uint64_t)rand_r(&t.seed);
  return block % t.blocks * t.block;
}

/* Clock ticks in user and kernel mode, see proc(5). */
static double seconds_of(const char *pid) {
  char path[64], text[1024];
  unsigned long user = 0, kernel = 0;
  if (!pid)
    return 0;
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  FILE *file = fopen(path, "r");
  need(file && fgets(text, sizeof text, file), path);
  fclose(file);
  const char *rest = strrchr(text, ')');
  need(rest && sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                      &kernel) == 2,
       path);
  return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double seconds_of_all(void) {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6 +
         seconds_of(getenv("HAUL_BENCH_DAEMON"));
}

static void works(int code, const char *what) {
  errno = code < 0 ? -code : code;
  need(code == 0, what);
}

struct run {
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  struct hf3fs_cqe *done;
  uint8_t **idle; /* blocks of the buffer */
  int idle_count;
  uint64_t asked, ended, all; /* blocks */
};

static void set_up(struct run *run) {
  char mount[256];
  need(hf3fs_extract_mount_point(mount, sizeof mount, t.path) > 0, "no mount of haul's");
  size_t size = t.block * (uint64_t)t.depth;
  works(t.device ? hf3fs_iovcreate_gpu(&run->iov, mount, size, 0, 0)
                 : hf3fs_iovcreate(&run->iov, mount, size, 0, -1),
        "iovcreate");
  works(hf3fs_iorcreate4(&run->ior, mount, t.depth, !writes(), 0, 0, -1, 0), "iorcreate4");
  need(hf3fs_reg_fd(t.fd, 0) <= 0, "reg_fd");
  if (!t.device)
    memset(run->iov.base, 1, run->iov.size);
  run->done = calloc((size_t)t.depth, sizeof *run->done);
  run->idle = calloc((size_t)t.depth, sizeof *run->idle);
  need(run->done && run->idle, "memory");
  while (run->idle_count < t.depth) {
    run->idle[run->idle_count] = run->iov.base + t.block * (uint64_t)run->idle_count;
    run->idle_count++;
  }
  run->all = t.bytes / t.block;
}

static void submit(struct run *run) {
  int before = run->idle_count;
  while (run->idle_count > 0 && run->asked < run->all) {
    uint8_t *at = run->idle[--run->idle_count];
    int slot = hf3fs_prep_io(&run->ior, &run->iov, run->ior.for_read, at, t.fd,
                             next_offset(run->asked++), t.block, at);
    if (slot < 0)
      works(slot, "prep_io");
  }
  if (run->idle_count < before)
    works(hf3fs_submit_ios(&run->ior), "submit_ios");
}

static void reap(struct run *run) {
  int got = hf3fs_wait_for_ios(&run->ior, run->done, t.depth, 1, NULL);
  need(got > 0, "wait_for_ios");
  for (int i = 0; i < got; i++) {
    need(run->done[i].result == (int64_t)t.block, "a block is short, or failed");
    run->idle[run->idle_count++] = (uint8_t *)(uintptr_t)run->done[i].userdata;
  }
  run->ended += (uint64_t)got;
}

static void by_ring(struct run *run) {
  while (run->ended < run->all) {
    submit(run);
    reap(run);
  }
}

int main(int argc, char **argv) {
  static struct run run;
  struct stat stat;
  need(argc == 6 || argc == 7, "usage: usrbio FILE BLOCK DEPTH BYTES read|… [device]");
  t.device = argc == 7;
  setenv("HAUL_USRBIO_DEVICES", "sim", 1);
  t.path = argv[1];
  t.block = parse_size(argv[2]);
  t.depth = atoi(argv[3]);
  t.bytes = parse_size(argv[4]);
  t.how = argv[5];
  t.fd = open(t.path, writes() ? O_RDWR : O_RDONLY);
  need(t.fd >= 0 && fstat(t.fd, &stat) == 0, t.path);
  t.blocks = (uint64_t)stat.st_size / t.block;
  need(t.blocks > 0 && t.depth > 0, "a block and a depth that fit the file");
  set_up(&run);
  double used = seconds_of_all();
  int64_t began = now_ns();
  by_ring(&run);
  int64_t took = now_ns() - began;
  used = seconds_of_all() - used;
  printf("%.4f %.3f\n", (double)t.bytes / (double)took, used / (double)t.bytes * 1e9);
  hf3fs_iordestroy(&run.ior);
  hf3fs_iovdestroy(&run.iov);
  return 0;
}
