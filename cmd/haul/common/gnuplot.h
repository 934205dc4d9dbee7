/* SPDX-License-Identifier: MIT
 *
 * A picture over sizes, drawn by gnuplot as SVG.
 */
#ifndef HAUL_COMMAND_GNUPLOT_H
#define HAUL_COMMAND_GNUPLOT_H

#include <stdio.h>

struct gnuplot;

/* Starts gnuplot, so that its absence shows before anything is done. Returns an exit status; *plot
 * is NULL after a failure. */
int gnuplot_open(const char *path, struct gnuplot **plot);

/* Where its commands go; the terminal, the title and the axis of sizes are set. */
FILE *gnuplot_script(struct gnuplot *plot, const char *title);

/* Draws what was written, and gives the file its name. Returns an exit status. */
int gnuplot_draw(struct gnuplot *plot);

/* Ends gnuplot and removes what was not drawn; NULL is allowed. */
void gnuplot_close(struct gnuplot *plot);

#endif
