/* SPDX-License-Identifier: MIT
 * Which of a few ways moves bytes fastest, by what the moves took. Any thread may ask and tell;
 * when two tell at once, one may be lost. */
#ifndef HAUL_CORE_TUNE_H
#define HAUL_CORE_TUNE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A figure that is measured again and again. The first four count as the least of them: a first
 * move also pays for what is set up for all. A later one moves the figure by an eighth of the
 * difference, of twice or half the figure at most: one that is far off hardly counts, and what has
 * changed is known after some dozens. */
struct measure {
  _Atomic uint32_t value; /* 0: nothing yet */
  _Atomic uint32_t count; /* up to 4 */
};

#define MEASURE_FIRST 4u

void measure_record(struct measure *measure, uint32_t value);

static inline uint32_t measure_value(const struct measure *measure) {
  return atomic_load_explicit(&measure->value, memory_order_relaxed);
}

/* The first four were told. */
static inline bool measure_known(const struct measure *measure) {
  return atomic_load_explicit(&measure->count, memory_order_relaxed) >= MEASURE_FIRST;
}

/* As if nothing was ever told. */
static inline void measure_reset(struct measure *measure) {
  atomic_store_explicit(&measure->count, 0, memory_order_relaxed);
  atomic_store_explicit(&measure->value, 0, memory_order_relaxed);
}

#define TUNE_WAYS 4u

/* Zeroed: nothing is known. */
struct tune {
  struct measure ways[TUNE_WAYS]; /* picoseconds a byte */
  _Atomic uint32_t turns;
};

/* The fastest that is known. The first stands against what is not an eighth faster: noise is more
 * than that often enough, and the first is what the code would do without. */
unsigned tune_best(const struct tune *tune);
/* What to do next, and to tell of: each way four times, from then on the fastest, and every 64th
 * time another, as what is fastest changes. */
unsigned tune_next(struct tune *tune);
void tune_record(struct tune *tune, unsigned way, uint64_t bytes, int64_t nanoseconds);

#endif
