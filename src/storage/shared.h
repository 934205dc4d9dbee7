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

struct shared {
  void *memory;
  size_t length;
  dev_t device; /* which file it is */
  ino_t inode;
};

/* Maps the whole file. EPERM: it is not the caller's, or not in a tmpfs; EINVAL: not a name in
 * /dev/shm; ENOENT, ENOMEM. */
int shared_map(const struct virt_caller *caller, const char *path, struct shared *shared);
/* Takes the name away that a client left, where it lies in the daemon's own /dev/shm, still means
 * that file, and is one that only USRBIO's library gives. */
void shared_forget(const char *path, dev_t device, ino_t inode);

#endif
