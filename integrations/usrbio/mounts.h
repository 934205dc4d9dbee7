/* SPDX-License-Identifier: MIT
 * The mounts that this process uses. For each it holds a descriptor of MOUNT/3fs-virt/iovs, by
 * which the daemon knows that the process lives: when it is closed, what the process registered
 * goes. So it stays until the process ends, or the mount is another one. */
#ifndef HAUL_USRBIO_MOUNTS_H
#define HAUL_USRBIO_MOUNTS_H

#include <stdbool.h>

struct mount;

#define MOUNT_PATH 256 /* that hf3fs_iov has room for */

/* Whether it may be one. */
bool mount_is_path(const char *path);
/* The mount there, held until mount_release; 0 or a negative errno value. */
int mount_hold(const char *path, struct mount **mount);
void mount_release(struct mount *mount);
/* Whether it still has its daemon. Waits for the daemon's answer. */
bool mount_answers(const struct mount *mount);

#endif
