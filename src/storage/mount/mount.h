/* SPDX-License-Identifier: MIT
 * A source as a FUSE file system.
 *
 * A node's number in FUSE is its handle in the source. Numbers of nodes and inodes from
 * SOURCE_HANDLES on belong to 3fs-virt, which covers the source's entry of this name.
 *
 * The kernel caches names, and attributes of all but regular files, for a second, so that path
 * walks send few requests. It caches no attributes of regular files, as rings change files without
 * its knowledge. It caches pages until size or modification time change, which each read checks, or
 * until the next open; with O_DIRECT it caches none. */
#ifndef HAUL_STORAGE_MOUNT_MOUNT_H
#define HAUL_STORAGE_MOUNT_MOUNT_H

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include <haul/storage.h>
#include <haul/usrbio.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/list.h"
#include "storage/control_dir.h"
#include "storage/source.h"

struct mount {
  const struct haul_storage_mount *config;
  char source_path[PATH_MAX], target[PATH_MAX]; /* absolute; ADDRESS/EXPORT of a remote tree */
  char name[HAUL_STORAGE_NAME_ROOM];
  struct source *source;
  struct files *files;
  struct control_dir *control;
  struct fuse_session *session;
  struct timespec since; /* of the nodes of 3fs-virt */
  uint64_t id;           /* random */
  int begun;             /* an eventfd: the kernel's first request has its reply */
  pthread_mutex_t lock;  /* guards the fields below */
  struct list handles;   /* the kernel releases none of them after a forced unmount */
  atomic_bool stopping;  /* set with the lock: no more of the next, and removals end */
  struct list name_jobs; /* ioctls that move or remove names */
  pthread_cond_t name_job_ended;
};

/* An open file or folder; its address is the kernel's handle. */
struct handle {
  struct list link;
  struct source_file *file;   /* NULL for a folder of 3fs-virt */
  struct remote_file *remote; /* owns `file`, as rings may use it; NULL: the handle does */
  bool writes;
  bool registered; /* as `key` with files.h, or with control_dir.h */
  uint64_t key;
  struct listing *listing; /* of a folder of 3fs-virt */
};

static inline struct mount *mount_of(fuse_req_t request) {
  return fuse_req_userdata(request);
}

static inline struct source *source_of(fuse_req_t request) {
  return mount_of(request)->source;
}

static inline struct handle *handle_of(const struct fuse_file_info *info) {
  return (struct handle *)(uintptr_t)info->fh;
}

/* Checks source and target, and fills the paths of `mount`. */
int mount_check(struct mount *mount, struct haul_storage_error *error);

/* dead.c. Unmounts the file system of this type at a path whose daemon has died, even if programs
 * have files of it open, which fail. 0 also if another process has removed or replaced it.
 * ENOTCONN: it is of another type; EPERM: of another user. */
int mount_remove_dead(const char *path);

/* reply.c: callers, handles and replies */

/* The caller of a request whose rights the kernel has checked (default_permissions). */
struct source_caller caller_of(fuse_req_t request);
/* The caller of a request with unchecked rights. The receiver frees *groups, also after a failure.
 */
int caller_unchecked(fuse_req_t request, struct source_caller *caller, gid_t **groups);

/* Takes the file, which may be NULL. NULL: no memory. */
struct handle *handle_add(struct mount *mount, struct source_file *file);
/* Removes its registration, releases the file, and frees it. */
void handle_drop(struct mount *mount, struct handle *handle);

/* All take 0 or a negative errno value as `status`. */
void reply_status(fuse_req_t request, int status);
/* Forgets the lookup if the kernel does not get the reply. */
void reply_entry(fuse_req_t request, int status, const struct source_entry *entry);
void reply_stat(fuse_req_t request, int status, const struct stat *stat);
/* `length` may be a negative errno value. */
void reply_bytes(fuse_req_t request, ssize_t length, const void *bytes);
void fill_entry(struct fuse_entry_param *param, const struct source_entry *entry);

/* control.c: 3fs-virt.
 * Two folders; the inner one, iovs, shows the control directory. 3fs-virt is found by its name and
 * not listed, so that programs that copy or search the tree do not come across it. */

static inline bool control_is_node(uint64_t node) {
  return node >= SOURCE_HANDLES;
}

/* Whether a name is of 3fs-virt, and not the source's. */
bool control_is_name(uint64_t folder, const char *name);

int control_lookup(fuse_req_t request, uint64_t folder, const char *name,
                   struct source_entry *entry);
int control_stat(struct mount *mount, uint64_t node, struct stat *stat);
int control_readlink(struct mount *mount, uint64_t node, char *target, size_t size);
int control_symlink(fuse_req_t request, uint64_t folder, const char *name, const char *target,
                    struct source_entry *entry);
int control_unlink(fuse_req_t request, uint64_t folder, const char *name);
/* Handles of iovs keep the links of their process. */
int control_opendir(fuse_req_t request, uint64_t node, struct handle *handle);
void control_releasedir(struct mount *mount, struct handle *handle);
int control_readdir(fuse_req_t request, uint64_t node, struct handle *handle, off_t offset,
                    source_each *each, void *user);

/* Requests: each adds its own to the table */

void mount_add_node_ops(struct fuse_lowlevel_ops *ops); /* nodes.c */
void mount_add_file_ops(struct fuse_lowlevel_ops *ops); /* files.c */
void mount_add_ioctl_op(struct fuse_lowlevel_ops *ops); /* ioctls.c */
/* Ends the ioctls that have threads of their own; for a while the kernel has to be served. False:
 * one hangs, and uses the mount. */
bool mount_end_ioctls(struct mount *mount);
/* files.c: as fsync(2). */
int sync_handle(fuse_req_t request, const struct handle *handle, bool data_only);

#endif
