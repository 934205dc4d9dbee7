/* SPDX-License-Identifier: MIT
 * Copies of scatter/gather segments by a device's engine, driven by a loop's poller. An engine that
 * gathers has a group of segments in flight, others one segment. The loop polls a copy often at
 * first, as a driver calls back late and for one copy after the other; a longer one wakes it.
 *
 * The caller's lock guards the struct; the engine's `wake` takes no lock. After devcopy_poll
 * returned anything but 1, and after devcopy_cancel, the engine accesses neither memory and no
 * longer wakes the loop: both may be freed. */
#ifndef HAUL_FABRIC_DEVCOPY_H
#define HAUL_FABRIC_DEVCOPY_H

#include "core/loop.h"
#include "memory/provider.h"

#define DEVCOPY_POLLED 1000000 /* nanoseconds until an engine is asked to wake the loop */
#define DEVCOPY_GROUP  128u    /* segments; a driver takes some 4 us for each, and a cancel waits */

/* Zeroed: nothing in flight, nothing to cancel. */
struct devcopy {
  /* Constant from the first poll to the end. */
  const struct provider *engine;
  struct memory *to, *from;
  struct loop *loop;
  uint32_t count; /* segments, at least one */
  /* `before`: the bytes of the segments before it. */
  struct copy_segment (*segment)(const struct devcopy *copy, uint32_t index, uint64_t before);
  const void *owner; /* for `segment` */

  struct memory *bounce[2]; /* bounce buffers, once the engine has asked for them */

  uint32_t index;  /* of the first segment in flight */
  uint64_t copied; /* bytes of the segments before it */
  bool in_flight;
  int64_t started;           /* the group in flight */
  struct copy_segment *more; /* in flight: copy.more, or NULL */
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
  return copy->in_flight && !copy->copy.wakes;
}

#endif
