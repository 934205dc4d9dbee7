/* SPDX-License-Identifier: MIT
 *
 * The picture of a sweep, drawn by gnuplot: bandwidth and latency over size.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "command.h"
#include "common/fail.h"
#include "common/outfile.h"
#include "common/text.h"

extern char **environ;

struct bench_plot {
  struct outfile file;
  FILE *script;  /* gnuplot's standard input */
  pid_t process; /* 0: not running */
};

static int spawn_with(struct bench_plot *plot, int input) {
  static char *const arguments[] = {"gnuplot", NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, plot->file.descriptor, STDOUT_FILENO);
  int error = posix_spawnp(&plot->process, "gnuplot", &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (!error)
    return EXIT_DONE;
  plot->process = 0;
  return fail_because("apt-get install gnuplot-nox; --csv gives the figures without it",
                      "cannot start gnuplot: %s", strerror(error));
}

/* Both ends close on exec: gnuplot keeps nothing but its standard input. */
static int spawn(struct bench_plot *plot) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC))
    return fail_system(errno, "cannot make a pipe");
  int status = spawn_with(plot, ends[0]);
  close(ends[0]);
  plot->script = status ? NULL : fdopen(ends[1], "w");
  if (!plot->script)
    close(ends[1]);
  return status;
}

int bench_plot_open(const char *path, struct bench_plot **plot) {
  *plot = must_realloc(NULL, sizeof(**plot));
  **plot = (struct bench_plot){.script = NULL};
  int status = outfile_open(&(*plot)->file, path, 0);
  /* A gnuplot that ends early is an error of the write, not the end of this process. */
  signal(SIGPIPE, SIG_IGN);
  if (status == EXIT_DONE)
    status = spawn(*plot);
  if (status) {
    bench_plot_close(*plot);
    *plot = NULL;
  }
  return status;
}

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

/* Quoted as gnuplot reads it: within '…' only the quote itself is doubled. */
static void write_title(FILE *script, const char *title) {
  fputs("set title '", script);
  for (const char *at = title; *at; at++)
    fputs(*at == '\'' ? "''" : *at == '\n' ? " " : (char[]){*at, '\0'}, script);
  fputs("' noenhanced\n", script);
}

static void write_script(FILE *script, const char *title, const struct bench_row *rows,
                         size_t count) {
  bool latency = rows[0].latency.count > 0;
  fputs("set terminal svg size 900,540 background 'white'\n", script);
  write_title(script, title);
  write_rows(script, rows, count);
  fputs("set logscale x 2\nset format x '%.0b%B'\nset xlabel 'bytes'\n"
        "set ylabel 'GB/s'\nset ytics nomirror\nset key left top\nset grid\n",
        script);
  if (latency)
    fputs("set y2label 'us'\nset y2tics\nset logscale y2 10\n", script);
  fputs("plot $rows using 1:2 axes x1y1 with linespoints title 'bandwidth'", script);
  if (latency)
    fputs(", $rows using 1:3 axes x1y2 with linespoints title 'latency p50'"
          ", $rows using 1:4 axes x1y2 with linespoints title 'latency p99'",
          script);
  fputs("\n", script);
}

/* Closes gnuplot's input and waits for its end; 0 when it was content. */
static int finish(struct bench_plot *plot) {
  int result = 0;
  int bad = plot->script ? fclose(plot->script) : 0;
  plot->script = NULL;
  while (plot->process && waitpid(plot->process, &result, 0) < 0 && errno == EINTR)
    continue;
  plot->process = 0;
  return bad || result;
}

int bench_plot_draw(struct bench_plot *plot, const char *title, const struct bench_row *rows,
                    size_t count) {
  write_script(plot->script, title, rows, count);
  if (finish(plot))
    return fail_because("what gnuplot said stands above", "gnuplot failed to draw %s",
                        plot->file.label);
  return outfile_commit(&plot->file);
}

void bench_plot_close(struct bench_plot *plot) {
  if (!plot)
    return;
  finish(plot);
  outfile_discard(&plot->file);
  free(plot);
}
