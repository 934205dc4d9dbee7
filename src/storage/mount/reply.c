/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "storage/files.h"
#include "storage/mount/mount.h"

#define CACHE_S 1.0 /* seconds that the kernel caches names and attributes */

#define GROUPS_FIRST 64
#define GROUPS_MAX   65536 /* of a process: the kernel's NGROUPS_MAX */

struct source_caller caller_of(fuse_req_t request) {
  const struct fuse_ctx *context = fuse_req_ctx(request);
  return (struct source_caller){.uid = context->uid, .gid = context->gid, .checked = true};
}

/* Returns the number of groups, which may exceed `room`. */
static int read_groups(fuse_req_t request, int room, gid_t **groups) {
  gid_t *more = realloc(*groups, (size_t)room * sizeof *more);
  if (!more)
    return -ENOMEM;
  *groups = more;
  return fuse_req_getgroups(request, room, more);
}

int caller_unchecked(fuse_req_t request, struct source_caller *caller, gid_t **groups) {
  const struct fuse_ctx *context = fuse_req_ctx(request);
  *groups = NULL;
  int count = read_groups(request, GROUPS_FIRST, groups);
  if (count > GROUPS_FIRST) {
    int room = count < GROUPS_MAX ? count : GROUPS_MAX;
    count = read_groups(request, room, groups);
    count = count > room ? -EAGAIN : count; /* they changed in between */
  }
  if (count < 0)
    return count;
  *caller = (struct source_caller){
      .uid = context->uid, .gid = context->gid, .groups = *groups, .group_count = (size_t)count};
  return 0;
}

struct handle *handle_add(struct mount *mount, struct source_file *file) {
  struct handle *handle = calloc(1, sizeof *handle);
  if (!handle) {
    if (file)
      mount->source->ops->release(mount->source, file);
    return NULL;
  }
  handle->file = file;
  pthread_mutex_lock(&mount->lock);
  list_append(&mount->handles, &handle->link);
  pthread_mutex_unlock(&mount->lock);
  return handle;
}

void handle_drop(struct mount *mount, struct handle *handle) {
  pthread_mutex_lock(&mount->lock);
  list_remove(&handle->link);
  pthread_mutex_unlock(&mount->lock);
  if (!handle->file)
    control_releasedir(mount, handle);
  else if (handle->registered)
    files_remove(mount->files, handle->key);
  remote_file_put(handle->remote);
  if (handle->file && !handle->remote)
    mount->source->ops->release(mount->source, handle->file);
  free(handle);
}

void reply_status(fuse_req_t request, int status) {
  fuse_reply_err(request, -status);
}

/* Links of 3fs-virt are not cached, as they differ by user. */
void fill_entry(struct fuse_entry_param *param, const struct source_entry *entry) {
  bool control = control_is_node(entry->node);
  *param = (struct fuse_entry_param){
      .ino = entry->node,
      .attr = entry->stat,
      .attr_timeout = control || S_ISREG(entry->stat.st_mode) ? 0 : CACHE_S,
      .entry_timeout = control ? 0 : CACHE_S,
  };
}

void reply_entry(fuse_req_t request, int status, const struct source_entry *entry) {
  struct source *source = source_of(request);
  struct fuse_entry_param param;
  if (status) {
    reply_status(request, status);
    return;
  }
  fill_entry(&param, entry);
  if (fuse_reply_entry(request, &param) && !control_is_node(entry->node))
    source->ops->forget(source, entry->node, 1);
}

void reply_stat(fuse_req_t request, int status, const struct stat *stat) {
  if (status)
    reply_status(request, status);
  else
    fuse_reply_attr(request, stat, S_ISREG(stat->st_mode) ? 0 : CACHE_S);
}

void reply_bytes(fuse_req_t request, ssize_t length, const void *bytes) {
  if (length < 0)
    reply_status(request, (int)length);
  else
    fuse_reply_buf(request, bytes, (size_t)length);
}
