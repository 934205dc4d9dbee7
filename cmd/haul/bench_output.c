/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "common/gnuplot.h"
#include "common/output.h"
#include "common/text.h"

double bench_rate(const struct bench_row *row) {
  return gigabytes_per_second(row->size * row->count, row->elapsed);
}

static void print_text_heading(const struct bench *bench) {
  double seconds = (double)bench->duration / 1e9;
  if (bench->operation == BENCH_MESSAGE)
    printf("messages to %s, %.3g s a size, latency of the round trip\n", bench->address, seconds);
  else
    printf("%s, %s and '%s' at %s on %s, %u in flight, %.3g s a size\n", bench->operation_name,
           place_text(bench->place).text, bench->region,
           place_text(haul_remote_place(bench->session.remote)).text, bench->address, bench->depth,
           seconds);
  printf("%12s %-8s %10s %9s %9s %9s %9s %9s %9s\n", "SIZE", "PATH", "COUNT", "GB/S", "P50 us",
         "P90 us", "P99 us", "P99.9 us", "MAX us");
}

void bench_print_heading(const struct bench *bench, enum bench_form form) {
  if (form == FORM_TEXT)
    print_text_heading(bench);
  if (form == FORM_CSV)
    printf("bytes,path,count,gb_per_second,p50_us,p90_us,p99_us,p999_us,max_us\n");
  fflush(stdout);
}

static void print_text_row(const struct bench_row *row) {
  const struct bench_latency *latency = &row->latency;
  printf("%12s %-8s %10llu %9.3f", size_text(row->size).text, row->path,
         (unsigned long long)row->count, bench_rate(row));
  if (latency->count)
    printf(" %9.2f %9.2f %9.2f %9.2f %9.2f\n", latency->p50, latency->p90, latency->p99,
           latency->p999, latency->max);
  else
    printf(" %9s %9s %9s %9s %9s\n", "-", "-", "-", "-", "-");
}

static void print_csv_row(const struct bench_row *row) {
  const struct bench_latency *latency = &row->latency;
  printf("%llu,%s,%llu,%.6g", (unsigned long long)row->size, row->path,
         (unsigned long long)row->count, bench_rate(row));
  if (latency->count)
    printf(",%.3f,%.3f,%.3f,%.3f,%.3f\n", latency->p50, latency->p90, latency->p99, latency->p999,
           latency->max);
  else
    printf(",,,,,\n");
}

void bench_print_row(const struct bench_row *row, enum bench_form form) {
  if (form == FORM_TEXT)
    print_text_row(row);
  if (form == FORM_CSV)
    print_csv_row(row);
  fflush(stdout);
}

static void latency_to_json(const struct bench_latency *latency, struct json *json) {
  if (!latency->count) {
    json_null(json, "latency_us");
    return;
  }
  json_object(json, "latency_us");
  json_number(json, "samples", latency->count);
  json_real(json, "p50", latency->p50);
  json_real(json, "p90", latency->p90);
  json_real(json, "p99", latency->p99);
  json_real(json, "p99.9", latency->p999);
  json_real(json, "max", latency->max);
  json_end_object(json);
}

static void row_to_json(const struct bench_row *row, struct json *json) {
  json_object(json, NULL);
  json_number(json, "bytes", row->size);
  json_text(json, "path", row->path);
  json_number(json, "count", row->count);
  json_real(json, "seconds", (double)row->elapsed / 1e9);
  json_real(json, "gb_per_second", bench_rate(row));
  latency_to_json(&row->latency, json);
  json_end_object(json);
}

static void closed_to_json(const struct bench_paths *paths, struct json *json) {
  json_array(json, "closed");
  for (size_t i = paths->open; i < paths->count; i++) {
    json_object(json, NULL);
    json_text(json, "path", paths->list[i].name);
    json_text(json, "reason", paths->list[i].reason);
    json_end_object(json);
  }
  json_end_array(json);
}

static void setting_to_json(const struct bench *bench, struct json *json) {
  json_text(json, "operation", bench->operation_name);
  json_text(json, "node", bench->address);
  if (bench->operation == BENCH_MESSAGE)
    return;
  json_text(json, "region", bench->region);
  json_text(json, "local_place", place_text(bench->place).text);
  json_text(json, "remote_place", place_text(haul_remote_place(bench->session.remote)).text);
  json_number(json, "depth", bench->depth);
  if (bench->paths.count)
    closed_to_json(&bench->paths, json);
}

void bench_print_end(const struct bench *bench, enum bench_form form) {
  if (form != FORM_JSON)
    return;
  struct json json = json_open();
  setting_to_json(bench, &json);
  json_array(&json, "results");
  for (size_t i = 0; i < bench->row_count; i++)
    row_to_json(&bench->rows[i], &json);
  json_end_array(&json);
  json_end_object(&json);
}

static void write_row(FILE *script, const struct bench_row *row) {
  fprintf(script, "%llu %g", (unsigned long long)row->size, bench_rate(row));
  if (row->latency.count)
    fprintf(script, " %g %g\n", row->latency.p50, row->latency.p99);
  else
    fputs(" NaN NaN\n", script);
}

/* Writes the rows of one path; NULL: all. */
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

/* Both axes are logarithmic, as rates differ by factors of a hundred. */
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
