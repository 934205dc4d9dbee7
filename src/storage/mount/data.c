/* SPDX-License-Identifier: MIT
 * Operations on open files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "storage/far.h"
#include "storage/files.h"
#include "storage/mount/mount.h"
#include "storage/mount/virtual.h"

#define TRIES 16

/* Rings may use the file from now on. The handle is gone where it fails. */
static int register_file(struct mount *mount, fuse_req_t request, struct handle *handle,
                         int flags) {
  int mode = flags & O_ACCMODE, status = 0;
  handle->writes = mode != O_RDONLY;
  if (handle->file->fd < 0 && !(handle->far = far_make(mount->source, handle->file)))
    status = -ENOMEM;
  const struct files_open_file file = {handle->file->inode, handle->file->fd, handle->far};
  if (!status)
    status = files_opened(mount->files, &file, fuse_req_ctx(request)->uid, mode != O_WRONLY,
                          handle->writes, &handle->key);
  handle->registered = status == 0;
  if (status)
    handle_drop(mount, handle);
  return status;
}

/* Takes the file. */
static int take_file(fuse_req_t request, struct source_file *file, struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct handle *handle = handle_add(mount, file);
  if (!handle) {
    mount->source->ops->release(mount->source, file);
    return -ENOMEM;
  }
  info->fh = (uintptr_t)handle;
  info->direct_io = (info->flags & O_DIRECT) != 0;
  info->noflush = !file->flushes;
  return register_file(mount, request, handle, info->flags);
}

static void open_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct source_caller caller = caller_of(request);
  struct source_file *file;
  int status = -EPERM;
  if (!virtual_node(node))
    status = mount->source->ops->open(mount->source, &caller, node, info->flags, &file);
  if (!status)
    status = take_file(request, file, info);
  if (status)
    reply_status(request, status);
  else if (fuse_reply_open(request, info))
    handle_drop(mount, handle_of(info));
}

/* A file that appeared under the name since the kernel looked: the kernel has checked no rights to
 * it. What is no file the kernel is to look at again, which ESTALE tells it to. */
static int open_other(fuse_req_t request, fuse_ino_t folder, const char *name, int flags,
                      struct source_entry *entry, struct source_file **file) {
  struct source *source = mount_of(request)->source;
  struct source_caller caller;
  gid_t *groups = NULL;
  int status = source->ops->lookup(source, folder, name, entry);
  if (status)
    return status;
  status = S_ISREG(entry->stat.st_mode) ? caller_unchecked(request, &caller, &groups) : -ESTALE;
  if (!status)
    status = source->ops->open(source, &caller, entry->node, flags, file);
  free(groups);
  if (status)
    source->ops->forget(source, entry->node, 1);
  return status;
}

/* Others may make and take the name away meanwhile, again and again. */
static int make_or_open(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                        int flags, struct source_entry *entry, struct source_file **file) {
  struct source *source = mount_of(request)->source;
  struct source_caller caller = caller_of(request);
  for (int i = 0; i < TRIES; i++) {
    int status = source->ops->create(source, &caller, folder, name, mode, flags, entry, file);
    if (status != -EEXIST || (flags & O_EXCL))
      return status;
    status = open_other(request, folder, name, flags, entry, file);
    if (status != -ENOENT)
      return status;
  }
  return -ESTALE;
}

static int make_file(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                     struct fuse_file_info *info, struct source_entry *entry) {
  struct source *source = mount_of(request)->source;
  struct source_file *file;
  if (virtual_name(folder, name))
    return -EPERM;
  int status = make_or_open(request, folder, name, mode, info->flags, entry, &file);
  if (status)
    return status;
  status = take_file(request, file, info);
  if (status)
    source->ops->forget(source, entry->node, 1);
  return status;
}

static void create_file(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                        struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct source_entry entry;
  struct fuse_entry_param param;
  int status = make_file(request, folder, name, mode, info, &entry);
  if (status) {
    reply_status(request, status);
    return;
  }
  fill_entry(&param, &entry);
  if (fuse_reply_create(request, &param, info)) {
    handle_drop(mount, handle_of(info));
    mount->source->ops->forget(mount->source, entry.node, 1);
  }
}

static void release_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  (void)node;
  handle_drop(mount_of(request), handle_of(info));
  reply_status(request, 0);
}

static void reply_copy(fuse_req_t request, struct source_file *file, size_t size, off_t offset) {
  struct source *source = mount_of(request)->source;
  void *bytes = malloc(size);
  ssize_t length = -ENOMEM;
  if (bytes)
    length = source->ops->read(source, file, bytes, size, offset);
  reply_bytes(request, length, bytes);
  free(bytes);
}

static void read_file(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                      struct fuse_file_info *info) {
  struct source_file *file = handle_of(info)->file;
  (void)node;
  if (file->fd < 0) {
    reply_copy(request, file, size, offset);
    return;
  }
  struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(size);
  bytes.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
  bytes.buf[0].fd = file->fd;
  bytes.buf[0].pos = offset;
  fuse_reply_data(request, &bytes, FUSE_BUF_SPLICE_MOVE);
}

/* The open file's flags as they are at this moment; pages of a mapping have none. */
static int flags_of(const struct fuse_file_info *info) {
  if (info->writepage)
    return 0;
  int flags = info->flags & O_APPEND ? RWF_APPEND : 0;
  if ((info->flags & O_SYNC) == O_SYNC)
    flags |= RWF_SYNC;
  else if (info->flags & O_DSYNC)
    flags |= RWF_DSYNC;
  return flags;
}

static void write_file(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
                       off_t offset, struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  (void)node;
  ssize_t length =
      source->ops->write(source, handle_of(info)->file, bytes, size, offset, flags_of(info));
  if (length < 0)
    reply_status(request, (int)length);
  else
    fuse_reply_write(request, (size_t)length);
}

static void flush_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  (void)node;
  reply_status(request, source->ops->flush(source, handle_of(info)->file));
}

static void sync_file(fuse_req_t request, fuse_ino_t node, int data_only,
                      struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  (void)node;
  reply_status(request, source->ops->fsync(source, handle_of(info)->file, data_only != 0));
}

static void allocate(fuse_req_t request, fuse_ino_t node, int mode, off_t offset, off_t length,
                     struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  int status = -EOPNOTSUPP;
  (void)node;
  if (source->ops->fallocate)
    status = source->ops->fallocate(source, handle_of(info)->file, mode, offset, length);
  reply_status(request, status);
}

static void seek(fuse_req_t request, fuse_ino_t node, off_t offset, int whence,
                 struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  off_t found = -EOPNOTSUPP;
  (void)node;
  if (source->ops->lseek)
    found = source->ops->lseek(source, handle_of(info)->file, offset, whence);
  if (found < 0)
    reply_status(request, (int)found);
  else
    fuse_reply_lseek(request, found);
}

void data_fill(struct fuse_lowlevel_ops *ops) {
  ops->open = open_file;
  ops->create = create_file;
  ops->release = release_file;
  ops->read = read_file;
  ops->write = write_file;
  ops->flush = flush_file;
  ops->fsync = sync_file;
  ops->fallocate = allocate;
  ops->lseek = seek;
}
