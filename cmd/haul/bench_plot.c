/* SPDX-License-Identifier: MIT
 *
 * The picture of a sweep: bandwidth and latency over size, or the bandwidths of several paths.
 */
#include <string.h>

#include "bench.h"
#include "common/gnuplot.h"

static void write_row(FILE *script, const struct bench_row *row) {
  fprintf(script, "%llu %g", (unsigned long long)row->size, bench_rate(row));
  if (row->latency.count)
    fprintf(script, " %g %g\n", row->latency.p50, row->latency.p99);
  else
    fputs(" NaN NaN\n", script);
}

/* Those of one path; NULL: all. */
static void write_rows(FILE *script, const struct bench *bench, const char *path) {
  fprintf(script, "$%s << END_OF_ROWS\n", path ? path : "rows");
  for (size_t i = 0; i < bench->row_count; i++)
    if (!path || strcmp(bench->rows[i].path, path) == 0)
      write_row(script, &bench->rows[i]);
  fputs("END_OF_ROWS\n", script);
}

static void plot_one(FILE *script, const struct bench *bench) {
  bool latency = bench->rows[0].latency.count > 0;
  write_rows(script, bench, NULL);
  fputs("set ylabel 'GB/s'\nset ytics nomirror\nset key left top\n", script);
  if (latency)
    fputs("set y2label 'us'\nset y2tics\nset logscale y2 10\n", script);
  fputs("plot $rows using 1:2 axes x1y1 with linespoints title 'bandwidth'", script);
  if (latency)
    fputs(", $rows using 1:3 axes x1y2 with linespoints title 'latency p50'"
          ", $rows using 1:4 axes x1y2 with linespoints title 'latency p99'",
          script);
  fputc('\n', script);
}

/* Logarithmic in both directions: a small size is a hundred times slower, and so is a slow path. */
static void plot_paths(FILE *script, const struct bench *bench) {
  for (size_t i = 0; i < bench->paths.open; i++)
    write_rows(script, bench, bench->paths.list[i].name);
  fputs("set ylabel 'bandwidth, GB/s'\nset logscale y 10\nset key left top\nplot", script);
  for (size_t i = 0; i < bench->paths.open; i++)
    fprintf(script, "%s $%s using 1:2 with linespoints title '%s'", i ? "," : "",
            bench->paths.list[i].name, bench->paths.list[i].name);
  fputc('\n', script);
}

int bench_plot(struct gnuplot *plot, const char *title, const struct bench *bench) {
  FILE *script = gnuplot_script(plot, title);
  if (bench->paths.open)
    plot_paths(script, bench);
  else
    plot_one(script, bench);
  return gnuplot_draw(plot);
}
