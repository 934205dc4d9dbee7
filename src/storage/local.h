/* SPDX-License-Identifier: MIT
 * A folder of this host as a source. Descriptors: one for each node that is known, and one for each
 * file that is open, so the process's limit of them bounds both. */
#ifndef HAUL_STORAGE_LOCAL_H
#define HAUL_STORAGE_LOCAL_H

#include <stdbool.h>
#include <stddef.h>

struct source;

/* `read_only`: whatever would change something is -EROFS. ENOENT, ENOTDIR, EACCES. */
int local_open(const char *path, bool read_only, struct source **source);

/* At the most so many nodes besides the root are known at a time: whoever looks more of them up is
 * told -ENFILE. To be called before others use the source. */
void local_bound(struct source *source, size_t nodes);

#endif
