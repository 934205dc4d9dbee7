/* SPDX-License-Identifier: MIT
 * The cost of each path over size, and the sizes at which the choice changes. */
#ifndef HAUL_COMMAND_EXPLAIN_H
#define HAUL_COMMAND_EXPLAIN_H

#include <haul/haul.h>
#include <stdbool.h>
#include <stdint.h>

#define CURVE_MOST     (UINT64_C(256) << 20)
#define CURVE_POINTS   30 /* powers of two up to CURVE_MOST, and the size of the region */
#define CURVE_SWITCHES 32

/* The paths for one size, in the order of the library: the chosen one first. */
struct curve_point {
  uint64_t bytes;
  size_t count;
  struct haul_path paths[HAUL_PATHS_MAX];
};

/* A range of sizes with the same path and the same way to send. */
struct curve_switch {
  struct curve_point from, to;
};

struct curve {
  size_t points, switches;
  struct curve_point at[CURVE_POINTS];
  struct curve_switch parts[CURVE_SWITCHES];
};

/* The memories of the transfer. */
struct curve_input {
  haul_region *local;
  haul_remote *remote;
  enum haul_operation operation;
  struct haul_transfer_options options;
  uint64_t most; /* bytes of the region */
};

/* The paths for `bytes`. Returns 0 or a code of the library. */
int curve_explain(const struct curve_input *input, uint64_t bytes, struct curve_point *point);
/* Returns 0 or a code of the library. */
int curve_make(const struct curve_input *input, struct curve *curve);
/* Reads each size over each open path a few times, which gives the library measured costs; *known:
 * it has them. Both regions have `most` bytes. Returns 0 or a code of the library. */
int curve_measure(const struct curve_input *input, bool *known);

struct gnuplot;
struct json;

bool curve_is_open(const struct curve *curve); /* whether a path is, for some size */
void curve_print(const struct curve *curve);   /* to standard output */
void curve_to_json(const struct curve *curve, struct json *json);
/* At least one path must be open for some size. Returns an exit status. */
int curve_plot(const struct curve *curve, const char *title, struct gnuplot *plot);

#endif
