/* SPDX-License-Identifier: MIT
 * A registration cache under test in bench regcache. */
#ifndef HAUL_BENCH_REGCACHE_H
#define HAUL_BENCH_REGCACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct touched {
  uint64_t address, length;
};

struct tested {
  /* Keeps `entries` ranges. `evicts`: more will come, of several threads. */
  void (*open)(uint64_t entries, bool evicts);
  void (*touch)(const struct touched *ranges, size_t count); /* get and put; from any thread */
  void (*close)(void);
};

extern const struct tested tested_ucx;

extern _Atomic uint64_t tested_calls; /* of the registrar */

#endif
