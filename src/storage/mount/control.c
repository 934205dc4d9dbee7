/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "storage/mount/mount.h"

#define FOLDER (SOURCE_HANDLES | 1) /* 3fs-virt */
#define IOVS   (SOURCE_HANDLES | 2)
#define LINKS  (SOURCE_HANDLES | UINT64_C(1) << 62) /* plus the link's id */

static struct control_caller control_caller_of(fuse_req_t request) {
  const struct fuse_ctx *context = fuse_req_ctx(request);
  return (struct control_caller){.uid = context->uid, .gid = context->gid, .thread = context->pid};
}

bool control_is_name(uint64_t folder, const char *name) {
  return control_is_node(folder) || (folder == SOURCE_ROOT && strcmp(name, CONTROL_DIR) == 0);
}

static void fill_stat(const struct mount *mount, uint64_t inode, struct stat *stat) {
  *stat = (struct stat){
      .st_ino = inode,
      .st_nlink = 1,
      .st_blksize = 4096,
      .st_atim = mount->since,
      .st_mtim = mount->since,
      .st_ctim = mount->since,
  };
}

/* Every user may create links in iovs. The sticky bit shows the checks of control_dir.h. */
static void stat_folder(const struct mount *mount, uint64_t node, struct stat *stat) {
  fill_stat(mount, node, stat);
  stat->st_mode = S_IFDIR | (node == IOVS ? 01777 : 0755);
  stat->st_nlink = node == IOVS ? 2 : 3;
  stat->st_uid = geteuid();
  stat->st_gid = getegid();
}

static void stat_link(const struct mount *mount, const struct control_link *link,
                      struct stat *stat) {
  fill_stat(mount, LINKS | link->id, stat);
  stat->st_mode = link->mode;
  stat->st_uid = link->uid;
  stat->st_gid = link->gid;
  stat->st_size = (off_t)link->length;
}

static void fill_link_entry(const struct mount *mount, const struct control_link *link,
                            struct source_entry *entry) {
  stat_link(mount, link, &entry->stat);
  entry->node = entry->stat.st_ino;
}

int control_lookup(fuse_req_t request, uint64_t folder, const char *name,
                   struct source_entry *entry) {
  struct mount *mount = mount_of(request);
  struct control_caller caller = control_caller_of(request);
  struct control_link link;
  if (folder == SOURCE_ROOT || (folder == FOLDER && strcmp(name, "iovs") == 0)) {
    entry->node = folder == SOURCE_ROOT ? FOLDER : IOVS;
    stat_folder(mount, entry->node, &entry->stat);
    return 0;
  }
  if (folder != IOVS)
    return -ENOENT;
  int status = control_dir_lookup(mount->control, &caller, name, &link);
  if (!status)
    fill_link_entry(mount, &link, entry);
  return status;
}

int control_stat(struct mount *mount, uint64_t node, struct stat *stat) {
  struct control_link link;
  if (node == FOLDER || node == IOVS) {
    stat_folder(mount, node, stat);
    return 0;
  }
  int status = control_dir_stat(mount->control, node & ~LINKS, &link);
  if (!status)
    stat_link(mount, &link, stat);
  return status;
}

int control_readlink(struct mount *mount, uint64_t node, char *target, size_t size) {
  if (node == FOLDER || node == IOVS)
    return -EINVAL;
  return control_dir_readlink(mount->control, node & ~LINKS, target, size);
}

int control_symlink(fuse_req_t request, uint64_t folder, const char *name, const char *target,
                    struct source_entry *entry) {
  struct mount *mount = mount_of(request);
  struct control_caller caller = control_caller_of(request);
  struct control_link link;
  if (folder != IOVS)
    return -EPERM;
  int status = control_dir_symlink(mount->control, &caller, name, target, &link);
  if (!status)
    fill_link_entry(mount, &link, entry);
  return status;
}

int control_unlink(fuse_req_t request, uint64_t folder, const char *name) {
  struct control_caller caller = control_caller_of(request);
  if (folder != IOVS)
    return -EPERM;
  return control_dir_unlink(mount_of(request)->control, &caller, name);
}

/* A snapshot of the names of iovs, so that changes do not shift the offsets of a reader. */
struct listing {
  pthread_mutex_t lock; /* guards the listing: several threads may read one handle */
  struct listed {
    char *name;
    uint64_t inode;
  } * list;
  size_t count;
  int status;
};

static void clear_listing(struct listing *listing) {
  for (size_t i = 0; i < listing->count; i++)
    free(listing->list[i].name);
  free(listing->list);
  listing->list = NULL;
  listing->count = 0;
  listing->status = 0;
}

static void add_to_listing(void *user, const char *name, const struct control_link *link) {
  struct listing *listing = user;
  struct listed *more = realloc(listing->list, (listing->count + 1) * sizeof *more);
  if (more) {
    listing->list = more;
    more[listing->count] = (struct listed){strdup(name), LINKS | link->id};
  }
  if (more && more[listing->count].name)
    listing->count++;
  else
    listing->status = -ENOMEM;
}

int control_opendir(fuse_req_t request, uint64_t node, struct handle *handle) {
  struct control_caller caller = control_caller_of(request);
  if (node != FOLDER && node != IOVS)
    return -ENOTDIR;
  handle->listing = calloc(1, sizeof *handle->listing);
  if (!handle->listing)
    return -ENOMEM;
  pthread_mutex_init(&handle->listing->lock, NULL);
  if (node == FOLDER)
    return 0;
  int status = control_dir_hold(mount_of(request)->control, &caller, &handle->key);
  handle->registered = status == 0;
  return status;
}

void control_releasedir(struct mount *mount, struct handle *handle) {
  struct listing *listing = handle->listing;
  if (handle->registered)
    control_dir_release(mount->control, handle->key);
  if (!listing)
    return;
  clear_listing(listing);
  pthread_mutex_destroy(&listing->lock);
  free(listing);
}

/* The name at an offset; false: there is none. */
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

int control_readdir(fuse_req_t request, uint64_t node, struct handle *handle, off_t offset,
                    source_each *each, void *user) {
  struct control_caller caller = control_caller_of(request);
  struct listing *listing = handle->listing;
  struct source_name name;
  int status = 0;
  if (offset < 0)
    return -EINVAL;
  pthread_mutex_lock(&listing->lock);
  if (offset == 0 && node == IOVS) {
    clear_listing(listing);
    control_dir_list(mount_of(request)->control, &caller, add_to_listing, listing);
    status = listing->status;
  }
  for (size_t at = (size_t)offset; !status && name_at(node, listing, at, &name); at++)
    if (!each(user, &name))
      break;
  pthread_mutex_unlock(&listing->lock);
  return status;
}
