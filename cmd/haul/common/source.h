/* SPDX-License-Identifier: MIT
 * The source of `haul put` and `haul cache put`.
 *
 * A regular file is mapped, and the transfer reads the page cache without a copy. This thread
 * populates each window first, so that a slow disk never blocks the node's thread in a page fault.
 * A file cut short raises SIGBUS, which ends the command with an error. What cannot be mapped is
 * read into the buffers of the slots, which costs one copy by the kernel. Input of unknown length,
 * as of pipes and terminals, can be kept in a file first, so that its length is known. */
#ifndef HAUL_COMMAND_SOURCE_H
#define HAUL_COMMAND_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include <haul/haul.h>

#include "ring.h"

#define SOURCE_LENGTH_UNKNOWN UINT64_MAX

struct source {
  int descriptor;
  const char *label;   /* for messages */
  uint64_t length;     /* bytes from `at` to the end, or SOURCE_LENGTH_UNKNOWN */
  uint64_t at;         /* offset in the file */
  haul_region *region; /* the mapped pages; NULL: the file is read */
  size_t mapped;       /* bytes of the region */
  bool kept;           /* in a file, by source_keep */
};

/* Opens `path`, "-" for standard input. A FIFO is opened without a writer, which source_wait waits
 * for. Returns an exit status; call source_close in any case. */
int source_open(struct source *source, const char *path);

/* Reads input of unknown length up to its end, at most `most` + 1 bytes, into a file in $TMPDIR
 * without a name, which replaces the input. Waits as source_next. Returns an exit status. */
int source_keep(struct source *source, uint64_t most, haul_peer *peer, haul_deadline until);

/* Maps the file if possible. Returns an exit status. */
int source_map(struct source *source, haul_node *node);

/* Sets region, piece.local and piece.length of the slot, to at most RING_CHUNK bytes; length 0 is
 * the end. Waits for input until the deadline or the loss of the peer. Returns an exit status. */
int source_next(struct source *source, struct slot *slot, haul_peer *peer, haul_deadline until);

/* Waits for input or its end, until the deadline, a signal or the loss of the peer, which may be
 * NULL. Returns an exit status. */
int source_wait(const struct source *source, haul_peer *peer, haul_deadline until);

/* After a failure: prints a note if the file became shorter than its mapping. */
void source_note_change(const struct source *source);

void source_close(struct source *source);

#endif
