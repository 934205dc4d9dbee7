/* SPDX-License-Identifier: MIT
 * What who watches the node is told of its transfers. */
#include "transfer/transfer.h"

void trace_transfer(const struct haul_transfer *transfer, enum haul_trace_kind kind) {
  bool ends = kind == HAUL_TRACE_COMPLETE;
  trace_write(
      &transfer->remote->transfers->fabric->trace,
      (struct trace_event){.kind = (uint8_t)kind,
                           .operation = (uint8_t)transfer->operation,
                           .path = ends ? (uint8_t)atomic_load(&transfer->path) : TRACE_NO_PATH,
                           .transfer = transfer->turn,
                           .slice = transfer->work_count,
                           .peer = transfer->remote->link->number,
                           .bytes = transfer->bytes,
                           .status = ends ? atomic_load(&transfer->failure) : 0});
}

void trace_work(const struct work *work, enum haul_trace_kind kind, int code) {
  const struct haul_transfer *transfer = work->owner;
  trace_write(&transfer->remote->transfers->fabric->trace,
              (struct trace_event){.kind = (uint8_t)kind,
                                   .operation = (uint8_t)work->operation,
                                   .path = (uint8_t)work->endpoint->transport->index,
                                   .transfer = transfer->turn,
                                   .slice = (uint32_t)(work - transfer_works(transfer)),
                                   .peer = transfer->remote->link->number,
                                   .bytes = work->bytes,
                                   .status = code});
}
