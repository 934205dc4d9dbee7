/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "storage/credentials.h"
#include "storage/local/local.h"

struct local_file {
  struct source_file file;
  struct node *node;    /* a reference */
  pthread_mutex_t lock; /* of a folder: guards the descriptor's offset */
};

static struct local_file *file_of(struct source_file *file) {
  return (struct local_file *)(void *)file;
}

/* Whether close(2) may report errors, as those of network file systems do. False only where it
 * surely does not. */
static bool may_flush(int fd) {
  struct statfs stat;
  if (fstatfs(fd, &stat))
    return true;
  switch ((unsigned long)stat.f_type) {
  case EXT4_SUPER_MAGIC:
  case XFS_SUPER_MAGIC:
  case BTRFS_SUPER_MAGIC:
  case F2FS_SUPER_MAGIC:
  case TMPFS_MAGIC:
    return false;
  default:
    return true;
  }
}

int local_new_file(struct local *local, struct node *node, int fd, struct source_file **out) {
  struct local_file *file = calloc(1, sizeof *file);
  if (!file) {
    close(fd);
    nodes_put(&local->nodes, node);
    return -ENOMEM;
  }
  file->file = (struct source_file){.inode = node->inode, .fd = fd, .flushes = may_flush(fd)};
  file->node = node;
  pthread_mutex_init(&file->lock, NULL);
  *out = &file->file;
  return 0;
}

/* Takes the reference to the node. */
static int open_node(struct local *local, struct node *node, int flags, struct source_file **file) {
  char path[PROC_ROOM];
  local_proc_path(path, node->fd);
  int fd = open(path, flags | O_CLOEXEC);
  if (fd < 0) {
    int result = -errno;
    nodes_put(&local->nodes, node);
    return result;
  }
  return local_new_file(local, node, fd, file);
}

/* A FIFO would wait for its other end, and a device driver do anything. */
static int check_type(const struct node *node) {
  switch (node->type) {
  case S_IFREG:
    return 0;
  case S_IFDIR:
    return -EISDIR;
  case S_IFLNK:
    return -ELOOP;
  default:
    return -ENXIO;
  }
}

int local_open(struct source *source, const struct source_caller *caller, uint64_t handle,
               int flags, struct source_file **file) {
  struct local *local = local_of(source);
  flags &= O_ACCMODE | O_TRUNC;
  if (local->read_only && flags != O_RDONLY)
    return -EROFS;
  struct node *node = nodes_get(&local->nodes, handle);
  if (!node)
    return -ESTALE;
  struct credentials own = {0};
  int result = check_type(node);
  if (!result && !caller->checked)
    result = credentials_assume(&own, caller);
  if (result)
    nodes_put(&local->nodes, node);
  else
    result = open_node(local, node, flags, file);
  credentials_restore(&own);
  return result;
}

void local_release(struct source *source, struct source_file *closing) {
  struct local_file *file = file_of(closing);
  close(closing->fd);
  nodes_put(&local_of(source)->nodes, file->node);
  pthread_mutex_destroy(&file->lock);
  free(file);
}

/* Reads or writes until the end of the file, an error or a full disk. `flags` are of a write. */
static ssize_t move_bytes(int fd, char *bytes, size_t length, off_t offset, bool writes,
                          int flags) {
  size_t done = 0;
  while (done < length) {
    struct iovec part = {bytes + done, length - done};
    ssize_t moved = writes ? pwritev2(fd, &part, 1, offset + (off_t)done, flags)
                           : pread(fd, part.iov_base, part.iov_len, offset + (off_t)done);
    if (moved < 0 && errno == EINTR)
      continue;
    if (moved < 0 && !done)
      return -errno;
    if (moved <= 0)
      break;
    done += (size_t)moved;
  }
  return (ssize_t)done;
}

ssize_t local_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                   off_t offset) {
  (void)source;
  return move_bytes(file->fd, bytes, length, offset, false, 0);
}

ssize_t local_write(struct source *source, struct source_file *file, const void *bytes,
                    size_t length, off_t offset, int flags) {
  if (local_of(source)->read_only)
    return -EROFS;
  return move_bytes(file->fd, (char *)(uintptr_t)bytes, length, offset, true, flags);
}

/* A network file system reports its errors at the close of any descriptor of the file. */
int local_flush(struct source *source, struct source_file *file) {
  (void)source;
  int copy = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
  return copy < 0 || close(copy) ? -errno : 0;
}

int local_fsync(struct source *source, struct source_file *file, bool data_only) {
  (void)source;
  return (data_only ? fdatasync(file->fd) : fsync(file->fd)) ? -errno : 0;
}

int local_fallocate(struct source *source, struct source_file *file, int mode, off_t offset,
                    off_t length) {
  if (local_of(source)->read_only)
    return -EROFS;
  return fallocate(file->fd, mode, offset, length) ? -errno : 0;
}

off_t local_lseek(struct source *source, struct source_file *file, off_t offset, int whence) {
  (void)source;
  if (whence != SEEK_DATA && whence != SEEK_HOLE)
    return -EINVAL;
  off_t found = lseek(file->fd, offset, whence);
  return found < 0 ? -errno : found;
}

int local_opendir(struct source *source, uint64_t handle, struct source_file **folder) {
  struct local *local = local_of(source);
  struct node *node = nodes_get(&local->nodes, handle);
  return node ? open_node(local, node, O_RDONLY | O_DIRECTORY, folder) : -ESTALE;
}

/* Passes on what getdents64(2) returned. False: `each` has no more room. */
static bool pass_names(struct local *local, const struct node *folder, const char *names,
                       size_t length, source_each *each, void *user) {
  for (size_t at = 0; at < length;) {
    const struct dirent64 *entry = (const struct dirent64 *)(const void *)(names + at);
    const struct source_name name = {
        .name = entry->d_name,
        .inode = nodes_number(&local->nodes, folder->device, entry->d_ino),
        .type = (mode_t)DTTOIF(entry->d_type),
        .next = entry->d_off,
    };
    if (!each(user, &name))
      return false;
    at += entry->d_reclen;
  }
  return true;
}

/* The descriptor's offset is set by each call, as calls may come with any offset. */
int local_readdir(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                  source_each *each, void *user) {
  struct local_file *file = file_of(folder);
  _Alignas(struct dirent64) char names[16384];
  size_t room = bytes < 2048 ? 2048 : bytes < sizeof names ? bytes : sizeof names;
  ssize_t got = 0;
  pthread_mutex_lock(&file->lock);
  bool more = lseek(folder->fd, offset, SEEK_SET) == offset;
  int result = more ? 0 : -errno;
  while (more && (got = getdents64(folder->fd, names, room)) > 0)
    more = pass_names(local_of(source), file->node, names, (size_t)got, each, user);
  if (got < 0)
    result = -errno;
  pthread_mutex_unlock(&file->lock);
  return result;
}
