/* SPDX-License-Identifier: MIT
 * Output that appears under its name only when it is complete: a temporary file beside it is
 * renamed at the end. Devices, pipes and standard output are written directly. */
#ifndef HAUL_COMMAND_OUTFILE_H
#define HAUL_COMMAND_OUTFILE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct outfile {
  int descriptor;
  const char *label;        /* for messages */
  char path[PATH_MAX];      /* the final name; links are resolved */
  char temporary[PATH_MAX]; /* empty: no temporary file */
};

/* Resolves the links of `path`, whose target need not exist. *mode becomes the type and the mode of
 * the file, or those that open(2) would give it. Refuses a folder. Returns an exit status. */
int outfile_resolve(const char *path, char resolved[PATH_MAX], mode_t *mode);

/* Opens `path`, or standard output for "-", and reserves `length` bytes (0: unknown) if the file
 * system can. Waits `timeout_ns` for the reader of a FIFO (0: forever), unless interrupted. Returns
 * an exit status; call outfile_discard in any case. */
int outfile_open(struct outfile *file, const char *path, uint64_t length, int64_t timeout_ns);

/* Writes all bytes. Returns an exit status. */
int outfile_write(struct outfile *file, const void *bytes, size_t length);

/* Renames the temporary file to `path`. Returns an exit status. */
int outfile_commit(struct outfile *file);

/* Closes the file and removes an uncommitted temporary one. */
void outfile_discard(struct outfile *file);

#endif
