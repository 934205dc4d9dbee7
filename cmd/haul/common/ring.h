/* SPDX-License-Identifier: MIT
 * A bounded number of transfers in flight between this process and one remote region, so that the
 * caller fills or drains one slot while others are in flight. */
#ifndef HAUL_COMMAND_RING_H
#define HAUL_COMMAND_RING_H

#include <stdbool.h>
#include <stdint.h>

#include <haul/haul.h>

#include "progress.h"
#include "session.h"
#include "tally.h"

#define RING_SLOTS 4
#define RING_CHUNK                                                                                 \
  (UINT64_C(4) << 20) /* bytes a transfer: large enough for all rails, small enough for            \
                         progress and memory */

struct slot {
  haul_region *buffer;     /* RING_CHUNK bytes of host memory; NULL in a bare ring */
  haul_region *region;     /* memory of the transfer: the buffer, or memory of the caller */
  haul_transfer *transfer; /* NULL: free */
  struct haul_piece piece;
};

struct ring {
  const struct session *session;
  enum haul_operation operation;
  const char *target; /* for messages */
  struct haul_transfer_options options;
  struct tally tally;
  struct progress progress;
  uint64_t done; /* bytes */
  struct slot slots[RING_SLOTS];
};

/* Allocates the buffers, unless `bare`; the caller sets the other fields before. Returns an exit
 * status; call ring_close in any case. */
int ring_open(struct ring *ring, bool bare);

/* Starts the transfer of a slot, whose region and piece are set. Returns an exit status. */
int ring_start(struct ring *ring, struct slot *slot);

/* Waits until the slot is free and adds its report to the tally. Returns an exit status. */
int ring_settle(struct ring *ring, struct slot *slot);

/* Cancels transfers in flight and releases the buffers. */
void ring_close(struct ring *ring);

#endif
