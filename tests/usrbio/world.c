/* SPDX-License-Identifier: MIT */
#include "usrbio/world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void fill(int file) {
  void *bytes = malloc(WORLD_FILE);
  assert_non_null(bytes);
  pattern_fill(bytes, WORLD_FILE, 1);
  assert_int_equal(pwrite(file, bytes, WORLD_FILE, 0), WORLD_FILE);
  free(bytes);
}

int world_make(void **state) {
  struct world *world = calloc(1, sizeof *world);
  assert_non_null(world);
  world->mount = daemon_start(NULL);
  snprintf(world->path, sizeof world->path, "%s/file", world->mount);
  world->file = open(world->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_true(world->file >= 0);
  fill(world->file);
  assert_true(hf3fs_reg_fd(world->file, 0) <= 0);
  assert_int_equal(hf3fs_iovcreate(&world->iov, world->mount, WORLD_BUFFER, 0, -1), 0);
  *state = world;
  return 0;
}

int world_end(void **state) {
  struct world *world = *state;
  hf3fs_iovdestroy(&world->iov);
  hf3fs_dereg_fd(world->file);
  close(world->file);
  daemon_stop();
  free(world);
  return 0;
}

struct timespec world_in(long milliseconds) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  int64_t then = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec + milliseconds * 1000000ll;
  return (struct timespec){.tv_sec = then / 1000000000, .tv_nsec = then % 1000000000};
}

void world_wait(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int count) {
  struct timespec deadline = world_in(AGES * 1000);
  assert_int_equal(hf3fs_wait_for_ios(ior, cqes, count, count, &deadline), count);
}

bool world_has(const char *path) {
  struct stat found;
  return lstat(path, &found) == 0;
}

uint64_t world_random(uint64_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return *seed;
}
