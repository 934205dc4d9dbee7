/* SPDX-License-Identifier: MIT
 * A client's shared memory, by the path that the client knows it by. */
#ifndef HAUL_STORAGE_SHARED_H
#define HAUL_STORAGE_SHARED_H

#include <stdbool.h>
#include <stddef.h>

#include "storage/virt.h"

#define SHARED_FOLDER "/dev/shm/"

/* The thread's process; the thread itself where that cannot be told. */
pid_t shared_process(pid_t thread);

/* Maps the whole file. EPERM: it is not the caller's, or not in a tmpfs; EINVAL: not a name in
 * /dev/shm; ENOENT, ENOMEM. */
int shared_map(const struct virt_caller *caller, const char *path, void **memory, size_t *length);

#endif
