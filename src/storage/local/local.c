/* SPDX-License-Identifier: MIT
 * The table of the source; lookups, attributes, and changes of folders. */
#include "storage/local/local.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "storage/credentials.h"

void local_proc_path(char path[PROC_ROOM], int fd) {
  snprintf(path, PROC_ROOM, "/proc/self/fd/%d", fd);
}

/* Makes a node of an O_PATH descriptor, which it takes. */
static int local_add_fd(struct local *local, int fd, struct source_entry *entry) {
  struct statx device; /* from the kernel's cache, without a request to the file system */
  int result = 0;
  if (local->left_out && statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &device) == 0 &&
      makedev(device.stx_dev_major, device.stx_dev_minor) == local->left_out)
    result = -ELOOP;
  else if (fstatat(fd, "", &entry->stat, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
    result = -errno;
  if (result) {
    close(fd);
    return result;
  }
  return nodes_add(&local->nodes, fd, &entry->stat, &entry->node);
}

static int local_add_name(struct local *local, const struct node *folder, const char *name,
                          struct source_entry *entry) {
  int fd = openat(folder->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  return fd < 0 ? -errno : local_add_fd(local, fd, entry);
}

/* A reference to a node; NULL: the handle is stale. */
static struct node *get_node(struct source *source, uint64_t handle) {
  return nodes_get(&local_of(source)->nodes, handle);
}

static void put_node(struct source *source, struct node *node) {
  nodes_put(&local_of(source)->nodes, node);
}

static int local_lookup(struct source *source, uint64_t folder, const char *name,
                        struct source_entry *entry) {
  int result = source_check_name(name);
  if (result)
    return result;
  struct node *node = get_node(source, folder);
  if (!node)
    return -ESTALE;
  result = local_add_name(local_of(source), node, name, entry);
  put_node(source, node);
  return result;
}

static void local_forget(struct source *source, uint64_t node, uint64_t count) {
  nodes_forget(&local_of(source)->nodes, node, count);
}

static void local_leave_out(struct source *source, dev_t device) {
  local_of(source)->left_out = device;
}

static int stat_node(const struct node *node, struct stat *stat) {
  if (fstatat(node->fd, "", stat, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
    return -errno;
  stat->st_ino = node->inode;
  return 0;
}

static int local_find(struct source *source, uint64_t inode, struct source_entry *entry) {
  struct local *local = local_of(source);
  struct node *node = nodes_find(&local->nodes, inode);
  if (!node)
    return -ESTALE;
  entry->node = node->handle;
  int result = stat_node(node, &entry->stat);
  if (result)
    nodes_forget(&local->nodes, node->handle, 1);
  nodes_put(&local->nodes, node);
  return result;
}

static int local_getattr(struct source *source, uint64_t handle, struct source_file *file,
                         struct stat *stat) {
  struct node *node = get_node(source, handle);
  (void)file;
  if (!node)
    return -ESTALE;
  int result = stat_node(node, stat);
  put_node(source, node);
  return result;
}

/* Through the open file where it is writable: it may have been opened before the mode changed. */
static int set_size(const struct node *node, const struct source_file *file, off_t size) {
  char path[PROC_ROOM];
  if (file && (fcntl(file->fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
    return ftruncate(file->fd, size);
  local_proc_path(path, node->fd);
  return truncate(path, size);
}

/* The owner before the mode: a change of owner clears set-user-ID and set-group-ID bits. */
static int change_node(const struct node *node, const struct source_file *file,
                       const struct source_change *change) {
  uid_t uid = change->which & SOURCE_UID ? change->uid : (uid_t)-1;
  gid_t gid = change->which & SOURCE_GID ? change->gid : (gid_t)-1;
  char path[PROC_ROOM];
  local_proc_path(path, node->fd);
  if ((change->which & (SOURCE_UID | SOURCE_GID)) &&
      fchownat(node->fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
    return -errno;
  if ((change->which & SOURCE_MODE) && chmod(path, change->mode & 07777))
    return -errno;
  if ((change->which & SOURCE_SIZE) && set_size(node, file, change->size))
    return -errno;
  if ((change->which & SOURCE_TIMES) && utimensat(node->fd, "", change->times, AT_EMPTY_PATH))
    return -errno;
  return 0;
}

static int local_setattr(struct source *source, uint64_t handle, struct source_file *file,
                         const struct source_change *change, struct stat *stat) {
  if (local_of(source)->read_only)
    return -EROFS;
  struct node *node = get_node(source, handle);
  if (!node)
    return -ESTALE;
  int result = change_node(node, file, change);
  if (!result)
    result = stat_node(node, stat);
  put_node(source, node);
  return result;
}

static ssize_t local_readlink(struct source *source, uint64_t handle, char *target, size_t size) {
  struct node *node = get_node(source, handle);
  if (!node)
    return -ESTALE;
  ssize_t length = readlinkat(node->fd, "", target, size);
  if (length < 0)
    length = errno == ENOENT ? -EINVAL : -errno; /* ENOENT: it is not a symlink */
  put_node(source, node);
  return length >= 0 && (size_t)length == size ? -ENAMETOOLONG : length;
}

static int local_statfs(struct source *source, struct statvfs *stat) {
  struct node *node = get_node(source, SOURCE_ROOT);
  int result = fstatvfs(node->fd, stat) ? -errno : 0;
  put_node(source, node);
  return result;
}

int local_get_folder(struct source *source, uint64_t handle, const char *name,
                     struct node **folder) {
  int result = source_check_name(name);
  if (result)
    return result;
  if (local_of(source)->read_only)
    return -EROFS;
  *folder = get_node(source, handle);
  return *folder ? 0 : -ESTALE;
}

static bool is_same(const struct stat *one, const struct stat *other) {
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Whether the thread's user may search all folders from the root to this one; each lookup of ".."
 * needs that right. -ESTALE: it is outside of the root, or deeper than a path can name. */
static int check_path_to(int folder, int root) {
  struct stat top = {0}, here = {0}, above = {0};
  int at = openat(folder, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  int result = at < 0 || fstat(at, &here) || fstat(root, &top) ? -errno : 0;
  for (int level = 0; !result && !is_same(&here, &top); level++) {
    int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    close(at);
    at = up;
    if (at < 0 || fstat(at, &above))
      result = -errno;
    else if (is_same(&here, &above) || level == PATH_MAX / 2)
      result = -ESTALE;
    else
      here = above;
  }
  if (!result && fstatat(at, ".", &here, 0))
    result = -errno;
  if (at >= 0)
    close(at);
  return result;
}

/* For callers whose rights to the folder itself the kernel checks at the change. */
static int check_reach(struct source *source, const struct source_caller *caller,
                       const struct node *folder) {
  if (caller->checked)
    return 0;
  struct node *root = get_node(source, SOURCE_ROOT);
  int result = check_path_to(folder->fd, root->fd);
  put_node(source, root);
  return result;
}

/* `linked`: a descriptor of the file that a hard link names, or -1. */
static int make_at(int folder, const char *name, const struct source_new *wanted, int linked) {
  char path[PROC_ROOM];
  switch (wanted->kind) {
  case SOURCE_FOLDER:
    return mkdirat(folder, name, wanted->mode & 07777);
  case SOURCE_FILE:
    return mknodat(folder, name, S_IFREG | (wanted->mode & 07777), 0);
  case SOURCE_SYMLINK:
    return symlinkat(wanted->target, folder, name);
  default:
    local_proc_path(path, linked);
    return linkat(AT_FDCWD, path, folder, name, AT_SYMLINK_FOLLOW);
  }
}

static int make_name(struct source *source, const struct source_caller *caller, uint64_t folder,
                     const char *name, const struct source_new *wanted, int linked,
                     struct source_entry *entry) {
  struct node *parent;
  struct credentials own;
  int result = local_get_folder(source, folder, name, &parent);
  if (result)
    return result;
  result = credentials_assume(&own, caller);
  if (!result)
    result = check_reach(source, caller, parent);
  if (!result && make_at(parent->fd, name, wanted, linked))
    result = -errno;
  credentials_restore(&own);
  if (!result)
    result = local_add_name(local_of(source), parent, name, entry);
  put_node(source, parent);
  return result;
}

static int local_make(struct source *source, const struct source_caller *caller, uint64_t folder,
                      const char *name, const struct source_new *wanted,
                      struct source_entry *entry) {
  if (wanted->kind == SOURCE_FILE && (wanted->mode & S_IFMT) && !S_ISREG(wanted->mode))
    return -EPERM;
  if (wanted->kind != SOURCE_LINK)
    return make_name(source, caller, folder, name, wanted, -1, entry);
  struct node *linked = get_node(source, wanted->node);
  if (!linked)
    return -ESTALE;
  int result = make_name(source, caller, folder, name, wanted, linked->fd, entry);
  put_node(source, linked);
  return result;
}

static int local_unlink(struct source *source, uint64_t folder, const char *name, int flags) {
  struct node *parent;
  int result = local_get_folder(source, folder, name, &parent);
  if (result)
    return result;
  result = unlinkat(parent->fd, name, flags) ? -errno : 0;
  put_node(source, parent);
  return result;
}

/* The kernel checks the rights of a caller that is not checked. */
static int rename_for(struct source *source, const struct source_caller *caller,
                      const struct node *from, const char *name, const struct node *to,
                      const char *new_name, unsigned flags) {
  struct credentials own = {0};
  int result = caller->checked ? 0 : credentials_assume(&own, caller);
  if (!result && from != to)
    result = check_reach(source, caller, to);
  if (!result && renameat2(from->fd, name, to->fd, new_name, flags))
    result = -errno;
  credentials_restore(&own);
  return result;
}

static int local_rename(struct source *source, const struct source_caller *caller, uint64_t folder,
                        const char *name, uint64_t new_folder, const char *new_name,
                        unsigned flags) {
  struct node *from, *to;
  if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
    return -EINVAL;
  int result = local_get_folder(source, folder, name, &from);
  if (result)
    return result;
  result = local_get_folder(source, new_folder, new_name, &to);
  if (!result) {
    result = rename_for(source, caller, from, name, to, new_name, flags);
    put_node(source, to);
  }
  put_node(source, from);
  return result;
}

/* Never opens an existing file: the caller was checked for the folder, not for that. */
static int create_and_open(int folder, const char *name, const struct source_caller *caller,
                           mode_t mode, int flags) {
  struct credentials own;
  int fd = credentials_assume(&own, caller);
  if (!fd) {
    fd = openat(folder, name, (flags & O_ACCMODE) | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                mode & 07777);
    if (fd < 0)
      fd = -errno;
  }
  credentials_restore(&own);
  return fd;
}

/* Takes the descriptor. The node is made of it: its name may be another file's by now. */
static int add_new_file(struct local *local, int fd, struct source_entry *entry,
                        struct source_file **file) {
  char path[PROC_ROOM];
  local_proc_path(path, fd);
  int node = open(path, O_PATH | O_CLOEXEC);
  int result = node < 0 ? -errno : local_add_fd(local, node, entry);
  if (result) {
    close(fd);
    return result;
  }
  result = local_new_file(local, nodes_get(&local->nodes, entry->node), fd, file);
  if (result)
    nodes_forget(&local->nodes, entry->node, 1);
  return result;
}

static int local_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                        const char *name, mode_t mode, int flags, struct source_entry *entry,
                        struct source_file **file) {
  struct node *parent;
  int result = local_get_folder(source, folder, name, &parent);
  if (result)
    return result;
  int fd = create_and_open(parent->fd, name, caller, mode, flags);
  result = fd < 0 ? fd : add_new_file(local_of(source), fd, entry, file);
  if (fd >= 0 && result)
    unlinkat(parent->fd, name, 0);
  put_node(source, parent);
  return result;
}

/* As nodes_get, with the node's path in /proc. */
static struct node *get_with_path(struct source *source, uint64_t handle, char path[PROC_ROOM]) {
  struct node *node = get_node(source, handle);
  if (node)
    local_proc_path(path, node->fd);
  return node;
}

/* Puts the node; the result of a system call, or its errno value. */
static ssize_t put_result(struct source *source, struct node *node, ssize_t result) {
  if (result < 0)
    result = -errno;
  put_node(source, node);
  return result;
}

static ssize_t local_getxattr(struct source *source, uint64_t handle, const char *name, void *value,
                              size_t size) {
  char path[PROC_ROOM];
  struct node *node = get_with_path(source, handle, path);
  if (!node)
    return -ESTALE;
  return put_result(source, node,
                    name ? getxattr(path, name, value, size) : listxattr(path, value, size));
}

static int local_setxattr(struct source *source, uint64_t handle, const char *name,
                          const void *value, size_t size, int flags) {
  char path[PROC_ROOM];
  if (local_of(source)->read_only)
    return -EROFS;
  struct node *node = get_with_path(source, handle, path);
  return node ? (int)put_result(source, node, setxattr(path, name, value, size, flags)) : -ESTALE;
}

static int local_removexattr(struct source *source, uint64_t handle, const char *name) {
  char path[PROC_ROOM];
  if (local_of(source)->read_only)
    return -EROFS;
  struct node *node = get_with_path(source, handle, path);
  return node ? (int)put_result(source, node, removexattr(path, name)) : -ESTALE;
}

static void local_close(struct source *source) {
  struct local *local = local_of(source);
  nodes_close(&local->nodes);
  free(local);
}

static const struct source_ops local_ops = {
    .close = local_close,
    .leave_out = local_leave_out,
    .lookup = local_lookup,
    .forget = local_forget,
    .find = local_find,
    .getattr = local_getattr,
    .setattr = local_setattr,
    .readlink = local_readlink,
    .statfs = local_statfs,
    .make = local_make,
    .unlink = local_unlink,
    .rename = local_rename,
    .remove = local_remove,
    .open = local_open,
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
    .setxattr = local_setxattr,
    .removexattr = local_removexattr,
};

static int add_root(struct local *local, const char *path) {
  struct source_entry root;
  int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  /* O_PATH needs no right to read: report its lack now, and not to each user. */
  if (faccessat(fd, "", R_OK | X_OK, AT_EMPTY_PATH | AT_EACCESS)) {
    int result = -errno;
    close(fd);
    return result;
  }
  return local_add_fd(local, fd, &root);
}

void local_source_limit(struct source *source, size_t nodes) {
  local_of(source)->nodes.most = nodes + 1;
}

int local_source_open(const char *path, bool read_only, struct source **source) {
  struct local *local = calloc(1, sizeof *local);
  if (!local)
    return -ENOMEM;
  int result = nodes_open(&local->nodes);
  if (result)
    goto no_nodes;
  result = add_root(local, path);
  if (result)
    goto no_root;
  local->source.ops = &local_ops;
  local->read_only = read_only;
  *source = &local->source;
  return 0;
no_root:
  nodes_close(&local->nodes);
no_nodes:
  free(local);
  return result;
}
