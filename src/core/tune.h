/* SPDX-License-Identifier: MIT
 * Chooses the fastest of a few variants by measurement: the slice sizes of copies and transfers
 * that go through bounce buffers. Host memory over tcp, rdma and map uses one fixed size. Any
 * thread may read and record; of two concurrent records one may be lost.
 *
 * Against slices of 1 MiB, lone writes over tcp between emulated devices of 1 GB/s are 1.6 times as
 * fast at 1 MiB, 1.4 times at 512 KiB, and from 4 MiB on the same within noise, as are devices
 * without a limit (HAUL_SIM_BANDWIDTH=1000000000 bench/transfer tcp 1M 1 0.4 write sim:0). */
#ifndef HAUL_CORE_TUNE_H
#define HAUL_CORE_TUNE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A running estimate. It starts as the minimum of the first four samples, as the first ones include
 * set-up. A later sample, clamped to half and twice the estimate, moves it by an eighth of the
 * difference. So outliers hardly count, and a change shows after dozens of samples. */
struct measure {
  _Atomic uint32_t value; /* 0: no sample yet */
  _Atomic uint32_t count; /* up to 4 */
};

#define MEASURE_FIRST 4u

void measure_record(struct measure *measure, uint32_t value);

static inline uint32_t measure_value(const struct measure *measure) {
  return atomic_load_explicit(&measure->value, memory_order_relaxed);
}

/* Have four samples been recorded? */
static inline bool measure_known(const struct measure *measure) {
  return atomic_load_explicit(&measure->count, memory_order_relaxed) >= MEASURE_FIRST;
}

/* Drops all samples. */
static inline void measure_reset(struct measure *measure) {
  atomic_store_explicit(&measure->count, 0, memory_order_relaxed);
  atomic_store_explicit(&measure->value, 0, memory_order_relaxed);
}

#define TUNE_WAYS 4u

/* Zeroed: no samples. */
struct tune {
  struct measure ways[TUNE_WAYS]; /* picoseconds a byte */
  _Atomic uint32_t turns;
};

/* The fastest variant. Variant 0 is the default: another must be an eighth faster, or noise would
 * decide. */
unsigned tune_best(const struct tune *tune);
/* The variant to use and record next: each four times, then the fastest. Every 64th time it is
 * another, as the fastest may change. */
unsigned tune_next(struct tune *tune);
void tune_record(struct tune *tune, unsigned way, uint64_t bytes, int64_t nanoseconds);

#endif
