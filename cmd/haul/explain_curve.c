/* SPDX-License-Identifier: MIT */
#include <stdbool.h>
#include <string.h>

#include "common/gnuplot.h"
#include "common/output.h"
#include "common/text.h"
#include "explain.h"

#define TRIALS 6 /* for each path and size; the library needs four */

int curve_explain(const struct curve_input *input, uint64_t bytes, struct curve_point *point) {
  point->bytes = bytes;
  point->count = HAUL_PATHS_MAX;
  int result = haul_explain(input->local, input->remote, input->operation, bytes, &input->options,
                            point->paths, &point->count);
  if (point->count > HAUL_PATHS_MAX)
    point->count = HAUL_PATHS_MAX;
  return result;
}

static bool is_same(const struct curve_point *a, const struct curve_point *b) {
  return a->paths[0].chosen == b->paths[0].chosen &&
         strcmp(a->paths[0].name, b->paths[0].name) == 0 &&
         strcmp(a->paths[0].send, b->paths[0].send) == 0;
}

/* Bisects for the last size below `below` with the choice of `from`; `below` has another one. */
static int find_end(const struct curve_input *input, const struct curve_point *from, uint64_t below,
                    struct curve_point *end) {
  *end = *from;
  while (end->bytes + 1 < below) {
    uint64_t middle = end->bytes + (below - end->bytes) / 2;
    struct curve_point point;
    int result = curve_explain(input, middle, &point);
    if (result)
      return result;
    if (is_same(from, &point))
      *end = point;
    else
      below = middle;
  }
  return 0;
}

/* Adds the ranges that end between the previous point and this one; extends the last range. */
static int add_parts(const struct curve_input *input, const struct curve_point *point,
                     struct curve *curve) {
  struct curve_switch *part = &curve->parts[curve->switches - 1];
  while (!is_same(&part->from, point) && curve->switches < CURVE_SWITCHES) {
    int result = find_end(input, &part->to, point->bytes, &part->to);
    if (result == 0)
      result = curve_explain(input, part->to.bytes + 1, &part[1].from);
    if (result)
      return result;
    part++;
    part->to = part->from;
    curve->switches++;
  }
  part->to = *point;
  return 0;
}

/* The next size: twice as large, at last the whole region; 0: no further size. */
static uint64_t next_size(const struct curve_input *input, uint64_t bytes) {
  uint64_t most = input->most < CURVE_MOST ? input->most : CURVE_MOST;
  if (bytes == 0)
    return 1;
  return bytes >= most ? 0 : bytes * 2 < most ? bytes * 2 : most;
}

int curve_make(const struct curve_input *input, struct curve *curve) {
  uint64_t bytes = 0;
  curve->points = curve->switches = 0;
  while ((bytes = next_size(input, bytes)) && curve->points < CURVE_POINTS) {
    struct curve_point *point = &curve->at[curve->points++];
    int result = curve_explain(input, bytes, point);
    if (result)
      return result;
    if (curve->switches == 0)
      curve->parts[curve->switches++] = (struct curve_switch){*point, *point};
    result = add_parts(input, point, curve);
    if (result)
      return result;
  }
  return 0;
}

static int read_some(const struct curve_input *input, const char *path, uint64_t bytes) {
  struct haul_transfer_options options = input->options;
  struct haul_piece piece = {0, 0, bytes};
  options.only = path;
  for (unsigned i = 0; i < TRIALS; i++) {
    haul_transfer *transfer;
    int result = haul_read(input->local, input->remote, &piece, 1, &options, &transfer);
    if (result == 0)
      result = haul_transfer_wait(transfer, HAUL_FOREVER); /* the transfer has a deadline */
    else
      transfer = NULL;
    haul_transfer_release(transfer);
    if (result)
      return result;
  }
  return 0;
}

int curve_measure(const struct curve_input *input, bool *known) {
  struct curve_point point;
  uint64_t bytes = 0;
  int result = 0;
  *known = true;
  while (result == 0 && (bytes = next_size(input, bytes))) {
    result = curve_explain(input, bytes, &point);
    for (size_t i = 0; result == 0 && i < point.count; i++)
      if (point.paths[i].open)
        result = read_some(input, point.paths[i].name, bytes);
    if (result == 0)
      result = curve_explain(input, bytes, &point);
    *known &= point.paths[0].measured || !point.paths[0].chosen;
  }
  return result;
}

#define ROW_EVERY 3 /* points, so that sizes grow by a factor of 8 */

static const struct haul_path *path_named(const struct curve_point *point, const char *name) {
  for (size_t i = 0; i < point->count; i++)
    if (strcmp(point->paths[i].name, name) == 0)
      return &point->paths[i];
  return NULL;
}

/* The names of paths open for some size; returns their number. */
static size_t open_paths(const struct curve *curve, const char *names[HAUL_PATHS_MAX]) {
  size_t count = 0;
  for (size_t i = 0; i < curve->points; i++)
    for (size_t j = 0; j < curve->at[i].count; j++) {
      const struct haul_path *path = &curve->at[i].paths[j];
      size_t at = 0;
      while (at < count && strcmp(names[at], path->name) != 0)
        at++;
      if (path->open && at == count)
        names[count++] = path->name;
    }
  return count;
}

bool curve_is_open(const struct curve *curve) {
  const char *names[HAUL_PATHS_MAX];
  return open_paths(curve, names) > 0;
}

/* Sizes at which the choice changes are exact: they are not rounded. */
static struct unit_text exact_text(uint64_t bytes) {
  struct unit_text text = size_text(bytes);
  if (bytes % 1024 && bytes > 1024)
    snprintf(text.text, sizeof(text.text), "%llu B", (unsigned long long)bytes);
  return text;
}

static void print_switches(const struct curve *curve) {
  struct table table = table_begin("rrllr", "FROM", "UP TO", "PATH", "SEND", "COST");
  for (size_t i = 0; i < curve->switches; i++) {
    const struct curve_switch *part = &curve->parts[i];
    const struct haul_path *first = &part->from.paths[0], *last = &part->to.paths[0];
    char cost[80];
    snprintf(cost, sizeof(cost), "%s .. %s", time_text(first->cost_ns).text,
             time_text(last->cost_ns).text);
    table_row(&table, exact_text(part->from.bytes).text, exact_text(part->to.bytes).text,
              first->chosen ? first->name : "none", first->chosen ? first->send : "-",
              first->chosen ? cost : "-");
  }
  table_end(&table);
}

static void print_point(const struct curve_point *point, const char *const *names, size_t count) {
  printf("%10s", size_text(point->bytes).text);
  for (size_t i = 0; i < count; i++) {
    const struct haul_path *path = path_named(point, names[i]);
    char cell[64] = "-";
    if (path && path->open)
      snprintf(cell, sizeof(cell), "%s%s%s", time_text(path->cost_ns).text,
               path->measured ? "" : " est.", path->chosen ? " *" : "");
    printf("  %*s", i + 1 < count ? -18 : 0, cell);
  }
  putchar('\n');
}

void curve_print(const struct curve *curve) {
  const char *names[HAUL_PATHS_MAX];
  size_t count = open_paths(curve, names);
  print_switches(curve);
  printf("\n%10s", "SIZE");
  for (size_t i = 0; i < count; i++)
    printf("  %*s", i + 1 < count ? -18 : 0, names[i]);
  putchar('\n');
  for (size_t i = 0; i < curve->points; i++)
    if (i % ROW_EVERY == 0 || i + 1 == curve->points)
      print_point(&curve->at[i], names, count);
}

static void point_to_json(const struct curve_point *point, struct json *json) {
  json_object(json, NULL);
  json_number(json, "bytes", point->bytes);
  json_array(json, "paths");
  for (size_t i = 0; i < point->count; i++) {
    const struct haul_path *path = &point->paths[i];
    if (!path->open)
      continue;
    json_object(json, NULL);
    json_text(json, "name", path->name);
    json_bool(json, "chosen", path->chosen);
    json_text(json, "send", path->send);
    json_real(json, "cost_ns", path->cost_ns);
    json_bool(json, "measured", path->measured);
    json_end_object(json);
  }
  json_end_array(json);
  json_end_object(json);
}

void curve_to_json(const struct curve *curve, struct json *json) {
  json_array(json, "switches");
  for (size_t i = 0; i < curve->switches; i++) {
    const struct curve_switch *part = &curve->parts[i];
    const struct haul_path *path = &part->from.paths[0];
    json_object(json, NULL);
    json_number(json, "from", part->from.bytes);
    json_number(json, "up_to", part->to.bytes);
    if (path->chosen) {
      json_text(json, "path", path->name);
      json_text(json, "send", path->send);
    }
    json_end_object(json);
  }
  json_end_array(json);
  json_array(json, "curve");
  for (size_t i = 0; i < curve->points; i++)
    point_to_json(&curve->at[i], json);
  json_end_array(json);
}

static void write_rows(const struct curve *curve, const char *const *names, size_t count,
                       FILE *script) {
  fputs("$rows << END_OF_ROWS\n", script);
  for (size_t i = 0; i < curve->points; i++) {
    fprintf(script, "%llu", (unsigned long long)curve->at[i].bytes);
    for (size_t j = 0; j < count; j++) {
      const struct haul_path *path = path_named(&curve->at[i], names[j]);
      if (path && path->open)
        fprintf(script, " %g", path->cost_ns / 1000);
      else
        fputs(" NaN", script);
    }
    fputc('\n', script);
  }
  fputs("END_OF_ROWS\n", script);
}

/* Draws a line where the choice changes, labelled with the next path. */
static void write_switches(const struct curve *curve, FILE *script) {
  for (size_t i = 0; i < curve->switches; i++) {
    const struct curve_switch *part = &curve->parts[i];
    unsigned long long from = (unsigned long long)part->from.bytes;
    if (i > 0)
      fprintf(script, "set arrow from %llu, graph 0 to %llu, graph 1 nohead dashtype 2\n", from,
              from);
    if (part->from.paths[0].chosen)
      fprintf(script, "set label '%s, %s' at %llu, graph %.2f offset 1 noenhanced\n",
              part->from.paths[0].name, part->from.paths[0].send, from,
              0.97 - 0.05 * (double)(i % 8));
  }
}

int curve_plot(const struct curve *curve, const char *title, struct gnuplot *plot) {
  const char *names[HAUL_PATHS_MAX];
  size_t count = open_paths(curve, names);
  FILE *script = gnuplot_script(plot, title);
  write_rows(curve, names, count, script);
  fputs("set logscale y 10\nset ylabel 'us'\nset key right bottom\n", script);
  write_switches(curve, script);
  fputs("plot", script);
  for (size_t i = 0; i < count; i++)
    fprintf(script, "%s $rows using 1:%zu with linespoints title '%s'", i ? "," : "", i + 2,
            names[i]);
  fputc('\n', script);
  return gnuplot_draw(plot);
}
