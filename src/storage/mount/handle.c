/* SPDX-License-Identifier: MIT
 * Handles, and answers. */
#include <errno.h>
#include <stdlib.h>

#include "storage/far.h"
#include "storage/files.h"
#include "storage/mount/mount.h"
#include "storage/mount/virtual.h"

#define KEEP_S 1.0

struct handle *handle_add(struct mount *mount, struct source_file *file) {
  struct handle *handle = calloc(1, sizeof *handle);
  if (!handle)
    return NULL;
  handle->file = file;
  pthread_mutex_lock(&mount->lock);
  list_append(&mount->open, &handle->link);
  pthread_mutex_unlock(&mount->lock);
  return handle;
}

void handle_drop(struct mount *mount, struct handle *handle) {
  pthread_mutex_lock(&mount->lock);
  list_remove(&handle->link);
  pthread_mutex_unlock(&mount->lock);
  if (!handle->file)
    virtual_releasedir(mount, handle);
  else if (handle->registered)
    files_closed(mount->files, handle->key);
  far_put(handle->far);
  if (handle->file && !handle->far)
    mount->source->ops->release(mount->source, handle->file);
  free(handle);
}

void handle_drop_all(struct mount *mount) {
  while (!list_empty(&mount->open))
    handle_drop(mount, list_entry(mount->open.next, struct handle, link));
}

void reply_status(fuse_req_t request, int status) {
  fuse_reply_err(request, -status);
}

void fill_entry(struct fuse_entry_param *param, const struct source_entry *entry) {
  bool own = virtual_node(entry->node);
  *param = (struct fuse_entry_param){
      .ino = entry->node,
      .attr = entry->stat,
      .attr_timeout = own || S_ISREG(entry->stat.st_mode) ? 0 : KEEP_S,
      .entry_timeout = own ? 0 : KEEP_S, /* whose it is, is asked for each user */
  };
}

void reply_entry(fuse_req_t request, int status, const struct source_entry *entry) {
  struct mount *mount = mount_of(request);
  struct fuse_entry_param param;
  if (status) {
    reply_status(request, status);
    return;
  }
  fill_entry(&param, entry);
  if (fuse_reply_entry(request, &param) && !virtual_node(entry->node))
    mount->source->ops->forget(mount->source, entry->node, 1);
}

void reply_stat(fuse_req_t request, int status, const struct stat *stat) {
  if (status)
    reply_status(request, status);
  else
    fuse_reply_attr(request, stat, S_ISREG(stat->st_mode) ? 0 : KEEP_S);
}

void reply_bytes(fuse_req_t request, ssize_t length, const void *bytes) {
  if (length < 0)
    reply_status(request, (int)length);
  else
    fuse_reply_buf(request, bytes, (size_t)length);
}
