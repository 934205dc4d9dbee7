/* SPDX-License-Identifier: MIT
 *
 * Where `haul put` takes its bytes from, a slot at a time.
 *
 * A regular file is mapped, and the transfer takes its bytes from the page cache itself: no copy is
 * made here. Two dangers of that are met: a window is populated by this thread before it is handed
 * over, so that a slow disk never stops the node's own thread inside a page fault, and a file cut
 * short under way, which raises SIGBUS, ends the command with a plain error. Whatever cannot be
 * mapped (a pipe, a terminal) is read into the slots' buffers, which costs one copy by the kernel.
 */
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
  uint64_t length;     /* bytes from here to the end, or SOURCE_LENGTH_UNKNOWN */
  uint64_t at;         /* offset in the file */
  haul_region *region; /* the file's own pages; NULL: it is read */
  size_t mapped;       /* bytes of it */
};

/* Opens `path`, "-" for standard input. Returns an exit status; source_close is due either way. */
int source_open(struct source *source, const char *path);

/* Maps it where that is possible. Returns an exit status. */
int source_map(struct source *source, haul_node *node);

/* Puts up to RING_CHUNK bytes into the slot: region, piece.local and piece.length. A length of 0
 * says that the end is reached. Waits for input until `until`, as long as the peer is there.
 * Returns an exit status. */
int source_next(struct source *source, struct slot *slot, haul_peer *peer, haul_deadline until);

/* After a failure: says so where the file became shorter than what was mapped of it. */
void source_note_change(const struct source *source);

void source_close(struct source *source);

#endif
