/* SPDX-License-Identifier: MIT
 *
 * A file that appears under its name only when it is whole: it is written under a temporary name
 * beside it and renamed at the end. What is no regular file (a device, a pipe, standard output) is
 * written as it is.
 */
#ifndef HAUL_COMMAND_OUTFILE_H
#define HAUL_COMMAND_OUTFILE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct outfile {
  int descriptor;
  const char *label;        /* for messages */
  char path[PATH_MAX];      /* where it is to be; links are followed */
  char temporary[PATH_MAX]; /* empty: written in place */
};

/* Opens `path`, "-" for standard output, with room for `length` bytes where the file system can
 * tell (0: unknown). Returns an exit status; outfile_discard is due either way. */
int outfile_open(struct outfile *file, const char *path, uint64_t length);

/* Writes all of it. Returns an exit status. */
int outfile_write(struct outfile *file, const void *bytes, size_t length);

/* Gives the file its name. Returns an exit status. */
int outfile_commit(struct outfile *file);

/* Closes it, and removes what was not committed. */
void outfile_discard(struct outfile *file);

#endif
