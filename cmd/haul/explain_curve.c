/* SPDX-License-Identifier: MIT */
#include <stdbool.h>
#include <string.h>

#include "explain.h"

#define TRIALS 6 /* by each path and size: the library believes four */

static int explain_point(const struct curve_asked *asked, uint64_t bytes,
                         struct curve_point *point) {
  point->bytes = bytes;
  point->count = HAUL_PATHS_MAX;
  int result = haul_explain(asked->local, asked->remote, asked->operation, bytes, &asked->options,
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

/* The last size from `from` on, and below `below`, that is as `from` is; `below` is not. */
static int find_end(const struct curve_asked *asked, const struct curve_point *from, uint64_t below,
                    struct curve_point *end) {
  *end = *from;
  while (end->bytes + 1 < below) {
    uint64_t middle = end->bytes + (below - end->bytes) / 2;
    struct curve_point point;
    int result = explain_point(asked, middle, &point);
    if (result)
      return result;
    if (is_same(from, &point))
      *end = point;
    else
      below = middle;
  }
  return 0;
}

/* Adds the parts that end between this point and the one before; the last part is open. */
static int add_parts(const struct curve_asked *asked, const struct curve_point *point,
                     struct curve *curve) {
  struct curve_switch *part = &curve->parts[curve->switches - 1];
  while (!is_same(&part->from, point) && curve->switches < CURVE_SWITCHES) {
    int result = find_end(asked, &part->to, point->bytes, &part->to);
    if (result == 0)
      result = explain_point(asked, part->to.bytes + 1, &part[1].from);
    if (result)
      return result;
    part++;
    part->to = part->from;
    curve->switches++;
  }
  part->to = *point;
  return 0;
}

/* The size after this one: twice as large, and at last all that there is; 0: there is none. */
static uint64_t next_size(const struct curve_asked *asked, uint64_t bytes) {
  uint64_t most = asked->most < CURVE_MOST ? asked->most : CURVE_MOST;
  if (bytes == 0)
    return 1;
  return bytes >= most ? 0 : bytes * 2 < most ? bytes * 2 : most;
}

int curve_make(const struct curve_asked *asked, struct curve *curve) {
  uint64_t bytes = 0;
  curve->points = curve->switches = 0;
  while ((bytes = next_size(asked, bytes)) && curve->points < CURVE_POINTS) {
    struct curve_point *point = &curve->at[curve->points++];
    int result = explain_point(asked, bytes, point);
    if (result)
      return result;
    if (curve->switches == 0)
      curve->parts[curve->switches++] = (struct curve_switch){*point, *point};
    result = add_parts(asked, point, curve);
    if (result)
      return result;
  }
  return 0;
}

/* ---- Measuring ---- */

static int read_some(const struct curve_asked *asked, const char *path, uint64_t bytes) {
  struct haul_transfer_options options = asked->options;
  struct haul_piece piece = {0, 0, bytes};
  options.only = path;
  for (unsigned i = 0; i < TRIALS; i++) {
    haul_transfer *transfer;
    int result = haul_read(asked->local, asked->remote, &piece, 1, &options, &transfer);
    if (result == 0)
      result = haul_transfer_wait(transfer, HAUL_FOREVER); /* it has a deadline of its own */
    else
      transfer = NULL;
    haul_transfer_release(transfer);
    if (result)
      return result;
  }
  return 0;
}

int curve_measure(const struct curve_asked *asked, bool *told) {
  struct curve_point point;
  uint64_t bytes = 0;
  int result = 0;
  *told = true;
  while (result == 0 && (bytes = next_size(asked, bytes))) {
    result = explain_point(asked, bytes, &point);
    for (size_t i = 0; result == 0 && i < point.count; i++)
      if (point.paths[i].open)
        result = read_some(asked, point.paths[i].name, bytes);
    if (result == 0)
      result = explain_point(asked, bytes, &point);
    *told &= point.paths[0].measured || !point.paths[0].chosen;
  }
  return result;
}
