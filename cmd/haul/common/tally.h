/* SPDX-License-Identifier: MIT
 * The reports of many transfers summed into one, and paths in JSON. */
#ifndef HAUL_COMMAND_TALLY_H
#define HAUL_COMMAND_TALLY_H

#include <stdint.h>
#include <stdio.h>

#include <haul/haul.h>

#include "output.h"

/* Bytes by path: if a path fails, another one takes over. */
struct tally_path {
  char name[16];
  uint64_t bytes;
  struct haul_report latest; /* of a transfer over this path */
};

struct tally {
  /* Places of the first transfer; after tally_end the paths of the latest transfer over the path
   * with the most bytes. */
  struct haul_report sum;
  uint64_t transfers;
  size_t path_count;
  struct tally_path paths[HAUL_PATHS_MAX];
  int64_t started; /* now_ns() */
  int64_t cpu;     /* cpu_ns() then */
};

void tally_begin(struct tally *tally);
void tally_add(struct tally *tally, const struct haul_report *report);

/* Ends the sum: its times count from tally_begin to this call. */
void tally_end(struct tally *tally);

/* Prints the report without its first line, which the caller prints. */
void tally_print(const struct tally *tally, FILE *out);

/* Writes members of the open object. */
void tally_to_json(const struct tally *tally, struct json *json);

/* "chosen", "open" or "closed". */
const char *path_state(const struct haul_path *path);

/* Writes an array of objects. */
void paths_to_json(struct json *json, const char *key, const struct haul_path *paths, size_t count);

#endif
