/* SPDX-License-Identifier: MIT
 * Requests on open files and folders. */
#include "storage/files.h"

#include <fcntl.h>
#include <stdlib.h>

#include "storage/credentials.h"
#include "storage/mount/mount.h"

#define CREATE_TRIES 16

/* Lets rings use the file. */
static int register_file(fuse_req_t request, struct handle *handle, int flags) {
  struct mount *mount = mount_of(request);
  const struct source_file *file = handle->file;
  int mode = flags & O_ACCMODE;
  handle->writes = mode != O_RDONLY;
  if (file->fd < 0 && !(handle->remote = remote_file_new(mount->source, handle->file)))
    return -ENOMEM;
  const struct file_open open = {.inode = file->inode,
                                 .fd = file->fd,
                                 .remote = handle->remote,
                                 .uid = fuse_req_ctx(request)->uid,
                                 .may = {mode != O_WRONLY, handle->writes}};
  int status = files_add(mount->files, &open, &handle->key);
  handle->registered = status == 0;
  return status;
}

/* Takes the file. */
static int make_handle(fuse_req_t request, struct source_file *file, struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct handle *handle = handle_add(mount, file);
  if (!handle)
    return -ENOMEM;
  info->fh = (uintptr_t)handle;
  info->direct_io = (info->flags & O_DIRECT) != 0;
  info->noflush = !file->flushes;
  int status = register_file(request, handle, info->flags);
  if (status)
    handle_drop(mount, handle);
  return status;
}

static void reply_open(fuse_req_t request, int status, const struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  if (status)
    reply_status(request, status);
  else if (fuse_reply_open(request, info)) /* which frees the request */
    handle_drop(mount, handle_of(info));
}

static void file_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct source *source = source_of(request);
  struct source_caller caller = caller_of(request);
  struct source_file *file;
  int status = -EPERM;
  if (!control_is_node(node))
    status = source->ops->open(source, &caller, node, info->flags, &file);
  if (!status)
    status = make_handle(request, file, info);
  reply_open(request, status, info);
}

/* Opens a file that appeared after the kernel's lookup, so that the kernel has checked no rights to
 * it. For other types -ESTALE makes the kernel look the name up again. */
static int open_existing(fuse_req_t request, fuse_ino_t folder, const char *name, int flags,
                         struct source_entry *entry, struct source_file **file) {
  struct source *source = source_of(request);
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

/* Retries if others create and remove the name meanwhile. */
static int create_or_open(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                          int flags, struct source_entry *entry, struct source_file **file) {
  struct source *source = source_of(request);
  struct source_caller caller = caller_of(request);
  for (int i = 0; i < CREATE_TRIES; i++) {
    int status = source->ops->create(source, &caller, folder, name, mode, flags, entry, file);
    if (status != -EEXIST || (flags & O_EXCL))
      return status;
    status = open_existing(request, folder, name, flags, entry, file);
    if (status != -ENOENT)
      return status;
  }
  return -ESTALE;
}

static void file_create(fuse_req_t request, fuse_ino_t folder, const char *name, mode_t mode,
                        struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct source_entry entry;
  struct source_file *file;
  struct fuse_entry_param param;
  int status = -EPERM;
  if (!control_is_name(folder, name))
    status = create_or_open(request, folder, name, mode, info->flags, &entry, &file);
  if (status) {
    reply_status(request, status);
    return;
  }
  status = make_handle(request, file, info);
  fill_entry(&param, &entry);
  if (status)
    reply_status(request, status);
  else if (fuse_reply_create(request, &param, info)) /* which frees the request */
    handle_drop(mount, handle_of(info));
  else
    return;
  mount->source->ops->forget(mount->source, entry.node, 1);
}

static void file_release(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  (void)node;
  handle_drop(mount_of(request), handle_of(info));
  reply_status(request, 0);
}

static void read_remote(fuse_req_t request, struct source_file *file, size_t size, off_t offset) {
  struct source *source = source_of(request);
  void *bytes = malloc(size);
  ssize_t length = -ENOMEM;
  if (bytes)
    length = source->ops->read(source, file, bytes, size, offset);
  reply_bytes(request, length, bytes);
  free(bytes);
}

static void file_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                      struct fuse_file_info *info) {
  struct source_file *file = handle_of(info)->file;
  (void)node;
  if (file->fd < 0) {
    read_remote(request, file, size, offset);
    return;
  }
  struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(size);
  bytes.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
  bytes.buf[0].fd = file->fd;
  bytes.buf[0].pos = offset;
  fuse_reply_data(request, &bytes, FUSE_BUF_SPLICE_MOVE);
}

/* The open file's current flags; write-back of mapped pages has none. */
static int write_flags(const struct fuse_file_info *info) {
  if (info->writepage)
    return 0;
  int flags = info->flags & O_APPEND ? RWF_APPEND : 0;
  if ((info->flags & O_SYNC) == O_SYNC)
    flags |= RWF_SYNC;
  else if (info->flags & O_DSYNC)
    flags |= RWF_DSYNC;
  return flags;
}

static void file_write(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
                       off_t offset, struct fuse_file_info *info) {
  struct source *source = source_of(request);
  (void)node;
  ssize_t length =
      source->ops->write(source, handle_of(info)->file, bytes, size, offset, write_flags(info));
  if (length < 0)
    reply_status(request, (int)length);
  else
    fuse_reply_write(request, (size_t)length);
}

static void file_flush(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct source *source = source_of(request);
  (void)node;
  reply_status(request, source->ops->flush(source, handle_of(info)->file));
}

/* Also for folders; those of 3fs-virt have no file. */
int sync_handle(fuse_req_t request, const struct handle *handle, bool data_only) {
  struct source *source = source_of(request);
  return handle->file ? source->ops->fsync(source, handle->file, data_only) : 0;
}

static void file_fsync(fuse_req_t request, fuse_ino_t node, int data_only,
                       struct fuse_file_info *info) {
  (void)node;
  reply_status(request, sync_handle(request, handle_of(info), data_only != 0));
}

static void file_fallocate(fuse_req_t request, fuse_ino_t node, int mode, off_t offset,
                           off_t length, struct fuse_file_info *info) {
  struct source *source = source_of(request);
  (void)node;
  reply_status(request,
               source->ops->fallocate(source, handle_of(info)->file, mode, offset, length));
}

static void file_lseek(fuse_req_t request, fuse_ino_t node, off_t offset, int whence,
                       struct fuse_file_info *info) {
  struct source *source = source_of(request);
  (void)node;
  off_t found = source->ops->lseek(source, handle_of(info)->file, offset, whence);
  if (found < 0)
    reply_status(request, (int)found);
  else
    fuse_reply_lseek(request, found);
}

/* Takes the file; NULL: a folder of 3fs-virt. */
static int make_folder_handle(fuse_req_t request, fuse_ino_t node, struct source_file *file,
                              struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct handle *handle = handle_add(mount, file);
  if (!handle)
    return -ENOMEM;
  info->fh = (uintptr_t)handle;
  int status = file ? 0 : control_opendir(request, node, handle);
  if (status)
    handle_drop(mount, handle);
  return status;
}

static void folder_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct source *source = source_of(request);
  struct source_file *file = NULL;
  int status = control_is_node(node) ? 0 : source->ops->opendir(source, node, &file);
  if (!status)
    status = make_folder_handle(request, node, file, info);
  reply_open(request, status, info);
}

/* A readdir reply. */
struct names_reply {
  fuse_req_t request;
  fuse_ino_t folder;
  bool plus; /* with attributes; each entry counts as a lookup */
  char *bytes;
  size_t size, length;
};

/* False: there is no room for an entry of this length. */
static bool add_bytes(struct names_reply *reply, size_t length) {
  if (length > reply->size - reply->length)
    return false;
  reply->length += length;
  return true;
}

static bool add_plus(struct names_reply *reply, const struct source_name *name,
                     const struct source_entry *entry) {
  struct fuse_entry_param param;
  fill_entry(&param, entry);
  return add_bytes(reply, fuse_add_direntry_plus(reply->request, reply->bytes + reply->length,
                                                 reply->size - reply->length, name->name, &param,
                                                 name->next));
}

static bool add_name(void *user, const struct source_name *name) {
  struct names_reply *reply = user;
  struct source *source = source_of(reply->request);
  /* Inode 0 would mean a removed entry. Node 0 means that the name was not looked up. */
  struct source_entry entry = {
      .stat = {.st_ino = name->inode ? name->inode : UINT32_MAX, .st_mode = name->type}};
  bool dots = strcmp(name->name, ".") == 0 || strcmp(name->name, "..") == 0;
  if (!control_is_node(reply->folder) && control_is_name(reply->folder, name->name))
    return true;
  if (!reply->plus)
    return add_bytes(reply, fuse_add_direntry(reply->request, reply->bytes + reply->length,
                                              reply->size - reply->length, name->name, &entry.stat,
                                              name->next));
  if (dots || control_is_node(reply->folder))
    return add_plus(reply, name, &entry);
  int status = source->ops->lookup(source, reply->folder, name->name, &entry);
  if (status == -ENOENT)
    return true; /* removed since it was read */
  bool added = add_plus(reply, name, &entry);
  if (!status && !added)
    source->ops->forget(source, entry.node, 1);
  return added;
}

static void reply_names(struct names_reply *reply, off_t offset,
                        const struct fuse_file_info *info) {
  struct source *source = source_of(reply->request);
  struct handle *handle = handle_of(info);
  int status = -ENOMEM;
  reply->bytes = malloc(reply->size);
  if (reply->bytes && control_is_node(reply->folder))
    status = control_readdir(reply->request, reply->folder, handle, offset, add_name, reply);
  else if (reply->bytes)
    status = source->ops->readdir(source, handle->file, offset, reply->size, add_name, reply);
  /* Sends names even after an error: each one with attributes is a lookup that the kernel must
   * count. */
  if (status && !reply->length)
    reply_status(reply->request, status);
  else
    fuse_reply_buf(reply->request, reply->bytes, reply->length);
  free(reply->bytes);
}

static void folder_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                        struct fuse_file_info *info) {
  struct names_reply reply = {.request = request, .folder = node, .size = size};
  reply_names(&reply, offset, info);
}

static void folder_read_plus(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                             struct fuse_file_info *info) {
  struct names_reply reply = {.request = request, .folder = node, .plus = true, .size = size};
  reply_names(&reply, offset, info);
}

void mount_add_file_ops(struct fuse_lowlevel_ops *ops) {
  ops->open = file_open;
  ops->create = file_create;
  ops->release = file_release;
  ops->read = file_read;
  ops->write = file_write;
  ops->flush = file_flush;
  ops->fsync = file_fsync;
  ops->fallocate = file_fallocate;
  ops->lseek = file_lseek;
  ops->opendir = folder_open;
  ops->releasedir = file_release;
  ops->fsyncdir = file_fsync;
  ops->readdir = folder_read;
  ops->readdirplus = folder_read_plus;
}
