/* SPDX-License-Identifier: MIT
 * A folder of this host as a source. Descriptors: one for each node that is known, and one for each
 * file that is open, so the process's limit of them bounds both. */
#ifndef HAUL_STORAGE_LOCAL_H
#define HAUL_STORAGE_LOCAL_H

#include <stdbool.h>

struct source;

/* `read_only`: whatever would change something is -EROFS. ENOENT, ENOTDIR, EACCES. */
int local_open(const char *path, bool read_only, struct source **source);

#endif
