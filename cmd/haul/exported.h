/* SPDX-License-Identifier: MIT
 * get, put and ls of exported files: NODE/EXPORT/PATH. */
#ifndef HAUL_COMMAND_EXPORTED_H
#define HAUL_COMMAND_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/session.h"

struct exported {
  const struct target *target; /* its `name` is EXPORT/PATH */
  const char *text;            /* for messages */
  const char *file;            /* local file; "-": standard output or input */
  uint64_t offset, length;     /* length 0: up to the end */
  int64_t timeout;             /* nanoseconds; 0: the default */
  bool json, quiet;
};

/* All return an exit status. */
int exported_get(const struct exported *exported);
int exported_put(const struct exported *exported);
/* Lists a folder; with an empty name of the target the exports. */
int exported_list(const struct exported *exported);

#endif
