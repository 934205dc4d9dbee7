/* SPDX-License-Identifier: MIT
 * Operations on open folders. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/mount/mount.h"
#include "storage/mount/virtual.h"

static int open_source(struct mount *mount, fuse_ino_t node, struct handle **handle) {
  struct source_file *file;
  int status = mount->source->ops->opendir(mount->source, node, &file);
  if (status)
    return status;
  *handle = handle_add(mount, file);
  if (*handle)
    return 0;
  mount->source->ops->release(mount->source, file);
  return -ENOMEM;
}

static int open_virtual(fuse_req_t request, fuse_ino_t node, struct handle **handle) {
  struct mount *mount = mount_of(request);
  *handle = handle_add(mount, NULL);
  if (!*handle)
    return -ENOMEM;
  int status = virtual_opendir(request, node, *handle);
  if (status)
    handle_drop(mount, *handle);
  return status;
}

static void open_folder(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  struct mount *mount = mount_of(request);
  struct handle *handle;
  int status =
      virtual_node(node) ? open_virtual(request, node, &handle) : open_source(mount, node, &handle);
  if (status) {
    reply_status(request, status);
    return;
  }
  info->fh = (uintptr_t)handle;
  if (fuse_reply_open(request, info))
    handle_drop(mount, handle);
}

static void release_folder(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info) {
  (void)node;
  handle_drop(mount_of(request), handle_of(info));
  reply_status(request, 0);
}

static void sync_folder(fuse_req_t request, fuse_ino_t node, int data_only,
                        struct fuse_file_info *info) {
  struct source *source = mount_of(request)->source;
  struct source_file *file = handle_of(info)->file;
  (void)node;
  reply_status(request, file ? source->ops->fsync(source, file, data_only != 0) : 0);
}

/* An answer that is being filled with names. */
struct answer {
  fuse_req_t request;
  fuse_ino_t folder;
  bool plus; /* with each one's attributes, which counts as a lookup */
  char *bytes;
  size_t size, length;
};

static bool is_dots(const char *name) {
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool fits(struct answer *answer, size_t needed) {
  if (needed > answer->size - answer->length)
    return false;
  answer->length += needed;
  return true;
}

static bool add_plain(struct answer *answer, const struct source_name *name) {
  /* 0 would be taken for an entry that was removed. */
  const struct stat stat = {.st_ino = name->inode ? name->inode : UINT32_MAX,
                            .st_mode = name->type};
  return fits(answer,
              fuse_add_direntry(answer->request, answer->bytes + answer->length,
                                answer->size - answer->length, name->name, &stat, name->next));
}

/* A node of 0 says: this is a name, and nobody has looked it up. */
static bool add_plus(struct answer *answer, const struct source_name *name,
                     const struct source_entry *entry) {
  struct fuse_entry_param param;
  fill_entry(&param, entry);
  return fits(answer, fuse_add_direntry_plus(answer->request, answer->bytes + answer->length,
                                             answer->size - answer->length, name->name, &param,
                                             name->next));
}

static bool add_looked_up(struct answer *answer, const struct source_name *name) {
  struct source *source = mount_of(answer->request)->source;
  struct source_entry entry = {
      .stat = {.st_ino = name->inode ? name->inode : UINT32_MAX, .st_mode = name->type}};
  if (is_dots(name->name) || virtual_node(answer->folder))
    return add_plus(answer, name, &entry);
  int status = source->ops->lookup(source, answer->folder, name->name, &entry);
  if (status == -ENOENT)
    return true; /* removed since it was read */
  bool added = add_plus(answer, name, &entry);
  if (!status && !added)
    source->ops->forget(source, entry.node, 1);
  return added;
}

static bool add(void *user, const struct source_name *name) {
  struct answer *answer = user;
  if (!virtual_node(answer->folder) && virtual_name(answer->folder, name->name))
    return true;
  return answer->plus ? add_looked_up(answer, name) : add_plain(answer, name);
}

static int fill(struct answer *answer, struct handle *handle, off_t offset) {
  struct source *source = mount_of(answer->request)->source;
  if (virtual_node(answer->folder))
    return virtual_readdir(answer->request, answer->folder, handle, offset, add, answer);
  return source->ops->readdir(source, handle->file, offset, answer->size, add, answer);
}

static void answer_names(struct answer *answer, off_t offset, const struct fuse_file_info *info) {
  int status = -ENOMEM;
  answer->bytes = malloc(answer->size);
  if (answer->bytes)
    status = fill(answer, handle_of(info), offset);
  /* Nodes that were looked up are the kernel's only if it gets the names. */
  if (status && !answer->length)
    reply_status(answer->request, status);
  else
    fuse_reply_buf(answer->request, answer->bytes, answer->length);
  free(answer->bytes);
}

static void read_folder(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                        struct fuse_file_info *info) {
  struct answer answer = {.request = request, .folder = node, .size = size};
  answer_names(&answer, offset, info);
}

static void read_folder_plus(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                             struct fuse_file_info *info) {
  struct answer answer = {.request = request, .folder = node, .plus = true, .size = size};
  answer_names(&answer, offset, info);
}

void folders_fill(struct fuse_lowlevel_ops *ops) {
  ops->opendir = open_folder;
  ops->releasedir = release_folder;
  ops->fsyncdir = sync_folder;
  ops->readdir = read_folder;
  ops->readdirplus = read_folder_plus;
}
