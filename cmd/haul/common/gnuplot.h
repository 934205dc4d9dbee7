/* SPDX-License-Identifier: MIT
 * A plot over sizes, drawn by gnuplot as SVG. */
#ifndef HAUL_COMMAND_GNUPLOT_H
#define HAUL_COMMAND_GNUPLOT_H

#include <stdio.h>

struct gnuplot;

/* Starts gnuplot, so that its absence is an error before any work. Returns an exit status; *plot is
 * NULL after a failure. */
int gnuplot_open(const char *path, struct gnuplot **plot);

/* The stream of gnuplot commands; terminal, title and the axis of sizes are set. */
FILE *gnuplot_script(struct gnuplot *plot, const char *title);

/* Draws the script and renames the file to `path`. Returns an exit status. */
int gnuplot_draw(struct gnuplot *plot);

/* Ends gnuplot and removes an unfinished file; NULL is allowed. */
void gnuplot_close(struct gnuplot *plot);

#endif
