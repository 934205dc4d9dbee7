/* SPDX-License-Identifier: MIT */
#include "storage/local.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "storage/local/local.h"

static void close_source(struct source *source) {
  struct local *local = local_of(source);
  nodes_close(&local->nodes);
  free(local);
}

void local_proc_path(char path[PROC_ROOM], const struct node *node) {
  snprintf(path, PROC_ROOM, "/proc/self/fd/%d", node->fd);
}

int local_stat(const struct node *node, struct stat *stat) {
  if (fstatat(node->fd, "", stat, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
    return -errno;
  stat->st_ino = node->inode;
  return 0;
}

int local_admit(struct local *local, const struct node *folder, const char *name,
                struct source_entry *entry) {
  int fd = openat(folder->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  return local_admit_fd(local, fd, entry);
}

static void leave_out(struct source *source, dev_t device) {
  local_of(source)->left_out = device;
}

/* By what the kernel has at hand: it asks no file system for that. */
static bool is_left_out(const struct local *local, int fd) {
  struct statx stat;
  if (!local->left_out || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &stat))
    return false;
  return makedev(stat.stx_dev_major, stat.stx_dev_minor) == local->left_out;
}

int local_admit_fd(struct local *local, int fd, struct source_entry *entry) {
  if (is_left_out(local, fd)) {
    close(fd);
    return -ELOOP;
  }
  if (fstatat(fd, "", &entry->stat, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) {
    int result = -errno;
    close(fd);
    return result;
  }
  return nodes_admit(&local->nodes, fd, &entry->stat, &entry->node);
}

static int lookup(struct source *source, uint64_t folder, const char *name,
                  struct source_entry *entry) {
  struct local *local = local_of(source);
  int result = source_check_name(name);
  if (result)
    return result;
  struct node *node = nodes_get(&local->nodes, folder);
  if (!node)
    return -ESTALE;
  result = local_admit(local, node, name, entry);
  nodes_put(&local->nodes, node);
  return result;
}

static void forget(struct source *source, uint64_t node, uint64_t count) {
  nodes_forget(&local_of(source)->nodes, node, count);
}

static int find(struct source *source, uint64_t inode, struct source_entry *entry) {
  struct local *local = local_of(source);
  struct node *node = nodes_find(&local->nodes, inode);
  if (!node)
    return -ESTALE;
  entry->node = node->handle;
  int result = local_stat(node, &entry->stat);
  if (result)
    nodes_forget(&local->nodes, node->handle, 1);
  nodes_put(&local->nodes, node);
  return result;
}

static ssize_t read_link(struct source *source, uint64_t handle, char *target, size_t size) {
  struct local *local = local_of(source);
  struct node *node = nodes_get(&local->nodes, handle);
  if (!node)
    return -ESTALE;
  ssize_t length = readlinkat(node->fd, "", target, size);
  if (length < 0)
    length = errno == ENOENT ? -EINVAL : -errno; /* what it says of no symlink */
  nodes_put(&local->nodes, node);
  return length >= 0 && (size_t)length == size ? -ENAMETOOLONG : length;
}

static int stat_source(struct source *source, struct statvfs *stat) {
  struct local *local = local_of(source);
  struct node *node = nodes_get(&local->nodes, SOURCE_ROOT);
  int result = fstatvfs(node->fd, stat) ? -errno : 0;
  nodes_put(&local->nodes, node);
  return result;
}

static const struct source_ops ops = {
    .close = close_source,
    .leave_out = leave_out,
    .lookup = lookup,
    .forget = forget,
    .find = find,
    .getattr = local_getattr,
    .setattr = local_setattr,
    .readlink = read_link,
    .statfs = stat_source,
    .mkdir = local_mkdir,
    .symlink = local_symlink,
    .mknod = local_mknod,
    .link = local_link,
    .unlink = local_unlink,
    .rmdir = local_rmdir,
    .rename = local_rename,
    .open = local_open_node,
    .create = local_create,
    .release = local_release,
    .read = local_read,
    .write = local_write,
    .flush = local_flush,
    .fsync = local_fsync,
    .fallocate = local_fallocate,
    .lseek = local_lseek,
    .opendir = local_opendir,
    .readdir = local_readdir,
    .getxattr = local_getxattr,
    .listxattr = local_listxattr,
    .setxattr = local_setxattr,
    .removexattr = local_removexattr,
};

static int admit_root(struct local *local, const char *path) {
  struct source_entry root;
  int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  /* O_PATH asks for no right to read: whether there is one is told now, and not to each user. */
  if (faccessat(fd, "", R_OK | X_OK, AT_EMPTY_PATH | AT_EACCESS)) {
    int result = -errno;
    close(fd);
    return result;
  }
  return local_admit_fd(local, fd, &root);
}

void local_bound(struct source *source, size_t nodes) {
  local_of(source)->nodes.most = nodes + 1;
}

int local_open(const char *path, bool read_only, struct source **source) {
  struct local *local = calloc(1, sizeof *local);
  if (!local)
    return -ENOMEM;
  int result = nodes_open(&local->nodes);
  if (result)
    goto no_nodes;
  result = admit_root(local, path);
  if (result)
    goto no_root;
  local->source.ops = &ops;
  local->read_only = read_only;
  *source = &local->source;
  return 0;
no_root:
  nodes_close(&local->nodes);
no_nodes:
  free(local);
  return result;
}
