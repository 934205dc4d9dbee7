/* SPDX-License-Identifier: MIT
 * Operations on names. */
#include <errno.h>
#include <limits.h>

#include "storage/mount/mount.h"
#include "storage/mount/virtual.h"

static void lookup(fuse_req_t request, fuse_ino_t folder, const char *name) {
  struct source *source = mount_of(request)->source;
  struct source_entry entry = {0};
  int status = virtual_name(folder, name) ? virtual_lookup(request, folder, name, &entry)
                                          : source->ops->lookup(source, folder, name, &entry);
  reply_entry(request, status, &entry);
}

static void forget_one(struct mount *mount, uint64_t node, uint64_t count) {
  if (!virtual_node(node))
    mount->source->ops->forget(mount->source, node, count);
}

static void forget(fuse_req_t request, fuse_ino_t node, uint64_t count) {
  forget_one(mount_of(request), node, count);
  fuse_reply_none(request);
}

static void forget_many(fuse_req_t request, size_t count, struct fuse_forget_data *list) {
  for (size_t i = 0; i < count; i++)
    forget_one(mount_of(request), list[i].ino, list[i].nlookup);
  fuse_reply_none(request);
}

static void read_link(fuse_req_t request, fuse_ino_t node) {
  struct mount *mount = mount_of(request);
  char target[PATH_MAX + 1];
  ssize_t length = 0;
  if (virtual_node(node))
    length = virtual_readlink(mount, node, target, sizeof target);
  else
    length = mount->source->ops->readlink(mount->source, node, target, sizeof target - 1);
  if (length < 0) {
    reply_status(request, (int)length);
    return;
  }
  if (!virtual_node(node))
    target[length] = '\0';
  fuse_reply_readlink(request, target);
}

static void make_folder(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode) {
  struct source *source = mount_of(request)->source;
  struct source_caller caller = caller_of(request);
  struct source_entry entry = {0};
  int status = -EPERM;
  if (!virtual_name(folder, name))
    status = source->ops->mkdir(source, &caller, folder, name, mode, &entry);
  reply_entry(request, status, &entry);
}

static void make_node(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                      dev_t device) {
  struct source *source = mount_of(request)->source;
  struct source_caller caller = caller_of(request);
  struct source_entry entry = {0};
  int status = -EPERM;
  (void)device;
  if (!virtual_name(folder, name))
    status = source->ops->mknod(source, &caller, folder, name, mode, &entry);
  reply_entry(request, status, &entry);
}

static void make_symlink(fuse_req_t request, const char *target, fuse_ino_t folder,
                         const char *name) {
  struct source *source = mount_of(request)->source;
  struct source_caller caller = caller_of(request);
  struct source_entry entry = {0};
  int status = virtual_name(folder, name)
                   ? virtual_symlink(request, folder, name, target, &entry)
                   : source->ops->symlink(source, &caller, folder, name, target, &entry);
  reply_entry(request, status, &entry);
}

static void make_link(fuse_req_t request, fuse_ino_t node, fuse_ino_t folder, const char *name) {
  struct source *source = mount_of(request)->source;
  struct source_caller caller = caller_of(request);
  struct source_entry entry = {0};
  int status = -EPERM;
  if (!virtual_node(node) && !virtual_name(folder, name))
    status = source->ops->link(source, &caller, node, folder, name, &entry);
  reply_entry(request, status, &entry);
}

static void unlink_file(fuse_req_t request, fuse_ino_t folder, const char *name) {
  struct source *source = mount_of(request)->source;
  reply_status(request, virtual_name(folder, name) ? virtual_unlink(request, folder, name)
                                                   : source->ops->unlink(source, folder, name));
}

static void remove_folder(fuse_req_t request, fuse_ino_t folder, const char *name) {
  struct source *source = mount_of(request)->source;
  reply_status(request,
               virtual_name(folder, name) ? -EPERM : source->ops->rmdir(source, folder, name));
}

static void rename_node(fuse_req_t request, fuse_ino_t folder, const char *name, fuse_ino_t to,
                        const char *new_name, unsigned flags) {
  struct source *source = mount_of(request)->source;
  int status = -EPERM;
  if (!virtual_name(folder, name) && !virtual_name(to, new_name))
    status = source->ops->rename(source, folder, name, to, new_name, flags);
  reply_status(request, status);
}

void names_fill(struct fuse_lowlevel_ops *ops) {
  ops->lookup = lookup;
  ops->forget = forget;
  ops->forget_multi = forget_many;
  ops->readlink = read_link;
  ops->mkdir = make_folder;
  ops->mknod = make_node;
  ops->symlink = make_symlink;
  ops->link = make_link;
  ops->unlink = unlink_file;
  ops->rmdir = remove_folder;
  ops->rename = rename_node;
}
