/* SPDX-License-Identifier: MIT
 * A store with a device tier in a process that runs kernels on the GPU. The emulated driver lets
 * calls that free or unpin memory wait for them, as real ones do. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doubles/cuda/door.h"
#include "services/rig/cache.h"
#include "support/gpu.h"
#include "support/owner.h"

#define KIB    ((uint64_t)1 << 10)
#define MIB    ((uint64_t)1 << 20)
#define IDLE_S 10 /* after which the thread for a client's puts ends */

static struct cache_here t;

static int set_up(void **state) {
  (void)state;
  cache_here_begin(&t, MIB, &(struct haul_place){HAUL_CUDA, 0});
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  cache_here_end(&t);
  return 0;
}

/* Other requests do not wait until the thread for the puts has unpinned its memory, nor does the
 * client's next put. */
static void an_idle_client_ends_while_a_kernel_runs(void **state) {
  (void)state;
  struct cuda_double *gpu = gpu_double();
  memset(t.client.bytes, 7, 5 * KIB);
  assert_works(cache_put(&t.client, "key", 0, 5 * KIB, 0));
  gpu->kernel = 1;
  haul_deadline ended = haul_deadline_in((IDLE_S + 2) * S);
  while (haul_deadline_in(0) < ended) {
    int code = cache_pin(&t.client, "key", 5);
    if (code)
      gpu->kernel = 0;
    assert_works(code);
    usleep(100000);
  }
  int code = cache_put(&t.client, "next", 0, 5 * KIB, 0);
  gpu->kernel = 0;
  assert_works(code);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(an_idle_client_ends_while_a_kernel_runs, set_up, tear_down),
  };
  if (!gpu_is_there())
    return 77;
  if (!gpu_double()) {
    printf("skipped all: the driver is real, and does not tell when it waits\n");
    return 77;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
