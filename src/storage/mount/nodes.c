/* SPDX-License-Identifier: MIT
 * Requests on names and attributes. */
#include <stdlib.h>

#include "storage/mount/mount.h"

static void node_lookup(fuse_req_t request, fuse_ino_t folder, const char *name) {
  struct source *source = source_of(request);
  struct source_entry entry = {0};
  int status = control_is_name(folder, name) ? control_lookup(request, folder, name, &entry)
                                             : source->ops->lookup(source, folder, name, &entry);
  reply_entry(request, status, &entry);
}

static void forget_lookups(struct source *source, uint64_t node, uint64_t count) {
  if (!control_is_node(node))
    source->ops->forget(source, node, count);
}

static void node_forget(fuse_req_t request, fuse_ino_t node, uint64_t count) {
  forget_lookups(source_of(request), node, count);
  fuse_reply_none(request);
}

static void node_forget_multi(fuse_req_t request, size_t count, struct fuse_forget_data *list) {
  for (size_t i = 0; i < count; i++)
    forget_lookups(source_of(request), list[i].ino, list[i].nlookup);
  fuse_reply_none(request);
}

static void node_readlink(fuse_req_t request, fuse_ino_t node) {
  struct source *source = source_of(request);
  char target[PATH_MAX + 1];
  ssize_t length = 0;
  if (control_is_node(node))
    length = control_readlink(mount_of(request), node, target, sizeof target);
  else
    length = source->ops->readlink(source, node, target, sizeof target - 1);
  if (length < 0) {
    reply_status(request, (int)length);
    return;
  }
  if (!control_is_node(node))
    target[length] = '\0';
  fuse_reply_readlink(request, target);
}

/* Creates a name that is not of 3fs-virt. */
static void make_name(fuse_req_t request, uint64_t folder, const char *name,
                      const struct source_new *wanted) {
  struct source *source = source_of(request);
  struct source_caller caller = caller_of(request);
  struct source_entry entry = {0};
  int status = -EPERM;
  if (!control_is_name(folder, name) && !control_is_node(wanted->node))
    status = source->ops->make(source, &caller, folder, name, wanted, &entry);
  reply_entry(request, status, &entry);
}

static void node_mkdir(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode) {
  const struct source_new wanted = {.kind = SOURCE_FOLDER, .mode = mode};
  make_name(request, folder, name, &wanted);
}

static void node_mknod(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                       dev_t device) {
  const struct source_new wanted = {.kind = SOURCE_FILE, .mode = mode};
  (void)device;
  make_name(request, folder, name, &wanted);
}

static void node_symlink(fuse_req_t request, const char *target, fuse_ino_t folder,
                         const char *name) {
  const struct source_new wanted = {.kind = SOURCE_SYMLINK, .target = target};
  struct source_entry entry = {0};
  if (control_is_name(folder, name))
    reply_entry(request, control_symlink(request, folder, name, target, &entry), &entry);
  else
    make_name(request, folder, name, &wanted);
}

static void node_link(fuse_req_t request, fuse_ino_t node, fuse_ino_t folder, const char *name) {
  const struct source_new wanted = {.kind = SOURCE_LINK, .node = node};
  make_name(request, folder, name, &wanted);
}

static void node_unlink(fuse_req_t request, fuse_ino_t folder, const char *name) {
  struct source *source = source_of(request);
  reply_status(request, control_is_name(folder, name)
                            ? control_unlink(request, folder, name)
                            : source->ops->unlink(source, folder, name, 0));
}

static void node_rmdir(fuse_req_t request, fuse_ino_t folder, const char *name) {
  struct source *source = source_of(request);
  reply_status(request, control_is_name(folder, name)
                            ? -EPERM
                            : source->ops->unlink(source, folder, name, AT_REMOVEDIR));
}

static void node_rename(fuse_req_t request, fuse_ino_t folder, const char *name,
                        fuse_ino_t new_folder, const char *new_name, unsigned flags) {
  struct source *source = source_of(request);
  struct source_caller caller = caller_of(request);
  int status = -EPERM;
  if (!control_is_name(folder, name) && !control_is_name(new_folder, new_name))
    status = source->ops->rename(source, &caller, folder, name, new_folder, new_name, flags);
  reply_status(request, status);
}

/* NULL: the request came without an open file. */
static struct source_file *file_of(const struct fuse_file_info *info) {
  return info ? handle_of(info)->file : NULL;
}

static void node_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct source *source = source_of(request);
  struct stat stat;
  int status = control_is_node(node) ? control_stat(mount_of(request), node, &stat)
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
    int fuse;
    unsigned source;
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
      .times = {time_of(wanted, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, attributes->st_atim),
                time_of(wanted, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, attributes->st_mtim)},
  };
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
    if (wanted & bits[i].fuse)
      change.which |= bits[i].source;
  return change;
}

static void node_setattr(fuse_req_t request, fuse_ino_t node, struct stat *attributes, int wanted,
                         struct fuse_file_info *info) {
  struct source *source = source_of(request);
  struct source_change change = change_of(attributes, wanted);
  struct stat stat;
  int status = -EPERM;
  if (!control_is_node(node))
    status = source->ops->setattr(source, node, file_of(info), &change, &stat);
  reply_stat(request, status, &stat);
}

static void node_statfs(fuse_req_t request, fuse_ino_t node) {
  struct source *source = source_of(request);
  struct statvfs stat;
  int status = source->ops->statfs(source, &stat);
  (void)node; /* where a tree spans devices, the root's is reported */
  if (status)
    reply_status(request, status);
  else
    fuse_reply_statfs(request, &stat);
}

/* A value, or without a name the list of names. */
static ssize_t read_xattr(struct source *source, uint64_t node, const char *name, void *value,
                          size_t size) {
  if (control_is_node(node))
    return name ? -ENODATA : 0;
  ssize_t length = source->ops->getxattr(source, node, name, value, size);
  /* The kernel reads ACLs before it grants access, and fails the access with any other error. */
  if (length == -EOPNOTSUPP && name && strncmp(name, "system.posix_acl_", 17) == 0)
    return -ENODATA;
  return length;
}

/* The length for size 0, else the value. */
static void reply_xattr(fuse_req_t request, uint64_t node, const char *name, size_t size) {
  void *value = size ? malloc(size) : NULL;
  ssize_t length = -ENOMEM;
  if (value || !size)
    length = read_xattr(source_of(request), node, name, value, size);
  if (length >= 0 && size == 0)
    fuse_reply_xattr(request, (size_t)length);
  else
    reply_bytes(request, length, value);
  free(value);
}

static void node_getxattr(fuse_req_t request, fuse_ino_t node, const char *name, size_t size) {
  reply_xattr(request, node, name, size);
}

static void node_listxattr(fuse_req_t request, fuse_ino_t node, size_t size) {
  reply_xattr(request, node, NULL, size);
}

static void node_setxattr(fuse_req_t request, fuse_ino_t node, const char *name, const char *value,
                          size_t size, int flags) {
  struct source *source = source_of(request);
  int status = -EPERM;
  if (!control_is_node(node))
    status = source->ops->setxattr(source, node, name, value, size, flags);
  reply_status(request, status);
}

static void node_removexattr(fuse_req_t request, fuse_ino_t node, const char *name) {
  struct source *source = source_of(request);
  int status = -EPERM;
  if (!control_is_node(node))
    status = source->ops->removexattr(source, node, name);
  reply_status(request, status);
}

void mount_add_node_ops(struct fuse_lowlevel_ops *ops) {
  ops->lookup = node_lookup;
  ops->forget = node_forget;
  ops->forget_multi = node_forget_multi;
  ops->readlink = node_readlink;
  ops->mkdir = node_mkdir;
  ops->mknod = node_mknod;
  ops->symlink = node_symlink;
  ops->link = node_link;
  ops->unlink = node_unlink;
  ops->rmdir = node_rmdir;
  ops->rename = node_rename;
  ops->getattr = node_getattr;
  ops->setattr = node_setattr;
  ops->statfs = node_statfs;
  ops->getxattr = node_getxattr;
  ops->listxattr = node_listxattr;
  ops->setxattr = node_setxattr;
  ops->removexattr = node_removexattr;
}
