/* SPDX-License-Identifier: MIT
 * What the tests of the client begin with: the daemon's double, a file, a buffer. */
#ifndef HAUL_TESTS_USRBIO_WORLD_H
#define HAUL_TESTS_USRBIO_WORLD_H

#include "support/check.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "usrbio/daemon.h"

#define WORLD_FILE   (1 << 20) /* bytes, a pattern of the seed 1 */
#define WORLD_BUFFER (1 << 20)
#define AGES         60 /* seconds: longer than anything here may take */

struct world {
  const char *mount;
  char path[PATH_MAX];
  int file; /* registered, for both directions */
  struct hf3fs_iov iov;
};

/* For cmocka's set-up and tear-down of each test; *state is the world. */
int world_make(void **state);
int world_end(void **state);

/* So many milliseconds from now on CLOCK_REALTIME; negative: before now. */
struct timespec world_in(long milliseconds);
/* Waits for exactly so many. */
void world_wait(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int count);
/* Whether a file is there. */
bool world_has(const char *path);
/* The next of a series of numbers that a seed begins. */
uint64_t world_random(uint64_t *seed);

#define world_test(test) cmocka_unit_test_setup_teardown(test, world_make, world_end)

#endif
