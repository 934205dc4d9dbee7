/* SPDX-License-Identifier: MIT
 * Fixture of the client's tests: mock daemon, a file, a buffer. */
#ifndef HAUL_TESTS_USRBIO_WORLD_H
#define HAUL_TESTS_USRBIO_WORLD_H

#include "support/check.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "usrbio/daemon.h"

#define WORLD_FILE   (1 << 20) /* bytes: the pattern of seed 1 */
#define WORLD_BUFFER (1 << 20)
#define AGES         60 /* seconds: bound of every wait */

struct world {
  const char *mount;
  char path[PATH_MAX];
  int file; /* registered, for both directions */
  struct hf3fs_iov iov;
};

/* Setup and teardown of each test for cmocka; *state is the world. */
int world_make(void **state);
int world_end(void **state);

/* A CLOCK_REALTIME time, in milliseconds from now. */
struct timespec world_in(long milliseconds);
/* Waits for exactly `count` completions. */
void world_wait(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int count);
/* Whether a file exists. */
bool world_has(const char *path);
/* The next pseudorandom number of a seed. */
uint64_t world_random(uint64_t *seed);

#define world_test(test) cmocka_unit_test_setup_teardown(test, world_make, world_end)

#endif
