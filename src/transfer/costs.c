/* SPDX-License-Identifier: MIT */
#include "transfer/costs.h"

#include <string.h>

#include "core/alloc.h"
#include "core/sys.h"
#include "transfer/transfer.h"

#define FORGET_MS    60000u
#define FORGET_TIMES 1024
#define KEEP         (7.0 / 8) /* of the cost: a path below it replaces the one in use */

/* The middle of a size. */
static uint64_t bytes_of(unsigned size) {
  return size ? UINT64_C(3) << (size - 1) : 1;
}

enum send_mode lines_mode(const struct line lines[SEND_MODES], uint64_t bytes) {
  for (unsigned i = 0; i < SEND_MODES; i++)
    if (lines[i].most && bytes <= lines[i].most)
      return (enum send_mode)i;
  return SEND_BUFFERED; /* not reached for an open path */
}

double lines_ns(const struct line lines[SEND_MODES], uint64_t bytes) {
  const struct line *line = &lines[lines_mode(lines, bytes)];
  return line->latency_ns + line->ns_per_byte * (double)bytes;
}

/* The known sample of the size that is nearest; NULL: none within COST_REACH. */
static const struct sample *nearest_sample(const struct cost *cost, unsigned size) {
  for (unsigned away = 0; away <= COST_REACH; away++) {
    if (size + away < COST_SIZES && measure_known(&cost->samples[size + away].ratio))
      return &cost->samples[size + away];
    if (size >= away && measure_known(&cost->samples[size - away].ratio))
      return &cost->samples[size - away];
  }
  return NULL;
}

double costs_correction(const struct costs *costs, size_t path, uint64_t bytes, bool *known) {
  const struct cost *cost = &costs->paths[path];
  unsigned size = costs_size(bytes);
  const struct sample *sample = nearest_sample(cost, size);
  if (known)
    *known = sample == &cost->samples[size];
  uint32_t ratio = sample ? measure_value(&sample->ratio) : 0; /* 0: it expired just now */
  return ratio ? (double)ratio / COST_UNIT : 1;
}

static double cost_of(const struct costs *costs, size_t path, unsigned size) {
  uint64_t bytes = bytes_of(size);
  return lines_ns(costs->paths[path].lines, bytes) * costs_correction(costs, path, bytes, NULL);
}

static void choose_best(struct costs *costs, unsigned size) {
  int kept = costs_best(costs, bytes_of(size)), best = costs->single_copy;
  for (unsigned i = 0; i < TRANSPORTS_MAX && costs->single_copy < 0; i++)
    if (costs->paths[i].open &&
        (best < 0 || cost_of(costs, i, size) < cost_of(costs, (size_t)best, size)))
      best = (int)i;
  if (kept >= 0 && cost_of(costs, (size_t)best, size) >= cost_of(costs, (size_t)kept, size) * KEEP)
    best = kept;
  atomic_store_explicit(&costs->best[size], (uint8_t)(best + 1), memory_order_relaxed);
}

static void expire_samples(struct costs *costs, unsigned size, uint32_t now_ms) {
  for (unsigned i = 0; i < TRANSPORTS_MAX; i++) {
    struct sample *sample = &costs->paths[i].samples[size];
    if (!measure_known(&sample->ratio))
      continue;
    double ms = cost_of(costs, i, size) / 1e6 * FORGET_TIMES;
    uint32_t bound = FORGET_MS + (ms < 1e9 ? (uint32_t)ms : 1000000000u);
    /* Negative if another thread recorded a later time meanwhile. */
    int32_t age = (int32_t)(now_ms - atomic_load_explicit(&sample->at, memory_order_relaxed));
    if (age > (int32_t)bound)
      measure_reset(&sample->ratio);
  }
}

void costs_record(struct costs *costs, size_t path, uint64_t bytes, int64_t ns, int64_t now) {
  unsigned size = costs_size(bytes);
  struct cost *cost = &costs->paths[path];
  struct sample *sample = &cost->samples[size];
  uint32_t now_ms = (uint32_t)(uint64_t)(now / 1000000);
  if (!cost->open || ns <= 0)
    return;
  /* One sample a millisecond is enough. */
  if (measure_known(&sample->ratio) &&
      atomic_load_explicit(&sample->at, memory_order_relaxed) == now_ms)
    return;
  double ratio = (double)ns / lines_ns(cost->lines, bytes);
  ratio = ratio > COST_BOUND ? COST_BOUND : ratio < 1 / COST_BOUND ? 1 / COST_BOUND : ratio;
  measure_record(&sample->ratio, (uint32_t)(ratio * COST_UNIT));
  atomic_store_explicit(&sample->at, now_ms, memory_order_relaxed);
  unsigned first = size > COST_REACH ? size - COST_REACH : 0;
  for (unsigned i = first; i <= size + COST_REACH && i < COST_SIZES; i++) {
    expire_samples(costs, i, now_ms);
    choose_best(costs, i);
  }
}

static bool is_open_to_all(const struct estimate *estimate) {
  return estimate->open && !estimate->explicit_only;
}

static struct costs *find_costs(struct costs *from, uint64_t type, struct haul_place remote,
                                const struct estimate *estimates) {
  for (; from; from = from->next) {
    bool same = from->type == type && from->remote.kind == remote.kind &&
                from->remote.device == remote.device;
    for (unsigned i = 0; same && i < TRANSPORTS_MAX; i++)
      same = from->paths[i].open == is_open_to_all(&estimates[i]) &&
             strcmp(from->paths[i].detail, estimates[i].detail) == 0;
    if (same)
      return from;
  }
  return NULL;
}

static void init_costs(struct costs *costs, const struct estimate *estimates) {
  costs->single_copy = -1;
  for (unsigned i = 0; i < TRANSPORTS_MAX; i++) {
    const struct transport *transport = transport_at(i);
    struct cost *cost = &costs->paths[i];
    cost->open = transport && is_open_to_all(&estimates[i]);
    memcpy(cost->detail, estimates[i].detail, sizeof cost->detail);
    memcpy(cost->lines, estimates[i].lines, sizeof cost->lines);
    if (cost->open && transport->within_host && estimates[i].zero_copy)
      costs->single_copy = (int)i;
  }
  for (unsigned i = 0; i < COST_SIZES; i++)
    choose_best(costs, i);
}

struct costs *costs_of(struct link *link, uint64_t type, struct haul_place remote,
                       const struct estimate estimates[TRANSPORTS_MAX]) {
  struct costs *first = atomic_load_explicit(&link->costs, memory_order_acquire);
  struct costs *found = find_costs(first, type, remote, estimates);
  if (found)
    return found;
  struct costs *made =
      atomic_fetch_add(&link->costs_count, 1) < COSTS_MAX ? alloc_zero(1, sizeof *made) : NULL;
  if (!made) {
    atomic_fetch_sub(&link->costs_count, 1);
    return NULL;
  }
  made->type = type;
  made->remote = remote;
  init_costs(made, estimates);
  do {
    found = find_costs(first, type, remote, estimates);
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

/* Whether the node was driven during at least 7/8 of the transfer. */
static bool was_driven(const struct haul_transfer *transfer) {
  int64_t awaited = atomic_load_explicit(&transfer->awaited, memory_order_relaxed);
  return !transfers_driven(transfer->remote->transfers) ||
         (awaited && awaited * 8 <= transfer->ended - transfer->posted);
}

/* The ns since `from`, clamped. */
static uint32_t ns_since(int64_t from) {
  int64_t passed = clock_now() - from;
  return passed < UINT32_MAX ? (uint32_t)passed : UINT32_MAX - 1;
}

void transfer_posted_all(struct haul_transfer *transfer) {
  transfer->handed = ns_since(transfer->posted);
}

void transfer_wait_began(struct haul_transfer *transfer) {
  if (transfer->alone && transfers_driven(transfer->remote->transfers))
    atomic_store_explicit(&transfer->awaited, ns_since(transfer->posted + transfer->handed) + 1,
                          memory_order_relaxed);
}

void transfer_wait_ended(struct haul_transfer *transfer) {
  atomic_store_explicit(&transfer->awaited, 0, memory_order_relaxed);
}

void transfer_record_cost(const struct haul_transfer *transfer) {
  struct costs *costs = transfer->route->costs;
  if (costs && transfer->pieces == 1 && !transfer->remote->transfers->estimates_only)
    costs_record(costs, (size_t)atomic_load(&transfer->path), transfer->bytes,
                 transfer->ended - transfer->posted, transfer->ended);
}

void transfer_record(const struct haul_transfer *transfer) {
  struct transfers *owner = transfer->remote->transfers;
  size_t path = (size_t)atomic_load(&transfer->path);
  bool alone = transfer->alone && atomic_load(&owner->flow) / FLOW_STARTED == transfer->turn;
  if (!alone || atomic_load(&transfer->failure) || atomic_load(&transfer->retries) ||
      transfer->flags & HAUL_CHECKSUM)
    return;
  if (transfer->measures)
    tune_record(route_slices(transfer->route, path), transfer->way, transfer->bytes,
                transfer->ended - transfer->posted);
  if (was_driven(transfer))
    transfer_record_cost(transfer);
}
