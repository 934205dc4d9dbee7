/* SPDX-License-Identifier: MIT
 * Copies of scatter/gather segments by a device's engine, one segment in flight at a time, driven
 * by a loop's poller.
 *
 * The caller's lock guards the struct; the engine's `wake` takes no lock. After devcopy_poll
 * returned anything but 1, and after devcopy_cancel, the engine accesses neither memory and no
 * longer wakes the loop: both may be freed. */
#ifndef HAUL_FABRIC_DEVCOPY_H
#define HAUL_FABRIC_DEVCOPY_H

#include "core/loop.h"
#include "memory/provider.h"

struct devcopy_segment {
  uint64_t to_offset, from_offset, length; /* bytes */
};

/* Zeroed: nothing in flight, nothing to cancel. */
struct devcopy {
  /* Constant from the first poll to the end. */
  const struct provider *engine;
  struct memory *to, *from;
  struct loop *loop; /* woken when there is something to poll, if the engine wakes */
  uint32_t count;    /* segments, at least one */
  struct devcopy_segment (*segment)(const struct devcopy *copy, uint32_t index);
  const void *owner; /* for `segment` */

  struct memory *bounce[2]; /* bounce buffers, once the engine has asked for them */

  uint32_t index;  /* of the segment in flight */
  uint64_t copied; /* bytes of the segments before it */
  bool in_flight;
  struct copy copy;
};

#define DEVCOPY_NEEDS_BOUNCE 2

/* Starts or continues the copy: 1 while the engine copies, 0 when all bytes are visible at `to`, or
 * a code with the detail. DEVCOPY_NEEDS_BOUNCE: nothing is in flight, as the engine cannot access
 * the host memory; set `bounce` and poll again. */
int devcopy_poll(struct devcopy *copy);

/* Takes at most one operation of the engine. */
void devcopy_cancel(struct devcopy *copy);

/* A copy is in flight and its engine does not wake the loop: the poller is urgent. */
static inline bool devcopy_is_polled(const struct devcopy *copy) {
  return copy->in_flight && !copy->engine->wakes;
}

#endif
