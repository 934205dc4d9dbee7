/* SPDX-License-Identifier: MIT
 * The control directory, MOUNT/3fs-virt/iovs: the symlinks by which clients register buffers and
 * rings, and those of the daemon. The FUSE side shows it (mount/control.c). All calls may be made
 * from any thread, return 0 or a negative errno value, and do not wait for clients. */
#ifndef HAUL_STORAGE_CONTROL_DIR_H
#define HAUL_STORAGE_CONTROL_DIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "storage/util.h"

struct control_dir;
struct files;
struct source;

/* The thread that made the file system call, numbered in the daemon's PID namespace. */
struct control_caller {
  uid_t uid;
  gid_t gid;
  pid_t thread;
};

/* A symlink. */
struct control_link {
  uint64_t id; /* unique for as long as the daemon runs; not 0 */
  uid_t uid;
  gid_t gid;
  mode_t mode;     /* S_IFLNK and its permissions */
  uint64_t length; /* of its target */
};

struct control_config {
  struct files *files;   /* open files that rings may use; outlives the directory */
  unsigned workers;      /* 0: one a processor, at most four */
  bool others;           /* other users may post the daemon's semaphores */
  struct source *source; /* of remote files, outlives the directory; NULL: files are local */
  storage_log *log;      /* NULL: no log */
  void *user;
};

int control_dir_open(const struct control_config *config, struct control_dir **dir);
/* Blocks until the operations in flight have completed. */
void control_dir_close(struct control_dir *dir);

/* Registers the file `target` under `name`, for the caller's process. EEXIST, EINVAL (the name, or
 * a file that does not fit it), EPERM (not the caller's file in /dev/shm), EMFILE, ENOMEM. */
int control_dir_symlink(struct control_dir *dir, const struct control_caller *caller,
                        const char *name, const char *target, struct control_link *link);
/* ENOENT, also for another user's links. */
int control_dir_lookup(struct control_dir *dir, const struct control_caller *caller,
                       const char *name, struct control_link *link);
int control_dir_stat(struct control_dir *dir, uint64_t id, struct control_link *link);
/* The target with a zero byte. ENOENT, ENAMETOOLONG. */
int control_dir_readlink(struct control_dir *dir, uint64_t id, char *target, size_t size);
/* New operations on the buffer or ring fail from now on; those in flight end normally. */
int control_dir_unlink(struct control_dir *dir, const struct control_caller *caller,
                       const char *name);
/* Calls `each` for the links that the caller may see. `each` must not call back. */
void control_dir_list(struct control_dir *dir, const struct control_caller *caller,
                      void (*each)(void *user, const char *name, const struct control_link *link),
                      void *user);

/* A handle of the directory. When a process's last one is released, its links are removed. */
int control_dir_hold(struct control_dir *dir, const struct control_caller *caller,
                     uint64_t *handle);
void control_dir_release(struct control_dir *dir, uint64_t handle);

#endif
