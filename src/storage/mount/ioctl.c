/* SPDX-License-Identifier: MIT
 * 3FS's ioctls on open files and folders. The kernel copies arguments by the size in the command,
 * so a program cannot make the daemon read more. It does not check the caller's rights. */
#include <fcntl.h>
#include <stdlib.h>

#include "storage/credentials.h"
#include "storage/mount/mount.h"

#define INTERFACE_VERSION 1u /* of GET_VERSION */

struct call {
  fuse_req_t request;
  fuse_ino_t node;
  struct handle *handle;
  bool folder;
};

/* Without bytes: callers pass no memory for them, although the command says so. */
static void reply_ioctl(fuse_req_t request, int status) {
  if (status)
    reply_status(request, status);
  else
    fuse_reply_ioctl(request, 0, NULL, 0);
}

static int sync_file(const struct call *call) {
  struct source *source = source_of(call->request);
  struct source_file *file = call->handle->file;
  return file ? source->ops->fsync(source, file, false) : 0;
}

static int link_in_folder(const struct call *call, const struct source_entry *folder,
                          const char *name) {
  struct source *source = source_of(call->request);
  struct source_caller caller;
  struct source_entry entry;
  gid_t *groups;
  if (!S_ISDIR(folder->stat.st_mode))
    return -ENOTDIR;
  if (control_is_name(folder->node, name))
    return -EPERM;
  int status = caller_unchecked(call->request, &caller, &groups);
  if (!status)
    status = source->ops->link(source, &caller, call->node, folder->node, name, &entry);
  if (!status)
    source->ops->forget(source, entry.node, 1);
  free(groups);
  return status;
}

/* The folder comes as a number that anyone can guess, so the caller's own rights to it count. */
static int link_file(const struct call *call, const struct ioctl_link *link) {
  struct source *source = source_of(call->request);
  struct source_entry folder;
  if (call->folder || link->folder >= SOURCE_INODES)
    return -EPERM;
  if (!memchr(link->name, '\0', sizeof link->name))
    return -ENAMETOOLONG;
  int status = source->ops->find(source, link->folder, &folder);
  if (status)
    return status;
  status = link_in_folder(call, &folder, link->name);
  source->ops->forget(source, folder.node, 1);
  return status;
}

static int check_holes(const struct ioctl_holes *holes) {
  if (holes->count < 0 || holes->count > IOCTL_HOLES || holes->flags)
    return -EINVAL;
  for (int i = 0; i < holes->count; i++)
    if (holes->start[i] > holes->end[i] || holes->end[i] > (size_t)INT64_MAX)
      return -EINVAL;
  return 0;
}

/* Checks all before the first one is made. */
static int punch_holes(const struct call *call, const struct ioctl_holes *holes) {
  struct source *source = source_of(call->request);
  if (call->folder)
    return -EISDIR;
  if (!call->handle->writes)
    return -EBADF;
  int status = check_holes(holes);
  if (!status && !source->ops->fallocate)
    status = -EOPNOTSUPP;
  credentials_keep_set_ids(false);
  for (int i = 0; !status && i < holes->count; i++)
    if (holes->start[i] < holes->end[i])
      status = source->ops->fallocate(
          source, call->handle->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
          (off_t)holes->start[i], (off_t)(holes->end[i] - holes->start[i]));
  credentials_keep_set_ids(true);
  return status;
}

/* A copy of the argument, aligned for its type; NULL and a status where it is not complete. */
static void *copy_argument(const void *in, size_t length, size_t expected, int *status) {
  void *copy = in && length == expected ? malloc(expected) : NULL;
  *status = copy ? 0 : in && length == expected ? -ENOMEM : -EINVAL;
  return copy ? memcpy(copy, in, expected) : NULL;
}

static void on_ioctl(fuse_req_t request, fuse_ino_t node, unsigned command, void *argument,
                     struct fuse_file_info *info, unsigned flags, const void *in, size_t in_size,
                     size_t out_size) {
  const struct call call = {request, node, handle_of(info), (flags & FUSE_IOCTL_DIR) != 0};
  const struct mount *mount = mount_of(request);
  const uint32_t magic = IOCTL_MAGIC, version = INTERFACE_VERSION;
  void *copy = NULL;
  int status = 0;
  (void)argument;
  (void)out_size;
  switch (command) {
  case IOCTL_GET_NAME:
    fuse_reply_ioctl(request, 0, mount->name, sizeof mount->name);
    break;
  case IOCTL_GET_MAGIC:
    fuse_reply_ioctl(request, 0, &magic, sizeof magic);
    break;
  case IOCTL_GET_VERSION:
    fuse_reply_ioctl(request, 0, &version, sizeof version);
    break;
  case IOCTL_SYNC:
    reply_ioctl(request, sync_file(&call));
    break;
  case IOCTL_LINK:
    copy = copy_argument(in, in_size, sizeof(struct ioctl_link), &status);
    reply_ioctl(request, copy ? link_file(&call, copy) : status);
    break;
  case IOCTL_PUNCH_HOLES:
    copy = copy_argument(in, in_size, sizeof(struct ioctl_holes), &status);
    reply_ioctl(request, copy ? punch_holes(&call, copy) : status);
    break;
  default:
    reply_status(request, -ENOTTY);
  }
  free(copy);
}

void mount_add_ioctl_ops(struct fuse_lowlevel_ops *ops) {
  ops->ioctl = on_ioctl;
}
