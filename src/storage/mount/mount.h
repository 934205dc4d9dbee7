/* SPDX-License-Identifier: MIT
 * What the parts of the FUSE face share.
 *
 * A node's number in FUSE is the source's handle for it. Numbers from SOURCE_HANDLES on, as nodes
 * and as inodes, are those of 3fs-virt, which lies at the root in front of whatever the source has
 * under that name.
 *
 * What the kernel may keep: names, and attributes of what is no regular file, for a second, so
 * that walking a path does not ask at each step; attributes of files never, since rings change a
 * file behind the kernel's back. Pages of a file until its size or time of change differs, which
 * each read asks for, or it is opened again. With O_DIRECT nothing is kept. */
#ifndef HAUL_STORAGE_MOUNT_MOUNT_H
#define HAUL_STORAGE_MOUNT_MOUNT_H

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>
#include <haul/storage.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/list.h"
#include "storage/mount/point.h"
#include "storage/source.h"
#include "storage/virt.h"

struct files;

struct mount {
  const struct haul_storage_mount *config;
  struct point point;
  char name[HAUL_STORAGE_NAME_ROOM];
  struct source *source;
  struct files *files;
  struct virt *virt;
  struct fuse_session *session;
  struct timespec since;
  int begun;            /* an eventfd: the kernel has been answered */
  pthread_mutex_t lock; /* guards `open` */
  struct list open;     /* handles: the kernel releases none of them when the mount is ended */
};

/* What is open; its address is the kernel's handle for it. */
struct handle {
  struct list link;
  struct source_file *file; /* NULL for a folder of 3fs-virt */
  struct far *far;          /* who has the file, where rings may use it; NULL: this handle */
  bool writes;
  bool registered; /* with files.h, as `key`; or with virt.h */
  uint64_t key;
  struct listing *listing; /* of 3fs-virt: what it showed when reading began */
};

/* NULL: no memory. */
struct handle *handle_add(struct mount *mount, struct source_file *file);
/* Tells whoever it is registered with, releases the file, frees it. */
void handle_drop(struct mount *mount, struct handle *handle);
void handle_drop_all(struct mount *mount);

static inline struct mount *mount_of(fuse_req_t request) {
  return fuse_req_userdata(request);
}

static inline struct handle *handle_of(const struct fuse_file_info *info) {
  return (struct handle *)(uintptr_t)info->fh;
}

/* Who asks; the kernel has checked what he may: default_permissions. */
struct source_caller caller_of(fuse_req_t request);
/* Who asks for what the kernel checks nothing of. The groups are the receiver's to free, also where
 * it fails. */
int caller_unchecked(fuse_req_t request, struct source_caller *caller, gid_t **groups);

/* Answers with a status: 0 or a negative errno value. */
void reply_status(fuse_req_t request, int status);
/* Answers with a node, or with the status; takes its lookup back where nobody gets the answer. */
void reply_entry(fuse_req_t request, int status, const struct source_entry *entry);
void reply_stat(fuse_req_t request, int status, const struct stat *stat);
/* Answers with what was read, or with what went wrong. */
void reply_bytes(fuse_req_t request, ssize_t length, const void *bytes);
void fill_entry(struct fuse_entry_param *param, const struct source_entry *entry);

/* Tables of operations, laid over each other. */
void names_fill(struct fuse_lowlevel_ops *ops);
void attributes_fill(struct fuse_lowlevel_ops *ops);
void data_fill(struct fuse_lowlevel_ops *ops);
void folders_fill(struct fuse_lowlevel_ops *ops);
void ioctl_fill(struct fuse_lowlevel_ops *ops);

#endif
