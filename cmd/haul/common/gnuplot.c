/* SPDX-License-Identifier: MIT */
#include "gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"
#include "outfile.h"
#include "text.h"

extern char **environ;

struct gnuplot {
  struct outfile file;
  int picture;   /* standard output of gnuplot, in memory: gnuplot does not report failed writes */
  FILE *script;  /* standard input of gnuplot */
  pid_t process; /* 0: not running */
};

static int spawn_with(struct gnuplot *plot, int input) {
  static char *const arguments[] = {"gnuplot", NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, plot->picture, STDOUT_FILENO);
  int error = posix_spawnp(&plot->process, "gnuplot", &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (!error)
    return EXIT_DONE;
  plot->process = 0;
  return fail_because("apt-get install gnuplot-nox, or leave --plot out",
                      "cannot start gnuplot: %s", strerror(error));
}

/* Both ends close on exec, so that gnuplot inherits only its standard input. */
static int spawn(struct gnuplot *plot) {
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

int gnuplot_open(const char *path, struct gnuplot **plot) {
  *plot = must_realloc(NULL, sizeof(**plot));
  **plot = (struct gnuplot){.picture = memfd_create("haul-plot", MFD_CLOEXEC)};
  int failed = errno;
  int status = outfile_open(&(*plot)->file, path, 0, 0);
  if (status == EXIT_DONE && (*plot)->picture < 0)
    status = fail_system(failed, "cannot draw %s", path);
  /* If gnuplot ends early, the write fails with EPIPE and this process goes on. */
  signal(SIGPIPE, SIG_IGN);
  if (status == EXIT_DONE)
    status = spawn(*plot);
  if (status) {
    gnuplot_close(*plot);
    *plot = NULL;
  }
  return status;
}

/* gnuplot quotes a text in '…', in which a quote is doubled. */
FILE *gnuplot_script(struct gnuplot *plot, const char *title) {
  fputs("set terminal svg size 900,540 background 'white'\nset title '", plot->script);
  for (const char *at = title; *at; at++)
    fputs(*at == '\'' ? "''" : *at == '\n' ? " " : (char[]){*at, '\0'}, plot->script);
  fputs("' noenhanced\nset logscale x 2\nset format x '%.0b%B'\nset xlabel 'size, bytes'\n"
        "set grid\n",
        plot->script);
  return plot->script;
}

/* Closes the input of gnuplot and waits for its end; 0: success. */
static int finish(struct gnuplot *plot) {
  int result = 0;
  int bad = plot->script ? fclose(plot->script) : 0;
  plot->script = NULL;
  while (plot->process && waitpid(plot->process, &result, 0) < 0 && errno == EINTR)
    continue;
  plot->process = 0;
  return bad || result;
}

static int write_picture(struct gnuplot *plot) {
  char bytes[16384];
  ssize_t got;
  int status = EXIT_DONE;
  for (off_t at = 0; status == EXIT_DONE; at += got) {
    got = pread(plot->picture, bytes, sizeof bytes, at);
    if (got < 0)
      return fail_system(errno, "cannot read the output of gnuplot");
    if (got == 0)
      return outfile_commit(&plot->file);
    status = outfile_write(&plot->file, bytes, (size_t)got);
  }
  return status;
}

int gnuplot_draw(struct gnuplot *plot) {
  if (finish(plot))
    return fail_because("see the message of gnuplot above", "cannot draw %s: gnuplot failed",
                        plot->file.label);
  return write_picture(plot);
}

void gnuplot_close(struct gnuplot *plot) {
  if (!plot)
    return;
  finish(plot);
  outfile_discard(&plot->file);
  if (plot->picture >= 0)
    close(plot->picture);
  free(plot);
}
