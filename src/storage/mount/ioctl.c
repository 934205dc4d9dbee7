/* SPDX-License-Identifier: MIT
 * The ioctls of 3FS, on files and folders. The kernel copies arguments by the size in the command,
 * so a program can make us read no more than that. It does not check what the caller may. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "storage/mount/mount.h"
#include "storage/mount/virtual.h"
#include "storage/threads.h"

#define MAGIC     0x8f3f5fffu
#define VERSION   1u
#define HOLES_MAX 1000

struct link_argument {
  uint64_t folder; /* its inode number */
  char name[255];
};

/* From each start up to, and without, its end. */
struct holes_argument {
  int count;
  size_t flags; /* none is defined */
  size_t start[HOLES_MAX], end[HOLES_MAX];
};

_Static_assert(sizeof(struct link_argument) == 264, "3FS's layout");
_Static_assert(sizeof(struct holes_argument) == 16016, "3FS's layout");

enum {
  GET_NAME = 0,
  GET_MAGIC = 2,
  GET_VERSION = 3,
  SYNC = 11,
  LINK = 12,
  PUNCH_HOLES = 13,
};

struct question {
  fuse_req_t request;
  fuse_ino_t node;
  struct handle *handle;
  bool folder;
  const void *argument;
};

static void answer_number(fuse_req_t request, uint32_t number) {
  fuse_reply_ioctl(request, 0, &number, sizeof number);
}

/* No bytes come back: callers give no place for them, although the command's number says so. */
static void answer_status(fuse_req_t request, int status) {
  if (status)
    reply_status(request, status);
  else
    fuse_reply_ioctl(request, 0, NULL, 0);
}

static int sync_any(const struct question *question) {
  struct source *source = mount_of(question->request)->source;
  struct source_file *file = question->handle->file;
  return file ? source->ops->fsync(source, file, false) : 0;
}

static int link_into(struct mount *mount, const struct source_caller *caller, fuse_ino_t node,
                     const struct source_entry *folder, const char *name) {
  struct source *source = mount->source;
  struct source_entry entry;
  if (!S_ISDIR(folder->stat.st_mode))
    return -ENOTDIR;
  if (virtual_name(folder->node, name))
    return -EPERM;
  int status = source->ops->link(source, caller, node, folder->node, name, &entry);
  if (!status)
    source->ops->forget(source, entry.node, 1);
  return status;
}

/* The folder comes as a number that anybody can guess: the caller's own rights to it count. */
static int link_file(const struct question *question) {
  struct mount *mount = mount_of(question->request);
  const struct link_argument *asked = question->argument;
  struct source_caller caller;
  struct source_entry folder;
  gid_t *groups;
  if (question->folder)
    return -EPERM;
  if (!memchr(asked->name, '\0', sizeof asked->name))
    return -ENAMETOOLONG;
  if (asked->folder >= SOURCE_INODES)
    return -EPERM;
  int status = mount->source->ops->find(mount->source, asked->folder, &folder);
  if (status)
    return status;
  status = caller_unchecked(question->request, &caller, &groups);
  if (!status)
    status = link_into(mount, &caller, question->node, &folder, asked->name);
  free(groups);
  mount->source->ops->forget(mount->source, folder.node, 1);
  return status;
}

static int check_holes(const struct holes_argument *holes) {
  if (holes->count < 0 || holes->count > HOLES_MAX || holes->flags)
    return -EINVAL;
  for (int i = 0; i < holes->count; i++)
    if (holes->start[i] > holes->end[i] || holes->end[i] > (size_t)INT64_MAX)
      return -EINVAL;
  return 0;
}

/* All are looked at before the first one is made. */
static int punch_holes(const struct question *question) {
  const struct holes_argument *holes = question->argument;
  struct source *source = mount_of(question->request)->source;
  if (question->folder)
    return -EISDIR;
  if (!question->handle->writes)
    return -EBADF;
  int status = check_holes(holes);
  if (!status && !source->ops->fallocate)
    status = -EOPNOTSUPP;
  threads_keep_set_ids(false);
  for (int i = 0; !status && i < holes->count; i++)
    if (holes->start[i] < holes->end[i])
      status = source->ops->fallocate(
          source, question->handle->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
          (off_t)holes->start[i], (off_t)(holes->end[i] - holes->start[i]));
  threads_keep_set_ids(true);
  return status;
}

/* A command that brings an argument, whole and where it can be read as what it is. */
static int with_argument(struct question *question, int (*answer)(const struct question *question),
                         const void *bytes, size_t length, size_t wanted) {
  if (length != wanted || !bytes)
    return -EINVAL;
  void *copy = malloc(wanted);
  if (!copy)
    return -ENOMEM;
  question->argument = memcpy(copy, bytes, wanted);
  int status = answer(question);
  free(copy);
  return status;
}

static void control(fuse_req_t request, fuse_ino_t node, unsigned command, void *argument,
                    struct fuse_file_info *info, unsigned flags, const void *in, size_t in_size,
                    size_t out_size) {
  struct question question = {request, node, handle_of(info), (flags & FUSE_IOCTL_DIR) != 0, NULL};
  const struct mount *mount = mount_of(request);
  (void)argument;
  (void)out_size;
  switch (command) {
  case _IOR('h', GET_NAME, char[HAUL_STORAGE_NAME_ROOM]):
    fuse_reply_ioctl(request, 0, mount->name, sizeof mount->name);
    break;
  case _IOR('h', GET_MAGIC, uint32_t):
    answer_number(request, MAGIC);
    break;
  case _IOR('h', GET_VERSION, uint32_t):
    answer_number(request, VERSION);
    break;
  case _IOR('h', SYNC, uint32_t):
    answer_status(request, sync_any(&question));
    break;
  case _IOW('h', LINK, struct link_argument):
    answer_status(request,
                  with_argument(&question, link_file, in, in_size, sizeof(struct link_argument)));
    break;
  case _IOW('h', PUNCH_HOLES, struct holes_argument):
    answer_status(
        request, with_argument(&question, punch_holes, in, in_size, sizeof(struct holes_argument)));
    break;
  default:
    reply_status(request, -ENOTTY);
  }
}

void ioctl_fill(struct fuse_lowlevel_ops *ops) {
  ops->ioctl = control;
}
