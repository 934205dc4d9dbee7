/* SPDX-License-Identifier: MIT
 * The rate over the size as text, for terminals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/text.h"

#define ROWS    13  /* each third one has a label, and the first and last */
#define LABEL   11  /* columns of a rate */
#define COLUMNS 80  /* where the terminal does not say */
#define LEAST   20  /* columns of the plot */
#define WIDEST  100 /* a wider plot shows no more */
#define RATIO   20  /* of rates; a larger one takes a logarithmic axis */

struct plot {
  int columns;
  double least, most;       /* GB/s at the lowest and the highest row */
  double smallest, largest; /* logarithms of the sizes */
  bool logarithmic;
  char cells[ROWS][WIDEST];
};

/* "1.25 GB/s", with three digits. */
static struct unit_text short_rate_text(double rate) {
  static const char *const units[] = {"GB/s", "MB/s", "KB/s", "B/s"};
  struct unit_text result;
  size_t unit = 0;
  for (; rate < 1 && rate > 0 && unit < 3; unit++)
    rate *= 1000;
  snprintf(result.text, sizeof result.text, rate < 100 ? "%.3g %s" : "%.0f %s", rate, units[unit]);
  return result;
}

/* From 0 or, on a logarithmic axis, from the least rate to the highest one. */
static void set_scale(struct plot *plot, const struct bench *bench) {
  double least = INFINITY, most = 0;
  plot->smallest = INFINITY;
  plot->largest = 0;
  for (size_t i = 0; i < bench->row_count; i++) {
    double rate = bench_rate(&bench->rows[i]), size = log2((double)bench->rows[i].size);
    if (rate > 0) /* none has no place on a logarithmic axis */
      least = fmin(least, rate);
    most = fmax(most, rate);
    plot->smallest = fmin(plot->smallest, size);
    plot->largest = fmax(plot->largest, size);
  }
  plot->logarithmic = most > RATIO * least;
  plot->least = plot->logarithmic ? least : 0;
  plot->most = most;
}

static int row_of(const struct plot *plot, double rate) {
  double share = plot->logarithmic
                     ? log(fmax(rate, plot->least) / plot->least) / log(plot->most / plot->least)
                     : rate / plot->most;
  return ROWS - 1 - (int)lround(share * (ROWS - 1));
}

static double rate_at(const struct plot *plot, int row) {
  double share = (double)(ROWS - 1 - row) / (ROWS - 1);
  return plot->logarithmic ? plot->least * pow(plot->most / plot->least, share)
                           : plot->most * share;
}

static int column_of(const struct plot *plot, uint64_t size) {
  double range = plot->largest - plot->smallest;
  return (int)lround((log2((double)size) - plot->smallest) / range * (plot->columns - 1));
}

/* Dots between two points. */
static void draw_dots(struct plot *plot, const struct bench_row *from, const struct bench_row *to) {
  int first = column_of(plot, from->size), last = column_of(plot, to->size);
  int start = row_of(plot, bench_rate(from)), end = row_of(plot, bench_rate(to));
  for (int x = first + 1; x < last; x++) {
    char *cell =
        &plot->cells[start + (int)lround((double)(end - start) * (x - first) / (last - first))][x];
    if (*cell == ' ')
      *cell = '.';
  }
}

/* Several paths at one point are a '+'. */
static void draw_point(struct plot *plot, const struct bench_row *row, char mark) {
  char *cell = &plot->cells[row_of(plot, bench_rate(row))][column_of(plot, row->size)];
  *cell = *cell == ' ' || *cell == '.' || *cell == mark ? mark : '+';
}

/* `path`: that of the rows; NULL: all. */
static void draw_curve(struct plot *plot, const struct bench *bench, const char *path, char mark) {
  const struct bench_row *last = NULL;
  for (size_t i = 0; i < bench->row_count; i++) {
    const struct bench_row *row = &bench->rows[i];
    if (path && strcmp(row->path, path) != 0)
      continue;
    if (last)
      draw_dots(plot, last, row);
    draw_point(plot, row, mark);
    last = row;
  }
}

static void print_plot_rows(const struct plot *plot) {
  for (int row = 0; row < ROWS; row++) {
    int end = plot->columns;
    while (end > 0 && plot->cells[row][end - 1] == ' ')
      end--;
    printf("%*s |%.*s\n", LABEL,
           (ROWS - 1 - row) % 3 ? "" : short_rate_text(rate_at(plot, row)).text, end,
           plot->cells[row]);
  }
}

/* Puts a size below its column, if at least two blanks separate it from its neighbours. */
static void put_size(const struct plot *plot, uint64_t size, char *ticks, char *labels) {
  struct unit_text text = size_text(size);
  char *zeros = strstr(text.text, ".00");
  if (zeros)
    memmove(zeros, zeros + 3, strlen(zeros + 3) + 1);
  int length = (int)strlen(text.text), at = column_of(plot, size);
  int from = at + length > plot->columns ? plot->columns - length : at;
  for (int i = from - 2; i < from + length + 2; i++)
    if (i >= 0 && i < plot->columns && labels[i] != ' ')
      return;
  memcpy(&labels[from], text.text, (size_t)length);
  ticks[at] = '+';
}

/* The sizes below the plot, the last one and as many others as fit, and ticks above them. */
static void print_sizes(const struct plot *plot, const struct bench *bench) {
  char ticks[WIDEST], labels[WIDEST];
  memset(ticks, '-', sizeof ticks);
  memset(labels, ' ', sizeof labels);
  put_size(plot, bench->sizes.list[bench->sizes.count - 1], ticks, labels);
  for (size_t i = 0; i < bench->sizes.count; i++)
    put_size(plot, bench->sizes.list[i], ticks, labels);
  int end = plot->columns;
  while (end > 0 && labels[end - 1] == ' ')
    end--;
  printf("%*s +%.*s\n%*s  %.*s\n", LABEL, "", plot->columns, ticks, LABEL, "", end, labels);
}

void bench_print_plot(const struct bench *bench, int columns) {
  struct plot plot = {.columns = (columns > 0 ? columns : COLUMNS) - LABEL - 2};
  plot.columns = plot.columns < LEAST ? LEAST : plot.columns > WIDEST ? WIDEST : plot.columns;
  memset(plot.cells, ' ', sizeof plot.cells);
  set_scale(&plot, bench);
  if (plot.most <= 0 || plot.largest <= plot.smallest)
    return;
  for (size_t i = 0; i < bench->paths.open; i++)
    draw_curve(&plot, bench, bench->paths.list[i].name, bench->paths.list[i].name[0]);
  if (bench->paths.open == 0)
    draw_curve(&plot, bench, NULL, '*');
  printf("\nrate of %s over size%s", bench->operation_name, plot.logarithmic ? " (log-log)" : "");
  for (size_t i = 0; i < bench->paths.open; i++)
    printf("%s %c %s", i ? "," : ":", bench->paths.list[i].name[0], bench->paths.list[i].name);
  printf("\n");
  print_plot_rows(&plot);
  print_sizes(&plot, bench);
}
