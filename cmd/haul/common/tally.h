/* SPDX-License-Identifier: MIT
 *
 * The reports of many transfers summed into one, and paths in JSON.
 */
#ifndef HAUL_COMMAND_TALLY_H
#define HAUL_COMMAND_TALLY_H

#include <stdint.h>
#include <stdio.h>

#include <haul/haul.h>

#include "output.h"

#define TALLY_PATHS_MAX HAUL_PATHS_MAX

/* Bytes by the path that they took: a path may break under way and another one take over. */
struct tally_path {
  char name[16];
  uint64_t bytes;
  struct haul_report latest; /* of a transfer that took it */
};

struct tally {
  /* Places as of the first transfer; paths, once it has ended, as of the latest one that took the
   * path of the most bytes. */
  struct haul_report sum;
  uint64_t transfers;
  size_t path_count;
  struct tally_path paths[TALLY_PATHS_MAX];
  int64_t started; /* now_ns() */
};

void tally_begin(struct tally *tally);
void tally_add(struct tally *tally, const struct haul_report *report);

/* Closes the account: times are those of the whole, from tally_begin until now. */
void tally_end(struct tally *tally);

/* The report in words, without its first line: the caller knows better what was moved where. */
void tally_print(const struct tally *tally, FILE *out);

/* Members of the object that is open in `json`. */
void tally_to_json(const struct tally *tally, struct json *json);

/* "chosen", "open" or "closed". */
const char *path_state(const struct haul_path *path);

/* Members of the open object: "copies" and "zero_copy". */
void path_copies_to_json(struct json *json, const struct haul_path *path);

/* An array of objects. */
void paths_to_json(struct json *json, const char *key, const struct haul_path *paths, size_t count);

#endif
