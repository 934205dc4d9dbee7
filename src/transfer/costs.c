/* SPDX-License-Identifier: MIT */
#include "transfer/costs.h"

#include <string.h>

#include "core/alloc.h"

#define FORGET_MS    60000u
#define FORGET_TIMES 1024
#define KEEP         (7.0 / 8) /* what another costs less than takes the place */

/* ---- Estimates ---- */

/* In the middle of what counts as this size. */
static uint64_t bytes_of(unsigned size) {
  return size ? UINT64_C(3) << (size - 1) : 1;
}

enum send_mode lines_mode(const struct line lines[SEND_MODES], uint64_t bytes) {
  for (unsigned i = 0; i < SEND_MODES; i++)
    if (lines[i].most && bytes <= lines[i].most)
      return (enum send_mode)i;
  return SEND_BUFFERED; /* not reached where the path is open */
}

double lines_ns(const struct line lines[SEND_MODES], uint64_t bytes) {
  const struct line *line = &lines[lines_mode(lines, bytes)];
  return line->latency_ns + line->ns_per_byte * (double)bytes;
}

/* ---- Corrections ---- */

static const struct took *took_near(const struct cost *cost, unsigned size) {
  for (unsigned away = 0; away <= COST_REACH; away++) {
    if (size + away < COST_SIZES && measure_known(&cost->took[size + away].ratio))
      return &cost->took[size + away];
    if (size >= away && measure_known(&cost->took[size - away].ratio))
      return &cost->took[size - away];
  }
  return NULL;
}

double costs_correction(const struct costs *costs, size_t path, uint64_t bytes, bool *known) {
  const struct cost *cost = &costs->paths[path];
  unsigned size = costs_size(bytes);
  const struct took *took = took_near(cost, size);
  if (known)
    *known = took == &cost->took[size];
  uint32_t ratio = took ? measure_value(&took->ratio) : 0; /* 0: forgotten just now */
  return ratio ? (double)ratio / COST_UNIT : 1;
}

static double cost_of(const struct costs *costs, size_t path, unsigned size) {
  uint64_t bytes = bytes_of(size);
  return lines_ns(costs->paths[path].lines, bytes) * costs_correction(costs, path, bytes, NULL);
}

static void judge(struct costs *costs, unsigned size) {
  int kept = costs_best(costs, bytes_of(size)), best = costs->straight;
  for (unsigned i = 0; i < TRANSPORTS_MAX && costs->straight < 0; i++)
    if (costs->paths[i].open &&
        (best < 0 || cost_of(costs, i, size) < cost_of(costs, (size_t)best, size)))
      best = (int)i;
  if (kept >= 0 && cost_of(costs, (size_t)best, size) >= cost_of(costs, (size_t)kept, size) * KEEP)
    best = kept;
  atomic_store_explicit(&costs->best[size], (uint8_t)(best + 1), memory_order_relaxed);
}

static void forget(struct costs *costs, unsigned size, uint32_t now_ms) {
  for (unsigned i = 0; i < TRANSPORTS_MAX; i++) {
    struct took *took = &costs->paths[i].took[size];
    if (!measure_known(&took->ratio))
      continue;
    double ms = cost_of(costs, i, size) / 1e6 * FORGET_TIMES;
    uint32_t bound = FORGET_MS + (ms < 1e9 ? (uint32_t)ms : 1000000000u);
    /* Another thread may have told a moment later than this one's now. */
    int32_t age = (int32_t)(now_ms - atomic_load_explicit(&took->told, memory_order_relaxed));
    if (age > (int32_t)bound)
      measure_reset(&took->ratio);
  }
}

void costs_tell(struct costs *costs, size_t path, uint64_t bytes, int64_t took_ns, int64_t now) {
  unsigned size = costs_size(bytes);
  struct cost *cost = &costs->paths[path];
  struct took *took = &cost->took[size];
  uint32_t now_ms = (uint32_t)(uint64_t)(now / 1000000);
  if (!cost->open || took_ns <= 0)
    return;
  /* Once a millisecond is enough. */
  if (measure_known(&took->ratio) &&
      atomic_load_explicit(&took->told, memory_order_relaxed) == now_ms)
    return;
  double ratio = (double)took_ns / lines_ns(cost->lines, bytes);
  ratio = ratio > COST_BOUND ? COST_BOUND : ratio < 1 / COST_BOUND ? 1 / COST_BOUND : ratio;
  measure_record(&took->ratio, (uint32_t)(ratio * COST_UNIT));
  atomic_store_explicit(&took->told, now_ms, memory_order_relaxed);
  unsigned first = size > COST_REACH ? size - COST_REACH : 0;
  for (unsigned i = first; i <= size + COST_REACH && i < COST_SIZES; i++) {
    forget(costs, i, now_ms);
    judge(costs, i);
  }
}

/* ---- A link's ---- */

static bool opens(const struct estimate *estimate) {
  return estimate->open && !estimate->explicit_only;
}

static struct costs *find(struct costs *from, uint64_t sort, struct haul_place there,
                          const struct estimate *estimates) {
  for (; from; from = from->next) {
    bool same =
        from->sort == sort && from->there.kind == there.kind && from->there.device == there.device;
    for (unsigned i = 0; same && i < TRANSPORTS_MAX; i++)
      same = from->paths[i].open == opens(&estimates[i]) &&
             strcmp(from->paths[i].detail, estimates[i].detail) == 0;
    if (same)
      return from;
  }
  return NULL;
}

static void fill(struct costs *costs, const struct estimate *estimates) {
  costs->straight = -1;
  for (unsigned i = 0; i < TRANSPORTS_MAX; i++) {
    const struct transport *transport = transport_at(i);
    struct cost *cost = &costs->paths[i];
    cost->open = transport && opens(&estimates[i]);
    memcpy(cost->detail, estimates[i].detail, sizeof cost->detail);
    memcpy(cost->lines, estimates[i].lines, sizeof cost->lines);
    if (cost->open && transport->within_host && estimates[i].zero_copy)
      costs->straight = (int)i;
  }
  for (unsigned i = 0; i < COST_SIZES; i++)
    judge(costs, i);
}

struct costs *costs_of(struct link *link, uint64_t sort, struct haul_place there,
                       const struct estimate estimates[TRANSPORTS_MAX]) {
  struct costs *first = atomic_load_explicit(&link->costs, memory_order_acquire);
  struct costs *found = find(first, sort, there, estimates);
  if (found)
    return found;
  struct costs *made =
      atomic_fetch_add(&link->costs_count, 1) < COSTS_MAX ? alloc_zero(1, sizeof *made) : NULL;
  if (!made) {
    atomic_fetch_sub(&link->costs_count, 1);
    return NULL;
  }
  made->sort = sort;
  made->there = there;
  fill(made, estimates);
  do {
    found = find(first, sort, there, estimates);
    made->next = first;
  } while (!found && !atomic_compare_exchange_weak(&link->costs, &first, made));
  if (found) {
    atomic_fetch_sub(&link->costs_count, 1);
    alloc_free(made);
  }
  return found ? found : made;
}

void costs_free(struct link *link) {
  for (struct costs *costs = atomic_load(&link->costs), *next; costs; costs = next) {
    next = costs->next;
    alloc_free(costs);
  }
}
