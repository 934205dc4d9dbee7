/* SPDX-License-Identifier: MIT
 * The parts of `haul top`: the command, rates, tables and JSON (top.c), the screen (top_screen.c).
 */
#ifndef HAUL_COMMAND_TOP_H
#define HAUL_COMMAND_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <haul/stats.h>

#include "common/text.h"

/* The counters of a node and its peers. */
struct snapshot {
  int64_t at;
  struct haul_node_stats node;
  struct haul_peer_stats *peers;
  size_t count;
};

/* Rates a second between two snapshots, of one path or a sum of paths. */
struct rates {
  double out, in, served_out, served_in, slices;
  uint64_t errors; /* total, not a rate */
};

void add_rates(struct rates *rates, const struct haul_path_stats *now,
               const struct haul_path_stats *then, double seconds);

/* What peers are sorted by; the last one is no order. */
enum top_sort { SORT_BUSY, SORT_OUT, SORT_IN, SORT_ERRORS, SORT_QUEUE, SORT_NAME, SORTS };

struct top_order {
  enum top_sort by;
  bool reversed;
};

const char *sort_name(enum top_sort sort);

struct line {
  const struct haul_peer_stats *peer;
  struct rates rates;
  const char *path; /* the busiest one; "-": none */
};

/* One line for each peer, in this order; the caller frees them. */
struct line *sorted_lines(const struct snapshot *now, const struct snapshot *last, double seconds,
                          struct top_order order);

struct unit_text short_rate(double value); /* "1.2G", at most five columns */
struct unit_text short_number(uint64_t value);

/* Draws on the open screen. Returns 0 or an error number. */
int top_draw(const struct snapshot *now, const struct snapshot *last, struct top_order order,
             bool colors);

#endif
