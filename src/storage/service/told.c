/* SPDX-License-Identifier: MIT */
#include "storage/service/told.h"

#include <errno.h>

#include "core/wire.h"

void told_add(struct told *told, haul_transfer *transfer, bool pages) {
  struct haul_report one = HAUL_REPORT_INIT, *sum = &told->report;
  if (haul_transfer_report(transfer, &one))
    return;
  one.bytes += sum->bytes;
  one.pieces += sum->pieces;
  one.slices += sum->slices;
  one.retries += sum->retries;
  told->pages += pages ? one.bytes - sum->bytes : 0;
  if (sum->bytes > 0) { /* of the first one */
    one.queued_ns = sum->queued_ns;
    one.setup_ns = sum->setup_ns;
  }
  *sum = one;
}

static void put_path(struct wire *wire, const struct haul_path *path) {
  wire_put8(wire, (uint8_t)((path->open ? 1 : 0) | (path->chosen ? 2 : 0) |
                            (path->measured ? 4 : 0) | (path->zero_copy ? 8 : 0)));
  wire_put64(wire, (uint64_t)path->cost_ns);
  wire_put64(wire, (uint64_t)path->estimate_ns);
  wire_put8(wire, (uint8_t)path->copies_cpu);
  wire_put8(wire, (uint8_t)path->copies_kernel);
  wire_put8(wire, (uint8_t)path->copies_dma);
  wire_put_string(wire, path->name);
  wire_put_string(wire, path->detail);
  wire_put_string(wire, path->reason);
  wire_put_string(wire, path->send);
}

/* Nanoseconds; foreign ones are bounded so that they fit every type that they may end up in. */
static int64_t get_time(struct wire *wire) {
  uint64_t time = wire_get64(wire);
  if (time > (uint64_t)1 << 62)
    wire->failed = true;
  return wire->failed ? 0 : (int64_t)time;
}

static void get_path(struct wire *wire, struct haul_path *path) {
  unsigned flags = wire_get8(wire);
  path->open = (flags & 1) != 0;
  path->chosen = (flags & 2) != 0;
  path->measured = (flags & 4) != 0;
  path->zero_copy = (flags & 8) != 0;
  path->cost_ns = (double)get_time(wire);
  path->estimate_ns = (double)get_time(wire);
  path->copies_cpu = wire_get8(wire);
  path->copies_kernel = wire_get8(wire);
  path->copies_dma = wire_get8(wire);
  wire_get_string(wire, path->name, sizeof path->name);
  wire_get_string(wire, path->detail, sizeof path->detail);
  wire_get_string(wire, path->reason, sizeof path->reason);
  wire_get_string(wire, path->send, sizeof path->send);
}

size_t told_put(const struct told *told, uint8_t *bytes, size_t room) {
  const struct haul_report *report = &told->report;
  struct wire wire = wire_over(bytes, room);
  wire_put64(&wire, report->bytes);
  wire_put64(&wire, report->slices);
  wire_put32(&wire, report->retries);
  wire_put64(&wire, told->pages);
  wire_put64(&wire, (uint64_t)report->queued_ns);
  wire_put64(&wire, (uint64_t)report->setup_ns);
  wire_put16(&wire, report->from.kind);
  wire_put16(&wire, report->from.device);
  wire_put16(&wire, report->to.kind);
  wire_put16(&wire, report->to.device);
  wire_put8(&wire, report->checksum != 0);
  wire_put8(&wire, (uint8_t)report->path_count);
  for (size_t i = 0; i < report->path_count; i++)
    put_path(&wire, &report->paths[i]);
  return wire.failed ? 0 : (size_t)(wire.at - bytes);
}

int told_get(const void *bytes, size_t size, struct told *told) {
  struct haul_report empty = HAUL_REPORT_INIT, *report = &told->report;
  struct wire wire = wire_over(bytes, size);
  *told = (struct told){.report = empty};
  report->bytes = wire_get64(&wire);
  report->slices = wire_get64(&wire);
  report->retries = wire_get32(&wire);
  told->pages = wire_get64(&wire);
  report->queued_ns = get_time(&wire);
  report->setup_ns = get_time(&wire);
  report->from.kind = wire_get16(&wire);
  report->from.device = wire_get16(&wire);
  report->to.kind = wire_get16(&wire);
  report->to.device = wire_get16(&wire);
  report->checksum = wire_get8(&wire) != 0;
  report->path_count = wire_get8(&wire);
  if (report->path_count > HAUL_PATHS_MAX)
    return -EPROTO;
  for (size_t i = 0; i < report->path_count; i++)
    get_path(&wire, &report->paths[i]);
  report->pieces = report->slices;
  return wire.failed || wire_left(&wire) > 0 || told->pages > report->bytes ? -EPROTO : 0;
}
