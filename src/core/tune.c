/* SPDX-License-Identifier: MIT */
#include "core/tune.h"

static uint32_t load(const _Atomic uint32_t *word) {
  return atomic_load_explicit(word, memory_order_relaxed);
}

static void store(_Atomic uint32_t *word, uint32_t value) {
  atomic_store_explicit(word, value, memory_order_relaxed);
}

static uint32_t within(uint64_t value, uint64_t least, uint64_t most) {
  return (uint32_t)(value < least ? least : value > most ? most : value);
}

void measure_record(struct measure *measure, uint32_t value) {
  uint32_t old = load(&measure->value), count = load(&measure->count);
  if (value == 0)
    value = 1;
  if (count < MEASURE_FIRST || old == 0) {
    store(&measure->value, old && old < value ? old : value);
    store(&measure->count, count < MEASURE_FIRST ? count + 1 : count);
    return;
  }
  int64_t bounded = within(value, old / 2, (uint64_t)old * 2 < UINT32_MAX ? old * 2 : UINT32_MAX);
  int64_t step = (bounded - old) / 8;
  if (step == 0) /* small values must move too */
    step = bounded > old ? 1 : bounded < old ? -1 : 0;
  store(&measure->value, within((uint64_t)(old + step), 1, UINT32_MAX));
}

unsigned tune_best(const struct tune *tune) {
  uint32_t least = load(&tune->ways[0].value);
  unsigned best = 0;
  least -= least / 8;
  for (unsigned i = 1; i < TUNE_WAYS; i++) {
    uint32_t here = load(&tune->ways[i].value);
    if (here == 0 || here >= least)
      continue;
    least = here;
    best = i;
  }
  return best;
}

unsigned tune_next(struct tune *tune) {
  uint32_t turn = atomic_fetch_add_explicit(&tune->turns, 1, memory_order_relaxed);
  unsigned least = 0;
  for (unsigned i = 1; i < TUNE_WAYS; i++)
    if (load(&tune->ways[i].count) < load(&tune->ways[least].count))
      least = i;
  if (load(&tune->ways[least].count) < MEASURE_FIRST)
    return least;
  return turn % 64 == 0 ? turn / 64 % TUNE_WAYS : tune_best(tune);
}

void tune_record(struct tune *tune, unsigned way, uint64_t bytes, int64_t nanoseconds) {
  if (way >= TUNE_WAYS || bytes == 0 || nanoseconds <= 0)
    return;
  double picoseconds = (double)nanoseconds * 1000 / (double)bytes;
  measure_record(&tune->ways[way], picoseconds < UINT32_MAX ? (uint32_t)picoseconds : UINT32_MAX);
}
