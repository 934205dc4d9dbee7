/* SPDX-License-Identifier: MIT */
#include "ring.h"

#include "../command.h"
#include "fail.h"
#include "process.h"

#define CANCEL_WAIT_NS INT64_C(1000000000)

int ring_open(struct ring *ring, bool bare) {
  const struct haul_place host = {HAUL_HOST, 0};
  tally_begin(&ring->tally);
  for (int i = 0; i < RING_SLOTS && !bare; i++) {
    struct slot *slot = &ring->slots[i];
    if (haul_region_alloc(ring->session->node, host, RING_CHUNK, HAUL_REGION_PRIVATE,
                          &slot->buffer))
      return fail_library("cannot allocate buffers");
    slot->region = slot->buffer;
  }
  return EXIT_DONE;
}

static int fail_transfer(const struct ring *ring) {
  bool writes = ring->operation == HAUL_OP_WRITE;
  if (ring->done == 0 && ring->options.only && !(ring->options.flags & HAUL_REQUIRE_ZERO_COPY) &&
      haul_error_last()->code == HAUL_ENOPATH)
    fail_leaves("`haul doctor %s` checks what it needs", ring->options.only);
  return fail_library("cannot %s %s", writes ? "write to" : "read from", ring->target);
}

int ring_start(struct ring *ring, struct slot *slot) {
  haul_remote *remote = ring->session->remote;
  int result =
      ring->operation == HAUL_OP_WRITE
          ? haul_write(remote, slot->region, &slot->piece, 1, &ring->options, &slot->transfer)
          : haul_read(slot->region, remote, &slot->piece, 1, &ring->options, &slot->transfer);
  return result ? fail_transfer(ring) : EXIT_DONE;
}

/* Waits in slices, to notice signals. The end of a slice and the deadline of the transfer have the
 * same code, so haul_transfer_test tells them apart. */
static int wait_for(haul_transfer *transfer) {
  int result;
  do {
    result = haul_transfer_wait(transfer, haul_deadline_in(INTERRUPT_SLICE_NS));
    if (result == HAUL_ETIMEDOUT)
      result = haul_transfer_test(transfer);
  } while (result == 1 && !interrupted());
  return result;
}

int ring_settle(struct ring *ring, struct slot *slot) {
  struct haul_report report = {.size = sizeof(report)};
  if (!slot->transfer)
    return EXIT_DONE;
  int result = wait_for(slot->transfer);
  if (interrupted())
    return fail_because(NULL, "interrupted");
  if (result || haul_transfer_report(slot->transfer, &report))
    return fail_transfer(ring);
  haul_transfer_release(slot->transfer);
  slot->transfer = NULL;
  tally_add(&ring->tally, &report);
  ring->done += report.bytes;
  progress_update(&ring->progress, ring->done);
  return EXIT_DONE;
}

void ring_close(struct ring *ring) {
  for (int i = 0; i < RING_SLOTS; i++) {
    struct slot *slot = &ring->slots[i];
    if (slot->transfer) {
      haul_transfer_cancel(slot->transfer);
      haul_transfer_wait(slot->transfer, haul_deadline_in(CANCEL_WAIT_NS));
      haul_transfer_release(slot->transfer);
    }
    haul_region_release(slot->buffer);
    *slot = (struct slot){NULL, NULL, NULL, {0, 0, 0}};
  }
  progress_hide();
}
