/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "text.h"

#define REDRAW_NS     100000000
#define BAR_CELLS     24
#define COLUMNS_LEAST 20

/* One terminal has one bar. */
static bool on_screen;

void progress_begin(struct progress *progress, const char *label, uint64_t total, bool quiet) {
  *progress = (struct progress){.total = total, .started = now_ns()};
  snprintf(progress->label, sizeof(progress->label), "%s", label);
  text_clean(progress->label);
  progress->drawn = progress->started + 4 * REDRAW_NS;
  progress->shown = !quiet && isatty(STDERR_FILENO);
}

struct bar {
  char text[BAR_CELLS + 1];
};

static struct bar bar_of(double part) {
  struct bar bar;
  int full = part >= 1 ? BAR_CELLS : (int)(part * BAR_CELLS);
  for (int i = 0; i < BAR_CELLS; i++)
    bar.text[i] = i < full ? '#' : '.';
  bar.text[BAR_CELLS] = '\0';
  return bar;
}

/* Estimates the remaining time if `part` took `elapsed`. */
static struct unit_text remaining_text(double part, int64_t elapsed) {
  struct unit_text unknown = {"?"};
  return part > 0 ? clock_text((int64_t)((double)elapsed * (1 - part) / part)) : unknown;
}

static void show(const char *line) {
  struct winsize size;
  bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= COLUMNS_LEAST;
  fprintf(stderr, "\r\033[K%.*s", (known ? size.ws_col : 80) - 1, line);
  on_screen = true;
}

static void draw(const struct progress *progress, uint64_t done, int64_t elapsed) {
  char line[256];
  double part = progress->total ? (double)done / (double)progress->total : 0;
  if (progress->total)
    snprintf(line, sizeof(line), "%s [%s] %3.0f%% of %s, %s, %s left", progress->label,
             bar_of(part).text, part * 100, size_text(progress->total).text,
             rate_text(done, elapsed).text, remaining_text(part, elapsed).text);
  else
    snprintf(line, sizeof(line), "%s %s, %s", progress->label, size_text(done).text,
             rate_text(done, elapsed).text);
  show(line);
}

void progress_update(struct progress *progress, uint64_t done) {
  if (!progress->shown)
    return;
  int64_t now = now_ns();
  if (now - progress->drawn < REDRAW_NS)
    return;
  progress->drawn = now;
  draw(progress, done, now - progress->started);
}

void progress_step(const struct progress *progress, uint64_t done, uint64_t steps,
                   const char *step) {
  char line[256];
  double part = (double)done / (double)steps;
  if (!progress->shown)
    return;
  snprintf(line, sizeof(line), "%s [%s] %llu of %llu, %s, %s left", progress->label,
           bar_of(part).text, (unsigned long long)done, (unsigned long long)steps, step,
           remaining_text(part, now_ns() - progress->started).text);
  show(line);
}

void progress_hide(void) {
  if (on_screen)
    fputs("\r\033[K", stderr);
  on_screen = false;
}
