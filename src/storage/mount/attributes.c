/* SPDX-License-Identifier: MIT
 * Operations on attributes, also extended ones. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/mount/mount.h"
#include "storage/mount/virtual.h"

/* The call may come without an open file. */
static struct source_file *file_of(const struct fuse_file_info *info) {
  return info ? handle_of(info)->file : NULL;
}

static void get(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct source *source = mount->source;
  struct stat stat;
  int status = virtual_node(node) ? virtual_stat(mount, node, &stat)
                                  : source->ops->getattr(source, node, file_of(info), &stat);
  reply_stat(request, status, &stat);
}

static struct timespec time_of(int wanted, int set, int now, struct timespec time) {
  if (wanted & now)
    return (struct timespec){.tv_nsec = UTIME_NOW};
  if (wanted & set)
    return time;
  return (struct timespec){.tv_nsec = UTIME_OMIT};
}

static struct source_change change_of(const struct stat *attributes, int wanted) {
  static const struct {
    int theirs;
    unsigned ours;
  } bits[] = {
      {FUSE_SET_ATTR_MODE, SOURCE_MODE},       {FUSE_SET_ATTR_UID, SOURCE_UID},
      {FUSE_SET_ATTR_GID, SOURCE_GID},         {FUSE_SET_ATTR_SIZE, SOURCE_SIZE},
      {FUSE_SET_ATTR_ATIME, SOURCE_TIMES},     {FUSE_SET_ATTR_MTIME, SOURCE_TIMES},
      {FUSE_SET_ATTR_ATIME_NOW, SOURCE_TIMES}, {FUSE_SET_ATTR_MTIME_NOW, SOURCE_TIMES},
  };
  struct source_change change = {
      .mode = attributes->st_mode,
      .uid = attributes->st_uid,
      .gid = attributes->st_gid,
      .size = attributes->st_size,
  };
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
    if (wanted & bits[i].theirs)
      change.which |= bits[i].ours;
  change.times[0] =
      time_of(wanted, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, attributes->st_atim);
  change.times[1] =
      time_of(wanted, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, attributes->st_mtim);
  return change;
}

static void set(fuse_req_t request, fuse_ino_t node, struct stat *attributes, int wanted,
                struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  struct source_change change = change_of(attributes, wanted);
  struct stat stat;
  int status = -EPERM;
  if (!virtual_node(node))
    status = source->ops->setattr(source, node, file_of(info), &change, &stat);
  reply_stat(request, status, &stat);
}

static void stat_system(fuse_req_t request, fuse_ino_t node) {
  struct source *source = mount_of(request)->source;
  struct statvfs stat;
  int status = source->ops->statfs(source, &stat);
  (void)node; /* of a tree that spans devices the root's stands for all */
  if (status)
    reply_status(request, status);
  else
    fuse_reply_statfs(request, &stat);
}

/* The length that was asked for, or the value itself. */
static void reply_extended(fuse_req_t request, ssize_t length, const void *value, size_t size) {
  if (length >= 0 && size == 0)
    fuse_reply_xattr(request, (size_t)length);
  else
    reply_bytes(request, length, value);
}

/* A value, or with no name the list of names. */
static ssize_t read_extended(struct source *source, uint64_t node, const char *name, void *value,
                             size_t size) {
  if (virtual_node(node) || !source->ops->getxattr)
    return name ? -ENODATA : 0;
  if (!name)
    return source->ops->listxattr(source, node, value, size);
  ssize_t length = source->ops->getxattr(source, node, name, value, size);
  /* The kernel asks for these before it grants anything, and takes any other error for its own. */
  if (length == -EOPNOTSUPP && strncmp(name, "system.posix_acl_", 17) == 0)
    return -ENODATA;
  return length;
}

static void get_or_list(fuse_req_t request, uint64_t node, const char *name, size_t size) {
  void *value = size ? malloc(size) : NULL;
  ssize_t length = -ENOMEM;
  if (value || !size)
    length = read_extended(mount_of(request)->source, node, name, value, size);
  reply_extended(request, length, value, size);
  free(value);
}

static void get_extended(fuse_req_t request, fuse_ino_t node, const char *name, size_t size) {
  get_or_list(request, node, name, size);
}

static void list_extended(fuse_req_t request, fuse_ino_t node, size_t size) {
  get_or_list(request, node, NULL, size);
}

static void set_extended(fuse_req_t request, fuse_ino_t node, const char *name, const char *value,
                         size_t size, int flags) {
  struct source *source = mount_of(request)->source;
  int status = -EOPNOTSUPP;
  if (virtual_node(node))
    status = -EPERM;
  else if (source->ops->setxattr)
    status = source->ops->setxattr(source, node, name, value, size, flags);
  reply_status(request, status);
}

static void remove_extended(fuse_req_t request, fuse_ino_t node, const char *name) {
  struct source *source = mount_of(request)->source;
  int status = -EOPNOTSUPP;
  if (virtual_node(node))
    status = -EPERM;
  else if (source->ops->removexattr)
    status = source->ops->removexattr(source, node, name);
  reply_status(request, status);
}

void attributes_fill(struct fuse_lowlevel_ops *ops) {
  ops->getattr = get;
  ops->setattr = set;
  ops->statfs = stat_system;
  ops->getxattr = get_extended;
  ops->listxattr = list_extended;
  ops->setxattr = set_extended;
  ops->removexattr = remove_extended;
}
