/* SPDX-License-Identifier: MIT
 * A progress bar with rate and remaining time, on standard error if that is a terminal. */
#ifndef HAUL_COMMAND_PROGRESS_H
#define HAUL_COMMAND_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
  char label[48];
  uint64_t total;  /* bytes; 0: unknown */
  int64_t started; /* now_ns() */
  int64_t drawn;   /* time of the last drawing */
  bool shown;      /* false: nothing is drawn */
};

void progress_begin(struct progress *progress, const char *label, uint64_t total, bool quiet);

/* Draws at most ten times a second, and not in the first half second. */
void progress_update(struct progress *progress, uint64_t done);

/* For work in steps: `done` of `steps` are complete and `step` begins. Draws at once. */
void progress_step(const struct progress *progress, uint64_t done, uint64_t steps,
                   const char *step);

/* Removes the bar from the screen, so that a line can take its place. */
void progress_hide(void);

#endif
