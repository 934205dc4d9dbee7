/* SPDX-License-Identifier: MIT
 *
 * A bounded number of transfers in flight between this process and one remote: while some are on
 * their way, the caller fills or empties another slot.
 */
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
  (UINT64_C(4) << 20) /* bytes a transfer: large enough to spread, small enough to                 \
                         show progress and to hold few bytes in memory */

struct slot {
  haul_region *buffer; /* the slot's own, RING_CHUNK bytes of host memory; NULL in a bare ring */
  haul_region *region; /* what the transfer moves: the buffer, or memory of the caller's */
  haul_transfer *transfer; /* NULL: the slot is free */
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

/* Fills the slots' buffers, unless `bare`; the other fields are the caller's to set before. Returns
 * an exit status; ring_close is due either way. */
int ring_open(struct ring *ring, bool bare);

/* Starts the slot's transfer: region and piece are set. Returns an exit status. */
int ring_start(struct ring *ring, struct slot *slot);

/* Waits until the slot is free; its report goes into the tally. Returns an exit status. */
int ring_settle(struct ring *ring, struct slot *slot);

/* Cancels what is in flight and releases the buffers. */
void ring_close(struct ring *ring);

#endif
