/* SPDX-License-Identifier: MIT
 * What lies under MOUNTPOINT/3fs-virt/iovs, for the file system's threads. All calls return 0 or a
 * negative errno value, may be made from any thread, and do not wait for clients. */
#ifndef HAUL_STORAGE_VIRT_H
#define HAUL_STORAGE_VIRT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct virt;
struct files;

/* Who asks, as the kernel says. `thread` is a thread's number in the daemon's PID namespace. */
struct virt_caller {
  uid_t uid;
  gid_t gid;
  pid_t thread;
};

/* One symlink: a buffer's, a ring's, or a semaphore's. */
struct virt_entry {
  uint64_t id; /* never used twice while the daemon lives; not 0 */
  uid_t uid;
  gid_t gid;
  mode_t mode;     /* S_IFLNK and its rights */
  uint64_t length; /* of its target */
};

struct virt_config {
  struct files *files; /* what rings may use; outlives the virt */
  unsigned workers;    /* 0: as many as there are processors, at most four */
  bool others;         /* users besides the daemon's own may post its semaphores */
  bool far;            /* files have no descriptors here (far.h) */
};

int virt_open(const struct virt_config *config, struct virt **virt);
/* What is under way ends first, and is completed. */
void virt_close(struct virt *virt);

/* Registers what `target` names under `name`, for the caller's process. EEXIST, EINVAL (the name),
 * EPERM (not a file of the caller's under /dev/shm), EMFILE, ENOMEM. */
int virt_symlink(struct virt *virt, const struct virt_caller *caller, const char *name,
                 const char *target, struct virt_entry *entry);
/* ENOENT, also for what is another user's. */
int virt_lookup(struct virt *virt, const struct virt_caller *caller, const char *name,
                struct virt_entry *entry);
int virt_stat(struct virt *virt, uint64_t id, struct virt_entry *entry);
/* The target, ended by a zero byte. */
int virt_readlink(struct virt *virt, uint64_t id, char *target, size_t size);
/* New operations on it fail from now on; those under way end as they would. */
int virt_unlink(struct virt *virt, const struct virt_caller *caller, const char *name);
/* Every entry that the caller may see. `each` may not call back. */
void virt_list(struct virt *virt, const struct virt_caller *caller,
               void (*each)(void *user, const char *name, const struct virt_entry *entry),
               void *user);
/* A directory handle: when the last one of a process is released, its entries go. */
int virt_hold(struct virt *virt, const struct virt_caller *caller, uint64_t *handle);
void virt_release(struct virt *virt, uint64_t handle);

#endif
