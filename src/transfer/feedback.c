/* SPDX-License-Identifier: MIT
 * What a transfer that has ended teaches: what its path takes, and how good its slices are. */
#include "core/sys.h"
#include "transfer/transfer.h"

/* Somebody drove the node all the time, or nearly. */
static bool was_attended(const struct haul_transfer *transfer) {
  int64_t awaited = atomic_load_explicit(&transfer->awaited, memory_order_relaxed);
  return !transfers_driven(transfer->remote->transfers) ||
         (awaited && awaited * 8 <= transfer->ended - transfer->posted);
}

/* Of the time since `from`, as much as fits. */
static uint32_t since(int64_t from) {
  int64_t passed = clock_now() - from;
  return passed < UINT32_MAX ? (uint32_t)passed : UINT32_MAX - 1;
}

void transfer_posted_all(struct haul_transfer *transfer) {
  transfer->handed = since(transfer->posted);
}

void transfer_wait_began(struct haul_transfer *transfer) {
  if (transfer->alone && transfers_driven(transfer->remote->transfers))
    atomic_store_explicit(&transfer->awaited, since(transfer->posted + transfer->handed) + 1,
                          memory_order_relaxed);
}

void transfer_wait_ended(struct haul_transfer *transfer) {
  atomic_store_explicit(&transfer->awaited, 0, memory_order_relaxed);
}

void transfer_record_cost(const struct haul_transfer *transfer) {
  struct costs *costs = transfer->route->costs;
  if (costs && transfer->pieces == 1 && !transfer->remote->transfers->estimates_only)
    costs_tell(costs, (size_t)atomic_load(&transfer->path), transfer->bytes,
               transfer->ended - transfer->posted, transfer->ended);
}

/* One that was alone all the time says what its path takes, and how good its slices are. */
void transfer_record(const struct haul_transfer *transfer) {
  struct transfers *owner = transfer->remote->transfers;
  size_t path = (size_t)atomic_load(&transfer->path);
  bool alone = transfer->alone && atomic_load(&owner->flow) / FLOW_STARTED == transfer->turn;
  if (!alone || atomic_load(&transfer->failure) || atomic_load(&transfer->retries) ||
      transfer->flags & HAUL_CHECKSUM)
    return;
  if (transfer->tells)
    tune_record(route_slices(transfer->route, path), transfer->way, transfer->bytes,
                transfer->ended - transfer->posted);
  if (was_attended(transfer))
    transfer_record_cost(transfer);
}
