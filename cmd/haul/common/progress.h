/* SPDX-License-Identifier: MIT
 *
 * A progress bar with rate and time left, on standard error and only when that is a terminal.
 */
#ifndef HAUL_COMMAND_PROGRESS_H
#define HAUL_COMMAND_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
  char label[48];
  uint64_t total;  /* bytes; 0: unknown */
  int64_t started; /* now_ns() */
  int64_t drawn;   /* when it was last drawn */
  bool shown;      /* false: nothing is ever drawn */
};

void progress_begin(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* Draws at most ten times a second, and not in the first half second: short work needs no bar. */
void progress_update(struct progress *progress, uint64_t done);

/* For work in steps: `done` of `steps` are over and the one called `step` begins. Drawn at once. */
void progress_step(const struct progress *progress, uint64_t done, uint64_t steps,
                   const char *step);

/* Removes whatever bar is on the screen, so that a line can be printed in its place. */
void progress_hide(void);

#endif
