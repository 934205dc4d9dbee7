/* SPDX-License-Identifier: MIT
 * What is open: files, and folders that are being read. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "storage/local/identity.h"
#include "storage/local/local.h"

static struct local_file *file_of(struct source_file *file) {
  return (struct local_file *)(void *)file;
}

/* File systems whose close(2) has nothing to tell. Those of a network do, and others might. */
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

int local_make_file(struct local *local, struct node *node, int fd, struct source_file **file) {
  struct local_file *made = calloc(1, sizeof *made);
  if (!made) {
    close(fd);
    nodes_put(&local->nodes, node);
    return -ENOMEM;
  }
  made->file = (struct source_file){.inode = node->inode, .fd = fd, .flushes = may_flush(fd)};
  made->node = node;
  pthread_mutex_init(&made->lock, NULL);
  *file = &made->file;
  return 0;
}

/* Takes the hold on the node. */
static int open_held(struct local *local, struct node *node, int flags, struct source_file **file) {
  char path[PROC_ROOM];
  local_proc_path(path, node);
  int fd = open(path, flags | O_CLOEXEC);
  if (fd < 0) {
    int result = -errno;
    nodes_put(&local->nodes, node);
    return result;
  }
  return local_make_file(local, node, fd, file);
}

/* Opening a FIFO would wait for its other end, and a device do who knows what. */
static int may_be_opened(const struct node *node) {
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

/* Takes the hold on the node. */
static int open_for(struct local *local, const struct source_caller *caller, struct node *node,
                    int flags, struct source_file **file) {
  struct identity identity;
  int result = identity_take(&identity, caller);
  if (result)
    nodes_put(&local->nodes, node);
  else
    result = open_held(local, node, flags, file);
  identity_give_back(&identity);
  return result;
}

int local_open_node(struct source *source, const struct source_caller *caller, uint64_t handle,
                    int flags, struct source_file **file) {
  struct local *local = local_of(source);
  flags &= O_ACCMODE | O_TRUNC;
  if (local->read_only && flags != O_RDONLY)
    return -EROFS;
  struct node *node = nodes_get(&local->nodes, handle);
  if (!node)
    return -ESTALE;
  int result = may_be_opened(node);
  if (result) {
    nodes_put(&local->nodes, node);
    return result;
  }
  /* Nothing is made: who checked his rights need not become him. */
  return caller->checked ? open_held(local, node, flags, file)
                         : open_for(local, caller, node, flags, file);
}

void local_release(struct source *source, struct source_file *file) {
  struct local_file *made = file_of(file);
  close(file->fd);
  nodes_put(&local_of(source)->nodes, made->node);
  pthread_mutex_destroy(&made->lock);
  free(made);
}

ssize_t local_read(struct source *source, struct source_file *file, void *bytes, size_t length,
                   off_t offset) {
  (void)source;
  size_t done = 0;
  while (done < length) {
    ssize_t got = pread(file->fd, (char *)bytes + done, length - done, offset + (off_t)done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 && !done)
      return -errno;
    if (got <= 0)
      break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

ssize_t local_write(struct source *source, struct source_file *file, const void *bytes,
                    size_t length, off_t offset, int flags) {
  size_t done = 0;
  if (local_of(source)->read_only)
    return -EROFS;
  while (done < length) {
    struct iovec part = {(char *)(uintptr_t)bytes + done, length - done};
    ssize_t put = pwritev2(file->fd, &part, 1, offset + (off_t)done, flags);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0 && !done)
      return -errno;
    if (put <= 0)
      break;
    done += (size_t)put;
  }
  return (ssize_t)done;
}

/* Closing any descriptor of the file makes a network's file system tell its errors. */
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
  if (!node)
    return -ESTALE;
  return open_held(local, node, O_RDONLY | O_DIRECTORY, folder);
}

/* Hands `length` bytes of names on; false: `each` has had enough. */
static bool hand_on(struct local *local, const struct node *folder, const char *names,
                    size_t length, bool (*each)(void *user, const struct source_name *name),
                    void *user) {
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

/* The folder's own place is set each time, so that one who reads on from anywhere is right. */
int local_readdir(struct source *source, struct source_file *folder, off_t offset, size_t bytes,
                  bool (*each)(void *user, const struct source_name *name), void *user) {
  struct local_file *made = file_of(folder);
  _Alignas(struct dirent64) char names[16384];
  size_t room = bytes < 2048 ? 2048 : bytes < sizeof names ? bytes : sizeof names;
  ssize_t got = 0;
  pthread_mutex_lock(&made->lock);
  bool more = lseek(folder->fd, offset, SEEK_SET) == offset;
  int result = more ? 0 : -errno;
  while (more && (got = getdents64(folder->fd, names, room)) > 0)
    more = hand_on(local_of(source), made->node, names, (size_t)got, each, user);
  if (got < 0)
    result = -errno;
  pthread_mutex_unlock(&made->lock);
  return result;
}
