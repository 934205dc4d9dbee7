/* SPDX-License-Identifier: MIT */
#include "storage/mount/virtual.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER  (SOURCE_HANDLES | 1) /* 3fs-virt */
#define IOVS    (SOURCE_HANDLES | 2)
#define ENTRIES (SOURCE_HANDLES | UINT64_C(1) << 62) /* from here on by virt.h's ids */

static struct virt_caller virt_caller_of(fuse_req_t request) {
  const struct fuse_ctx *context = fuse_req_ctx(request);
  return (struct virt_caller){.uid = context->uid, .gid = context->gid, .thread = context->pid};
}

bool virtual_name(uint64_t folder, const char *name) {
  return virtual_node(folder) || (folder == SOURCE_ROOT && strcmp(name, VIRTUAL_NAME) == 0);
}

/* Any user may register; what is whose, virt.h knows. */
static void stat_folder(const struct mount *mount, uint64_t node, struct stat *stat) {
  *stat = (struct stat){
      .st_ino = node,
      .st_mode = S_IFDIR | (node == IOVS ? 01777 : 0755),
      .st_nlink = node == IOVS ? 2 : 3,
      .st_uid = geteuid(),
      .st_gid = getegid(),
      .st_blksize = 4096,
      .st_atim = mount->since,
      .st_mtim = mount->since,
      .st_ctim = mount->since,
  };
}

static void stat_entry(const struct mount *mount, const struct virt_entry *entry,
                       struct stat *stat) {
  *stat = (struct stat){
      .st_ino = ENTRIES | entry->id,
      .st_mode = entry->mode,
      .st_nlink = 1,
      .st_uid = entry->uid,
      .st_gid = entry->gid,
      .st_size = (off_t)entry->length,
      .st_blksize = 4096,
      .st_atim = mount->since,
      .st_mtim = mount->since,
      .st_ctim = mount->since,
  };
}

static void fill(const struct mount *mount, const struct virt_entry *virt,
                 struct source_entry *entry) {
  stat_entry(mount, virt, &entry->stat);
  entry->node = entry->stat.st_ino;
}

int virtual_lookup(fuse_req_t request, uint64_t folder, const char *name,
                   struct source_entry *entry) {
  struct mount *mount = mount_of(request);
  struct virt_caller caller = virt_caller_of(request);
  struct virt_entry found;
  if (folder == SOURCE_ROOT || (folder == FOLDER && strcmp(name, "iovs") == 0)) {
    entry->node = folder == SOURCE_ROOT ? FOLDER : IOVS;
    stat_folder(mount, entry->node, &entry->stat);
    return 0;
  }
  if (folder != IOVS)
    return -ENOENT;
  int status = virt_lookup(mount->virt, &caller, name, &found);
  if (!status)
    fill(mount, &found, entry);
  return status;
}

int virtual_stat(struct mount *mount, uint64_t node, struct stat *stat) {
  struct virt_entry found;
  if (node == FOLDER || node == IOVS) {
    stat_folder(mount, node, stat);
    return 0;
  }
  int status = virt_stat(mount->virt, node & ~ENTRIES, &found);
  if (!status)
    stat_entry(mount, &found, stat);
  return status;
}

int virtual_readlink(struct mount *mount, uint64_t node, char *target, size_t size) {
  if (node == FOLDER || node == IOVS)
    return -EINVAL;
  return virt_readlink(mount->virt, node & ~ENTRIES, target, size);
}

int virtual_symlink(fuse_req_t request, uint64_t folder, const char *name, const char *target,
                    struct source_entry *entry) {
  struct mount *mount = mount_of(request);
  struct virt_caller caller = virt_caller_of(request);
  struct virt_entry made;
  if (folder != IOVS)
    return -EPERM;
  int status = virt_symlink(mount->virt, &caller, name, target, &made);
  if (!status)
    fill(mount, &made, entry);
  return status;
}

int virtual_unlink(fuse_req_t request, uint64_t folder, const char *name) {
  struct virt_caller caller = virt_caller_of(request);
  return folder == IOVS ? virt_unlink(mount_of(request)->virt, &caller, name) : -EPERM;
}

/* The names of `iovs` at one moment: what comes and goes meanwhile does not shift the others. */
struct listing {
  pthread_mutex_t lock; /* guards it: one handle may be read by several threads */
  struct shown {
    char *name;
    uint64_t inode;
  } * list;
  size_t count;
  int status;
};

static void listing_clear(struct listing *listing) {
  for (size_t i = 0; i < listing->count; i++)
    free(listing->list[i].name);
  free(listing->list);
  listing->list = NULL;
  listing->count = 0;
}

static void listing_add(void *user, const char *name, const struct virt_entry *entry) {
  struct listing *listing = user;
  struct shown *more = realloc(listing->list, (listing->count + 1) * sizeof *more);
  if (more) {
    listing->list = more;
    more[listing->count].name = strdup(name);
    more[listing->count].inode = ENTRIES | entry->id;
  }
  if (more && more[listing->count].name)
    listing->count++;
  else
    listing->status = -ENOMEM;
}

int virtual_opendir(fuse_req_t request, uint64_t node, struct handle *handle) {
  struct virt_caller caller = virt_caller_of(request);
  if (node != FOLDER && node != IOVS)
    return -ENOTDIR;
  handle->listing = calloc(1, sizeof *handle->listing);
  if (!handle->listing)
    return -ENOMEM;
  pthread_mutex_init(&handle->listing->lock, NULL);
  if (node == FOLDER)
    return 0;
  int status = virt_hold(mount_of(request)->virt, &caller, &handle->key);
  handle->registered = status == 0;
  return status;
}

void virtual_releasedir(struct mount *mount, struct handle *handle) {
  struct listing *listing = handle->listing;
  if (handle->registered)
    virt_release(mount->virt, handle->key);
  if (!listing)
    return;
  listing_clear(listing);
  pthread_mutex_destroy(&listing->lock);
  free(listing);
}

/* The names as virt.h has them now, behind "." and "..". */
static int listing_take(fuse_req_t request, struct listing *listing) {
  struct virt_caller caller = virt_caller_of(request);
  listing_clear(listing);
  listing->status = 0;
  virt_list(mount_of(request)->virt, &caller, listing_add, listing);
  return listing->status;
}

/* The name at a place; false: there is none. */
static bool name_at(uint64_t node, const struct listing *listing, size_t at,
                    struct source_name *name) {
  *name = (struct source_name){.type = S_IFDIR, .next = (off_t)at + 1};
  if (at < 2) {
    name->name = at == 0 ? "." : "..";
    name->inode = at == 0 ? node : 0;
  } else if (node == FOLDER) {
    name->name = "iovs";
    name->inode = IOVS;
    return at == 2;
  } else {
    if (at - 2 >= listing->count)
      return false;
    name->name = listing->list[at - 2].name;
    name->inode = listing->list[at - 2].inode;
    name->type = S_IFLNK;
  }
  return true;
}

int virtual_readdir(fuse_req_t request, uint64_t node, struct handle *handle, off_t offset,
                    bool (*each)(void *user, const struct source_name *name), void *user) {
  struct listing *listing = handle->listing;
  struct source_name name;
  int status = 0;
  if (offset < 0)
    return -EINVAL;
  pthread_mutex_lock(&listing->lock);
  if (offset == 0 && node == IOVS)
    status = listing_take(request, listing);
  for (size_t at = (size_t)offset; !status && name_at(node, listing, at, &name); at++)
    if (!each(user, &name))
      break;
  pthread_mutex_unlock(&listing->lock);
  return status;
}
