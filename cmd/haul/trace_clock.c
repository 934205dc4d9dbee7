/* SPDX-License-Identifier: MIT */
#include "trace_clock.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define ERROR_MOST (INT64_MAX / 8) /* sums do not overflow */
#define DRIFT_MOST 1e-3            /* the kernel slews a clock by at most 500 ppm: adjtimex(2) */

void clock_keep_shorter(struct clock_sample *kept, struct clock_sample sample) {
  if (kept->received == 0 || sample.received - sample.sent < kept->received - kept->sent)
    *kept = sample;
}

/* A node may claim any time: its numbers wrap around. */
static int64_t difference(uint64_t a, uint64_t b) {
  return (int64_t)(a - b);
}

static int64_t offset_of(const struct clock_sample *sample) {
  int64_t middle = sample->sent + (sample->received - sample->sent) / 2;
  return difference(sample->theirs, (uint64_t)middle);
}

int64_t clock_offset(const struct clock_fit *fit) {
  return offset_of(&fit->first);
}

static int64_t change_of(const struct clock_fit *fit) {
  return difference((uint64_t)offset_of(&fit->last), (uint64_t)offset_of(&fit->first));
}

/* Change of the difference for each nanosecond of the node; false: no clock does this. */
static bool drift_of(const struct clock_fit *fit, double *drift) {
  double elapsed = (double)difference(fit->last.theirs, fit->first.theirs);
  *drift = elapsed > 0 ? (double)change_of(fit) / elapsed : 0;
  return elapsed > 0 && fabs(*drift) <= DRIFT_MOST;
}

int64_t clock_convert(const struct clock_fit *fit, uint64_t theirs) {
  double drift;
  int64_t change = change_of(fit);
  int64_t at = difference(theirs, (uint64_t)offset_of(&fit->first));
  if (!drift_of(fit, &drift) || difference(theirs, fit->first.theirs) < 0)
    return at;
  if (difference(theirs, fit->last.theirs) < 0)
    change = (int64_t)(drift * (double)difference(theirs, fit->first.theirs));
  return difference((uint64_t)at, (uint64_t)change);
}

static int64_t half(const struct clock_sample *sample) {
  return (sample->received - sample->sent + 1) / 2;
}

int64_t clock_error(const struct clock_fit *fit) {
  double drift;
  int64_t error = half(&fit->first) > half(&fit->last) ? half(&fit->first) : half(&fit->last);
  int64_t change = change_of(fit);
  if (drift_of(fit, &drift))
    return error;
  return change == INT64_MIN || llabs(change) > ERROR_MOST ? ERROR_MOST : error + llabs(change);
}
