/* SPDX-License-Identifier: MIT
 * The file that haul pull writes: a mapped file beside the output, which gets its name when all
 * bytes are right. Functions return an exit status; failures have been printed. */
#ifndef HAUL_COMMAND_PULL_FILE_H
#define HAUL_COMMAND_PULL_FILE_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#include <haul/haul.h>

/* The file of a version. */
struct output {
  char path[PATH_MAX];  /* its name before it is complete */
  char final[PATH_MAX]; /* its name afterwards; links are resolved */
  mode_t mode;          /* afterwards */
  int descriptor;       /* holds the lock; -1: none */
  void *bytes;          /* mapped; NULL: none */
  uint64_t length;
  haul_region *region;
};

/* Fills the names and the mode. */
int output_resolve(struct output *output, const char *file);
/* Opens and maps a file of `length` bytes, with those of the present file of this name. */
int output_open(struct output *output, const char *file, uint64_t length, haul_node *node,
                haul_deadline until);
/* Gives it its name. */
int output_commit(const struct output *output);
void output_close(struct output *output);

#endif
