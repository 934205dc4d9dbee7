/* SPDX-License-Identifier: MIT
 * mempool SIZE ROUNDS: peer of pool-dpdk: gets an object of SIZE bytes from an rte_mempool through
 * the lcore's cache and puts it back. Prints nanoseconds. */
#include <inttypes.h>
#include <rte_eal.h>
#include <rte_mempool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct rte_mempool *make_pool(size_t size) {
  static char words[][24] = {"mempool",        "--no-huge", "--no-pci", "--no-shconf",
                             "--no-telemetry", "-m",        "256",      "--log-level=1"};
  char *arguments[sizeof words / sizeof words[0] + 1] = {NULL};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    arguments[i] = words[i];
  if (rte_eal_init((int)(sizeof words / sizeof words[0]), arguments) < 0)
    return NULL;
  return rte_mempool_create("bench", 63, (unsigned)size, 32, 0, NULL, NULL, NULL, NULL,
                            SOCKET_ID_ANY, 0);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: mempool SIZE ROUNDS\n");
    return 2;
  }
  char *unit;
  size_t size = strtoull(argv[1], &unit, 10) << (*unit == 'M' ? 20 : *unit == 'K' ? 10 : 0);
  uint64_t rounds = strtoull(argv[2], NULL, 10);
  struct rte_mempool *pool = make_pool(size);
  if (!pool) {
    fprintf(stderr, "mempool: EAL or its pool cannot be had\n");
    return 1;
  }
  int64_t began = 0;
  for (uint64_t i = 0; i < rounds + 1000; i++) {
    void *volatile object;
    void *got;
    if (i == 1000)
      began = now_ns();
    if (rte_mempool_get(pool, &got) != 0)
      return 1;
    object = got;
    rte_mempool_put(pool, object);
  }
  printf("%.2f\n", (double)(now_ns() - began) / (double)rounds);
  return 0;
}
