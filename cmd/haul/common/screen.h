/* SPDX-License-Identifier: MIT
 * The whole terminal: its second screen, without a cursor and with keys as they are pressed. The
 * first screen and the mode of the terminal return at every end of the process but SIGKILL.
 *
 * SIGINT and SIGTERM set the flag of interrupted(); a second one ends the process. SIGTSTP shows
 * the first screen until SIGCONT. */
#ifndef HAUL_COMMAND_SCREEN_H
#define HAUL_COMMAND_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Whether standard output is a terminal that can place text. */
bool screen_is_possible(void);

void screen_open(void);
void screen_close(void); /* does nothing while it is not open */

struct screen_size {
  int rows, columns; /* at least 1; 24 and 80 if the terminal does not say */
};
struct screen_size screen_size(void);

/* Waits for a key, a new size of the terminal, a signal or the time. Returns the key, else 0. */
int screen_wait(int64_t nanoseconds);

/* One drawing, which replaces the last one as a whole. */
struct drawing {
  FILE *out;
  char *bytes;
  size_t length;
  struct screen_size size;
  int row, column; /* of the next text, from 0 */
  bool colors;
};

/* `colors`: drawing_text uses them. drawing_end is due. */
void drawing_begin(struct drawing *drawing, bool colors);
/* Adds text in `style`, the numbers of an SGR sequence of ECMA-48 such as "1;32", or NULL. Text
 * beyond the last column is cut, and bytes that are not printable ASCII become '?': names come from
 * peers. */
void drawing_text(struct drawing *drawing, const char *style, const char *text);
/* The same, `width` columns wide, to the left or to the right. */
void drawing_cell(struct drawing *drawing, const char *style, int width, bool right,
                  const char *text);
void drawing_next_line(struct drawing *drawing);
/* Shows the drawing. Returns 0 or an error number. */
int drawing_end(struct drawing *drawing);

#endif
