/* SPDX-License-Identifier: MIT
 *
 * Paths in JSON and in words: one form, wherever they appear.
 */
#ifndef HAUL_COMMAND_PATHS_H
#define HAUL_COMMAND_PATHS_H

#include <haul/haul.h>

#include "json.h"

/* "chosen", "open" or "closed". */
const char *path_state(const struct haul_path *path);

/* Members of the open object: "copies" and "zero_copy". */
void path_copies_to_json(struct json *json, const struct haul_path *path);

/* An array of objects. */
void paths_to_json(struct json *json, const char *key, const struct haul_path *paths, size_t count);

#endif
