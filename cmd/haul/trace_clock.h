/* SPDX-License-Identifier: MIT
 * The clock of a node, estimated from the times of requests. All times are nanoseconds. */
#ifndef HAUL_TRACE_CLOCK_H
#define HAUL_TRACE_CLOCK_H

#include <stdint.h>

/* One exchange: the node read `theirs` between `sent` and `received`, which are of now_ns(). */
struct clock_sample {
  int64_t sent, received;
  uint64_t theirs;
};

/* Two exchanges, the shortest ones of a few at the begin and at the end of a recording. Between
 * them the difference of the clocks changes at a constant rate. */
struct clock_fit {
  struct clock_sample first, last;
};

/* Keeps the shorter one. `kept` begins with zeros. */
void clock_keep_shorter(struct clock_sample *kept, struct clock_sample sample);

/* Converts a time of the node to now_ns(). */
int64_t clock_convert(const struct clock_fit *fit, uint64_t theirs);

/* The node's clock minus now_ns(), at the first sample. */
int64_t clock_offset(const struct clock_fit *fit);

/* The bound of the error of clock_convert: half of the longer exchange, plus the whole change of
 * the difference if the clock went faster or slower than clocks do. */
int64_t clock_error(const struct clock_fit *fit);

#endif
