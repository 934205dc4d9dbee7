/* SPDX-License-Identifier: MIT
 * The parts of `haul bench`: the command with its sizes and paths (bench.c), the measurement
 * (bench_measure.c), tables, JSON and plots (bench_output.c, bench_plot.c). */
#ifndef HAUL_COMMAND_BENCH_H
#define HAUL_COMMAND_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include <haul/haul.h>

#include "common/session.h"

#define BENCH_SIZES_MAX 64
#define BENCH_DEPTH_MAX 256

enum bench_operation { BENCH_WRITE, BENCH_READ, BENCH_MESSAGE };

struct bench_sizes {
  size_t count;
  uint64_t list[BENCH_SIZES_MAX];
};

/* The paths of --all-paths: open ones first, then closed ones, both by name. Else empty. */
struct bench_paths {
  size_t open, count;
  struct haul_path list[HAUL_PATHS_MAX];
};

struct bench_latency {
  uint64_t count;                  /* samples; 0: not measured */
  double p50, p90, p99, p999, max; /* microseconds */
};

struct bench_row {
  uint64_t size;
  uint64_t count;  /* operations in the bandwidth phase */
  int64_t elapsed; /* their nanoseconds */
  char path[16];
  struct bench_latency latency; /* of one operation at a time */
};

/* Whether the node echoes messages; the first message finds out. */
enum bench_echo { ECHO_UNKNOWN, ECHO_YES, ECHO_NO };

/* How the rows are printed. */
enum bench_form { FORM_TEXT, FORM_CSV, FORM_JSON };

struct bench {
  enum bench_operation operation;
  const char *operation_name;
  char address[ADDRESS_MAX];
  char region[256];        /* empty for messages */
  struct haul_place place; /* of the local memory */
  unsigned depth;
  int64_t duration; /* nanoseconds a size */
  struct haul_transfer_options options;
  struct session session;
  haul_region *local;
  int64_t turned_at; /* the last turn of the node */
  enum bench_echo echo;
  struct bench_sizes sizes;
  struct bench_paths paths;
  size_t row_count;
  struct bench_row rows[BENCH_SIZES_MAX * HAUL_PATHS_MAX]; /* by size, then by path */
};

double bench_rate(const struct bench_row *row); /* gigabytes (1e9) a second */

/* Measures one size. Returns an exit status. */
int bench_measure(struct bench *bench, uint64_t size, struct bench_row *row);

/* Print to standard output: a heading, each row once it is measured, and the end. */
void bench_print_heading(const struct bench *bench, enum bench_form form);
void bench_print_row(const struct bench_row *row, enum bench_form form);
void bench_print_end(const struct bench *bench, enum bench_form form);

/* Plots the bandwidth as text; nothing with fewer than two sizes. `columns`: of the terminal, 0 if
 * it does not say. */
void bench_print_plot(const struct bench *bench, int columns);

struct gnuplot;

/* Plots bandwidth and latency, or the bandwidth of each path. Returns an exit status. */
int bench_plot(struct gnuplot *plot, const char *title, const struct bench *bench);

#endif
