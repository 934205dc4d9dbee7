/* SPDX-License-Identifier: MIT
 *
 * What haul explain knows of sizes: the curve of each path, and where the choice changes
 * (explain_curve.c), and how that is shown (explain_output.c).
 */
#ifndef HAUL_COMMAND_EXPLAIN_H
#define HAUL_COMMAND_EXPLAIN_H

#include <haul/haul.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CURVE_MOST     (UINT64_C(256) << 20)
#define CURVE_POINTS   30 /* powers of two from 1 to the most, and the region's size */
#define CURVE_SWITCHES 32

/* The paths for one size, in the library's order: the chosen one first. */
struct curve_point {
  uint64_t bytes;
  size_t count;
  struct haul_path paths[HAUL_PATHS_MAX];
};

/* From one size to another the same path is taken, and sends in the same way. */
struct curve_switch {
  struct curve_point from, to;
};

struct curve {
  size_t points, switches;
  struct curve_point at[CURVE_POINTS];
  struct curve_switch parts[CURVE_SWITCHES];
};

/* Between which memories. */
struct curve_asked {
  haul_region *local;
  haul_remote *remote;
  enum haul_operation operation;
  struct haul_transfer_options options;
  uint64_t most; /* bytes of the region */
};

/* 0, or the library's code. */
int curve_make(const struct curve_asked *asked, struct curve *curve);
/* Reads each size of the curve by each open path, a few times, so that the library knows what they
 * take; *told: whether it does. Both regions have `most` bytes. 0, or the library's code. */
int curve_measure(const struct curve_asked *asked, bool *told);

struct gnuplot;
struct json;

void curve_print(const struct curve *curve, FILE *out);
void curve_to_json(const struct curve *curve, struct json *json);
/* Some path is open for some size. Returns an exit status. */
int curve_plot(const struct curve *curve, const char *title, struct gnuplot *plot);

#endif
