/* SPDX-License-Identifier: MIT
 *
 * The picture of a sweep: bandwidth and latency over size.
 */
#include "bench.h"
#include "common/gnuplot.h"

static void write_rows(FILE *script, const struct bench_row *rows, size_t count) {
  fputs("$rows << END_OF_ROWS\n", script);
  for (size_t i = 0; i < count; i++) {
    const struct bench_row *row = &rows[i];
    fprintf(script, "%llu %g", (unsigned long long)row->size, bench_rate(row));
    if (row->latency.count)
      fprintf(script, " %g %g\n", row->latency.p50, row->latency.p99);
    else
      fputs(" NaN NaN\n", script);
  }
  fputs("END_OF_ROWS\n", script);
}

int bench_plot(struct gnuplot *plot, const char *title, const struct bench_row *rows,
               size_t count) {
  FILE *script = gnuplot_script(plot, title);
  bool latency = rows[0].latency.count > 0;
  write_rows(script, rows, count);
  fputs("set ylabel 'GB/s'\nset ytics nomirror\nset key left top\n", script);
  if (latency)
    fputs("set y2label 'us'\nset y2tics\nset logscale y2 10\n", script);
  fputs("plot $rows using 1:2 axes x1y1 with linespoints title 'bandwidth'", script);
  if (latency)
    fputs(", $rows using 1:3 axes x1y2 with linespoints title 'latency p50'"
          ", $rows using 1:4 axes x1y2 with linespoints title 'latency p99'",
          script);
  fputs("\n", script);
  return gnuplot_draw(plot);
}
