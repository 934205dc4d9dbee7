/* SPDX-License-Identifier: MIT
 * The graph of `haul info --graph` as SVG. Places stand in a left column and NICs in a right one, a
 * band for each NUMA node. The lines between them have the space between the columns for
 * themselves, so that nothing covers a text. Below, the paths lead to the other node. */
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/text.h"
#include "info_graph.h"

/* Pixels. */
#define WIDTH      880
#define MARGIN     20
#define LETTER     7.3 /* of a monospaced font of 12 pixels, a little more than most have */
#define LINE       15
#define PADDING    8
#define BOX_WIDTH  310
#define BOX_LINES  3
#define BOX_HEIGHT (BOX_LINES * LINE + 2 * PADDING - 4)
#define GAP        12
#define HEAD       26  /* of a band */
#define END_WIDTH  150 /* of the ends of a path */
#define PATH_X     (2 * MARGIN + END_WIDTH)
#define PATH_WIDTH (WIDTH - 2 * PATH_X)

struct svg {
  FILE *out;
  int y; /* where the next part begins */
};

static void write_text(FILE *out, const char *text, size_t most) {
  size_t length = strlen(text);
  for (size_t i = 0; i < length && i < most; i++) {
    char character = text[i];
    if (length > most && i + 3 >= most)
      character = '.';
    switch (character) {
    case '&':
      fputs("&amp;", out);
      break;
    case '<':
      fputs("&lt;", out);
      break;
    case '>':
      fputs("&gt;", out);
      break;
    case '"':
      fputs("&quot;", out);
      break;
    default: /* XML has no control characters, and the width of others is unknown */
      fputc(character >= ' ' && character < 0x7f ? character : '?', out);
    }
  }
}

/* A line of text in `width` pixels; a longer one ends with "...". */
static void draw_line(const struct svg *svg, int x, int y, int width, const char *kind,
                      const char *text) {
  fprintf(svg->out, "<text class=\"%s\" x=\"%d\" y=\"%d\">", kind, x, y);
  write_text(svg->out, text, (size_t)(width / LETTER));
  fputs("</text>\n", svg->out);
}

static void draw_rectangle(const struct svg *svg, const char *kind, int x, int y, int width,
                           int height) {
  fprintf(svg->out, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>\n",
          kind, x, y, width, height);
}

static int box_x(const struct graph_box *box) {
  return box->nic ? WIDTH - 2 * MARGIN - BOX_WIDTH : 2 * MARGIN;
}

static void draw_box(const struct svg *svg, const struct graph_box *box, int y) {
  int x = box_x(box), width = BOX_WIDTH - 2 * PADDING;
  const char *const lines[BOX_LINES] = {box->name, box->detail, box->note};
  draw_rectangle(svg, box->usable ? box->nic ? "box nic" : "box place" : "box closed", x, y,
                 BOX_WIDTH, BOX_HEIGHT);
  for (int i = 0; i < BOX_LINES; i++)
    draw_line(svg, x + PADDING, y + PADDING + 9 + i * LINE, width, i == 0 ? "name" : "detail",
              lines[i]);
}

/* The next larger NUMA node than `after`; -1 is the unknown one. */
static bool next_numa(const struct graph *graph, int after, int *numa) {
  bool found = false;
  for (size_t i = 0; i < graph->count; i++) {
    int one = graph->boxes[i].numa;
    if (one > after && (!found || one < *numa)) {
      *numa = one;
      found = true;
    }
  }
  return found;
}

/* Draws the boxes of a NUMA node and stores their places. */
static void draw_band(struct svg *svg, const struct graph *graph, int numa, int *places) {
  int used[2] = {0, 0};
  char name[32] = "NUMA node unknown";
  if (numa >= 0)
    snprintf(name, sizeof name, "NUMA node %d", numa);
  for (size_t i = 0; i < graph->count; i++)
    if (graph->boxes[i].numa == numa)
      places[i] = svg->y + HEAD + used[graph->boxes[i].nic]++ * (BOX_HEIGHT + GAP);
  int most = used[0] > used[1] ? used[0] : used[1];
  int height = HEAD + most * (BOX_HEIGHT + GAP);
  draw_rectangle(svg, "band", MARGIN, svg->y, WIDTH - 2 * MARGIN, height);
  draw_line(svg, MARGIN + PADDING, svg->y + 17, BOX_WIDTH, "head", name);
  for (size_t i = 0; i < graph->count; i++)
    if (graph->boxes[i].numa == numa)
      draw_box(svg, &graph->boxes[i], places[i]);
  svg->y += height + GAP;
}

static void draw_links(const struct svg *svg, const struct graph *graph, const int *places) {
  for (size_t i = 0; i < graph->count; i++)
    for (size_t j = 0; j < graph->count; j++)
      if (!graph->boxes[i].nic && graph_link_of(graph, i, j)->chosen)
        fprintf(svg->out, "<line class=\"link\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n",
                2 * MARGIN + BOX_WIDTH, places[i] + BOX_HEIGHT / 2, WIDTH - 2 * MARGIN - BOX_WIDTH,
                places[j] + BOX_HEIGHT / 2);
}

/* The length of the next line of a text of `most` letters, cut at a blank if there is one. */
static size_t line_length(const char *text, size_t most) {
  size_t length = strlen(text);
  if (length <= most)
    return length;
  for (size_t i = most; i > most / 2; i--)
    if (text[i] == ' ')
      return i;
  return most;
}

/* Draws a text over as many lines as it needs; returns the height. */
static int draw_wrapped(const struct svg *svg, int x, int y, int width, const char *text) {
  int height = 0;
  while (*text) {
    char line[256];
    size_t length = line_length(text, (size_t)(width / LETTER));
    snprintf(line, sizeof line, "%.*s", (int)length, text);
    draw_line(svg, x, y + height, width, "detail", line);
    height += LINE;
    text += length;
    text += strspn(text, " ");
  }
  return height;
}

static int draw_path(const struct svg *svg, const struct graph_path *path, int y) {
  static const char *const kinds[] = {"chosen", "open", "closed"};
  char label[96];
  snprintf(label, sizeof label, "%s: %s", path->name, path->label);
  draw_line(svg, PATH_X + PADDING, y + LINE, PATH_WIDTH - 2 * PADDING, "name", label);
  fprintf(svg->out, "<line class=\"path %s\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n",
          kinds[path->state], PATH_X - MARGIN, y + LINE + 8, PATH_X + PATH_WIDTH + MARGIN,
          y + LINE + 8);
  return 2 * LINE + 8 +
         draw_wrapped(svg, PATH_X + PADDING, y + 2 * LINE + 8, PATH_WIDTH - 2 * PADDING, path->why);
}

static void draw_end(const struct svg *svg, int x, int y, int height, const char *name,
                     const char *detail) {
  draw_rectangle(svg, "box place", x, y, END_WIDTH, height);
  draw_line(svg, x + PADDING, y + height / 2, END_WIDTH - 2 * PADDING, "name", name);
  draw_line(svg, x + PADDING, y + height / 2 + LINE, END_WIDTH - 2 * PADDING, "detail", detail);
}

/* Draws the paths of one place and returns the index of the next place's. */
static size_t draw_place_paths(struct svg *svg, const struct graph *graph, size_t first) {
  size_t i = first;
  int y = svg->y;
  for (; i < graph->path_count && strcmp(graph->paths[i].from, graph->paths[first].from) == 0; i++)
    y += draw_path(svg, &graph->paths[i], y);
  draw_end(svg, MARGIN, svg->y, y - svg->y, graph->paths[first].from, "this host");
  draw_end(svg, WIDTH - MARGIN - END_WIDTH, svg->y, y - svg->y, graph->peer, graph->peer_detail);
  svg->y = y + GAP;
  return i;
}

static const char style[] =
    "text{font-family:'DejaVu Sans Mono','Liberation Mono',monospace;font-size:12px;fill:#222}"
    ".title{font-size:15px;font-weight:bold}.head{fill:#666}.name{font-weight:bold}"
    ".page{fill:#fff}.band{fill:#f4f4f6;stroke:#ccc}.box{fill:#fff;stroke:#777}"
    ".place{stroke:#258;fill:#eef5fc}.nic{stroke:#285;fill:#effaf2}"
    ".closed{stroke:#a33;stroke-dasharray:5 4}.link{stroke:#285;stroke-width:1.5}"
    ".path{stroke-width:1.5;stroke:#777}.path.chosen{stroke:#285;stroke-width:4}"
    ".path.closed{stroke:#a33}";

/* The height is known at the end, so the drawing is kept until then. */
void graph_svg(const struct graph *graph, FILE *out) {
  char *body = NULL;
  size_t length = 0;
  struct svg svg = {open_memstream(&body, &length), MARGIN};
  int *places = must_realloc(NULL, graph->count * sizeof *places);
  if (!svg.out)
    exit(fail_because(NULL, "out of memory"));
  fprintf(svg.out, "<text class=\"title\" x=\"%d\" y=\"%d\">", MARGIN, svg.y + 12);
  write_text(svg.out, graph->title, 90);
  fputs("</text>\n", svg.out);
  svg.y += 30;
  for (int numa = -1, after = -2; next_numa(graph, after, &numa); after = numa)
    draw_band(&svg, graph, numa, places);
  draw_links(&svg, graph, places);
  svg.y += GAP;
  for (size_t i = 0; i < graph->path_count;)
    i = draw_place_paths(&svg, graph, i);
  free(places);
  if (fclose(svg.out))
    exit(fail_because(NULL, "out of memory"));
  fprintf(out,
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
          "viewBox=\"0 0 %d %d\">\n<style>%s</style>\n",
          WIDTH, svg.y, WIDTH, svg.y, style);
  fprintf(out, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n%s</svg>\n", WIDTH, svg.y, body);
  free(body);
}
