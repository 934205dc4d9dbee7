/* SPDX-License-Identifier: MIT
 * The screen of haul top: paths and peers in columns, as many as fit, with bars beside them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/screen.h"
#include "top.h"

#define BAR_LEAST 8 /* columns */

#define BOLD   "1"
#define DIM    "2"
#define RED    "1;31"
#define SORTED "1;4" /* underlined */

/* Parts of a bar, each with a character of its own, so that it needs no colours. */
static const struct part {
  char character;
  const char *style, *name;
} parts[] = {
    {'>', "32", "out"}, {'<', "36", "in"}, {')', "33", "served out"}, {'(', "35", "served in"}};

#define PARTS (sizeof parts / sizeof parts[0])

enum { NAME, IDENTITY, PATH, OUT, IN, SERVED_OUT, SERVED_IN, LAST, ERRORS, COLUMNS };

/* A column is shown on terminals of `least` columns or more; for those of rates see choose_columns.
 */
static const struct column {
  const char *heading;
  int width, least;
  bool right;
  enum top_sort sort; /* its heading is marked */
} columns[COLUMNS] = {
    [NAME] = {"PEER", 16, 0, false, SORT_NAME},    [IDENTITY] = {"WHO", 12, 110, false, SORTS},
    [PATH] = {"PATH", 4, 66, false, SORTS},        [OUT] = {"OUT/s", 5, 0, true, SORT_OUT},
    [IN] = {"IN/s", 5, 0, true, SORT_IN},          [SERVED_OUT] = {"SRV OUT", 7, 0, true, SORT_OUT},
    [SERVED_IN] = {"SRV IN", 6, 0, true, SORT_IN}, [LAST] = {"QUEUE", 6, 90, true, SORT_QUEUE},
    [ERRORS] = {"ERR", 4, 58, true, SORT_ERRORS},
};

static double sum(const struct rates *rates) {
  return rates->out + rates->in + rates->served_out + rates->served_in;
}

static bool visible[COLUMNS];

/* Rates of which the node has counted no byte give way first. */
static void choose_columns(const struct drawing *drawing, const struct haul_node_stats *node) {
  static const int leasts[] = {26, 34, 44, 52}; /* of the first rate shown, the second one, … */
  uint64_t bytes[COLUMNS] = {0};
  for (size_t i = 0; i < HAUL_STATS_PATHS; i++) {
    bytes[OUT] |= node->paths[i].bytes_out;
    bytes[IN] |= node->paths[i].bytes_in;
    bytes[SERVED_OUT] |= node->paths[i].served_out;
    bytes[SERVED_IN] |= node->paths[i].served_in;
  }
  for (int i = 0; i < COLUMNS; i++)
    visible[i] = drawing->size.columns >= columns[i].least;
  int rank = 0;
  for (int round = 0; round < 2; round++)
    for (int i = OUT; i <= SERVED_IN; i++)
      if ((bytes[i] == 0) == round)
        visible[i] = drawing->size.columns >= leasts[rank++];
}

/* Columns from the bar on, 0 if it would be too short. */
static int bar_width(const struct drawing *drawing) {
  int used = 0;
  for (int i = 0; i < COLUMNS; i++)
    used += visible[i] ? columns[i].width + (i > 0) : 0;
  int width = drawing->size.columns - used - 2;
  return width < BAR_LEAST ? 0 : width < 60 ? width : 60;
}

/* A bar of `width` columns for the rate `most`. Each part ends where the sum up to it does. */
static void draw_bar(struct drawing *drawing, const struct rates *rates, double most) {
  const double values[PARTS] = {rates->out, rates->in, rates->served_out, rates->served_in};
  int width = bar_width(drawing), drawn = 0;
  double upto = 0;
  for (size_t i = 0; most > 0 && i < PARTS; i++) {
    char text[64] = "";
    upto += values[i];
    int end = (int)(upto / most * width + 0.5);
    for (int j = 0; drawn < end && drawn < width; j++, drawn++) {
      text[j] = parts[i].character;
      text[j + 1] = '\0';
    }
    drawing_text(drawing, parts[i].style, text);
  }
}

static void draw_cells(struct drawing *drawing, const char *const cells[COLUMNS],
                       const char *const styles[COLUMNS]) {
  for (int i = 0; i < COLUMNS; i++) {
    if (!visible[i])
      continue;
    drawing_text(drawing, NULL, i > 0 ? " " : "");
    drawing_cell(drawing, styles[i], columns[i].width, columns[i].right, cells[i]);
  }
  drawing_text(drawing, NULL, "  ");
}

/* `most`: what a whole bar stands for; `sort`: SORTS heads the paths. */
static void draw_heading(struct drawing *drawing, double most, enum top_sort sort) {
  const char *cells[COLUMNS], *styles[COLUMNS];
  char scale[64];
  for (int i = 0; i < COLUMNS; i++) {
    cells[i] = columns[i].heading;
    styles[i] = (sort != SORTS && columns[i].sort == sort) ||
                        (sort == SORT_BUSY && i >= OUT && i <= SERVED_IN)
                    ? SORTED
                    : BOLD;
  }
  if (sort == SORTS) {
    cells[NAME] = "PATH";
    cells[IDENTITY] = cells[PATH] = "";
    cells[LAST] = "SLICES";
  }
  draw_cells(drawing, cells, styles);
  snprintf(scale, sizeof scale, "0 to %sB/s", short_rate(most).text);
  if (most > 0 && bar_width(drawing) >= (int)strlen(scale))
    drawing_text(drawing, DIM, scale);
  drawing_next_line(drawing);
}

static void draw_row(struct drawing *drawing, const char *const names[3], const struct rates *rates,
                     const char *last, double most) {
  const struct unit_text out = short_rate(rates->out), in = short_rate(rates->in),
                         served_out = short_rate(rates->served_out),
                         served_in = short_rate(rates->served_in),
                         errors = short_number(rates->errors);
  const char *const cells[COLUMNS] = {names[0],       names[1], names[2],
                                      out.text,       in.text,  served_out.text,
                                      served_in.text, last,     errors.text};
  const char *const styles[COLUMNS] = {[OUT] = parts[0].style,
                                       [IN] = parts[1].style,
                                       [SERVED_OUT] = parts[2].style,
                                       [SERVED_IN] = parts[3].style,
                                       [ERRORS] = rates->errors ? RED : NULL};
  draw_cells(drawing, cells, styles);
  draw_bar(drawing, rates, most);
  drawing_next_line(drawing);
}

/* The paths of the node, with their slices in place of the queue. */
static void draw_paths(struct drawing *drawing, const struct snapshot *now,
                       const struct snapshot *last, double seconds) {
  struct rates rates[HAUL_STATS_PATHS] = {0};
  double most = 0;
  for (size_t i = 0; i < HAUL_STATS_PATHS && now->node.paths[i].path[0]; i++) {
    add_rates(&rates[i], &now->node.paths[i], &last->node.paths[i], seconds);
    most = sum(&rates[i]) > most ? sum(&rates[i]) : most;
  }
  draw_heading(drawing, most, SORTS);
  for (size_t i = 0; i < HAUL_STATS_PATHS && now->node.paths[i].path[0]; i++) {
    const char *const names[] = {now->node.paths[i].path, "", ""};
    draw_row(drawing, names, &rates[i], short_rate(rates[i].slices).text, most);
  }
}

static void draw_peers(struct drawing *drawing, const struct line *lines, size_t count, size_t room,
                       struct top_order order) {
  double most = 0;
  for (size_t i = 0; i < count; i++)
    most = sum(&lines[i].rates) > most ? sum(&lines[i].rates) : most;
  draw_heading(drawing, most, order.by);
  size_t shown = count <= room ? count : room > 0 ? room - 1 : 0;
  for (size_t i = 0; i < shown; i++) {
    const struct haul_peer_stats *peer = lines[i].peer;
    const char *const names[] = {peer->name, peer->identity[0] ? peer->identity : "-",
                                 lines[i].path};
    draw_row(drawing, names, &lines[i].rates, short_number(peer->transfers).text, most);
  }
  if (shown < count && room > 0) {
    char more[64];
    snprintf(more, sizeof more, "and %zu more", count - shown);
    drawing_text(drawing, DIM, more);
    drawing_next_line(drawing);
  }
}

static void draw_head(struct drawing *drawing, const struct haul_node_stats *node) {
  char text[256];
  drawing_text(drawing, BOLD, node->name);
  snprintf(text, sizeof text, "  up %s  peers %u  regions %u  transfers %u",
           clock_text((int64_t)node->uptime_ns).text, node->peers, node->published,
           node->transfers);
  drawing_text(drawing, NULL, text);
  snprintf(text, sizeof text, "  failed %" PRIu64, node->failed);
  drawing_text(drawing, node->failed ? RED : NULL, text);
  snprintf(text, sizeof text, "  retried %" PRIu64, node->retried);
  drawing_text(drawing, NULL, text);
  drawing_next_line(drawing);
}

/* The last line: the keys, and the parts of a bar. */
static void draw_foot(struct drawing *drawing, struct top_order order) {
  char text[128];
  snprintf(text, sizeof text, "sorted by %s%s (s next, r reverse, q quit)", sort_name(order.by),
           order.reversed ? ", reversed" : "");
  while (drawing->row < drawing->size.rows - 1)
    drawing_next_line(drawing);
  drawing_text(drawing, DIM, text);
  for (size_t i = 0; bar_width(drawing) > 0 && i < PARTS; i++) {
    snprintf(text, sizeof text, "  %c %s", parts[i].character, parts[i].name);
    drawing_text(drawing, parts[i].style, text);
  }
  drawing_next_line(drawing);
}

static int path_count(const struct haul_node_stats *node) {
  int count = 0;
  while (count < HAUL_STATS_PATHS && node->paths[count].path[0])
    count++;
  return count;
}

int top_draw(const struct snapshot *now, const struct snapshot *last, struct top_order order,
             bool colors) {
  double seconds = (double)(now->at - last->at) / 1e9;
  struct drawing drawing;
  drawing_begin(&drawing, colors);
  choose_columns(&drawing, &now->node);
  struct line *lines = sorted_lines(now, last, seconds, order);
  int rows = drawing.size.rows, fixed = 3 + path_count(&now->node);
  bool spacious = rows >= fixed + 6; /* empty lines, and the last one */
  int room = rows - fixed - (spacious ? 3 : 0);
  draw_head(&drawing, &now->node);
  if (spacious)
    drawing_next_line(&drawing);
  draw_paths(&drawing, now, last, seconds);
  if (spacious)
    drawing_next_line(&drawing);
  draw_peers(&drawing, lines, now->count, room > 0 ? (size_t)room : 0, order);
  if (spacious)
    draw_foot(&drawing, order);
  free(lines);
  return drawing_end(&drawing);
}
