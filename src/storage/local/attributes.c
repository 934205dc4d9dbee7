/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "storage/local/local.h"

int local_getattr(struct source *source, uint64_t handle, struct source_file *file,
                  struct stat *stat) {
  struct local *local = local_of(source);
  struct node *node = nodes_get(&local->nodes, handle);
  (void)file; /* the node's descriptor does for both */
  if (!node)
    return -ESTALE;
  int result = local_stat(node, stat);
  nodes_put(&local->nodes, node);
  return result;
}

static int set_owner(const struct node *node, const struct source_change *change) {
  uid_t uid = change->which & SOURCE_UID ? change->uid : (uid_t)-1;
  gid_t gid = change->which & SOURCE_GID ? change->gid : (gid_t)-1;
  return fchownat(node->fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
}

static int set_mode(const struct node *node, mode_t mode) {
  char path[PROC_ROOM];
  local_proc_path(path, node);
  return chmod(path, mode & 07777);
}

/* Through the open file where it may write: it may have been opened before the rights went. */
static int set_size(const struct node *node, const struct source_file *file, off_t size) {
  char path[PROC_ROOM];
  if (file && (fcntl(file->fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
    return ftruncate(file->fd, size);
  local_proc_path(path, node);
  return truncate(path, size);
}

static int set_times(const struct node *node, const struct timespec times[2]) {
  return utimensat(node->fd, "", times, AT_EMPTY_PATH);
}

/* The owner before the mode: changing it takes set-user and set-group bits away. */
static int change_node(const struct node *node, const struct source_file *file,
                       const struct source_change *change) {
  if ((change->which & (SOURCE_UID | SOURCE_GID)) && set_owner(node, change))
    return -errno;
  if ((change->which & SOURCE_MODE) && set_mode(node, change->mode))
    return -errno;
  if ((change->which & SOURCE_SIZE) && set_size(node, file, change->size))
    return -errno;
  if ((change->which & SOURCE_TIMES) && set_times(node, change->times))
    return -errno;
  return 0;
}

int local_setattr(struct source *source, uint64_t handle, struct source_file *file,
                  const struct source_change *change, struct stat *stat) {
  struct local *local = local_of(source);
  if (local->read_only)
    return -EROFS;
  struct node *node = nodes_get(&local->nodes, handle);
  if (!node)
    return -ESTALE;
  int result = change_node(node, file, change);
  if (!result)
    result = local_stat(node, stat);
  nodes_put(&local->nodes, node);
  return result;
}

/* The node held, and its name under /proc; NULL: there is none. */
static struct node *take(struct source *source, uint64_t handle, char path[PROC_ROOM]) {
  struct node *node = nodes_get(&local_of(source)->nodes, handle);
  if (node)
    local_proc_path(path, node);
  return node;
}

ssize_t local_getxattr(struct source *source, uint64_t handle, const char *name, void *value,
                       size_t size) {
  char path[PROC_ROOM];
  struct node *node = take(source, handle, path);
  if (!node)
    return -ESTALE;
  ssize_t length = getxattr(path, name, value, size);
  if (length < 0)
    length = -errno;
  nodes_put(&local_of(source)->nodes, node);
  return length;
}

ssize_t local_listxattr(struct source *source, uint64_t handle, char *list, size_t size) {
  char path[PROC_ROOM];
  struct node *node = take(source, handle, path);
  if (!node)
    return -ESTALE;
  ssize_t length = listxattr(path, list, size);
  if (length < 0)
    length = -errno;
  nodes_put(&local_of(source)->nodes, node);
  return length;
}

int local_setxattr(struct source *source, uint64_t handle, const char *name, const void *value,
                   size_t size, int flags) {
  char path[PROC_ROOM];
  if (local_of(source)->read_only)
    return -EROFS;
  struct node *node = take(source, handle, path);
  if (!node)
    return -ESTALE;
  int result = setxattr(path, name, value, size, flags) ? -errno : 0;
  nodes_put(&local_of(source)->nodes, node);
  return result;
}

int local_removexattr(struct source *source, uint64_t handle, const char *name) {
  char path[PROC_ROOM];
  if (local_of(source)->read_only)
    return -EROFS;
  struct node *node = take(source, handle, path);
  if (!node)
    return -ESTALE;
  int result = removexattr(path, name) ? -errno : 0;
  nodes_put(&local_of(source)->nodes, node);
  return result;
}
