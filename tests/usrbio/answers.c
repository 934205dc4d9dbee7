/* SPDX-License-Identifier: MIT
 * Doubles of the system's calls by which a client speaks to the file system: for what lies in the
 * mount's double they do as haul's file system does. The library comes here, as these are found
 * before libc's. */
#include "usrbio/answers.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

#define DOUBLE __attribute__((visibility("default")))

DOUBLE int symlink(const char *target, const char *path);
DOUBLE int unlink(const char *path);
DOUBLE int ioctl(int fd, unsigned long request, ...);
DOUBLE int statx(int folder, const char *restrict path, int flags, unsigned mask,
                 struct statx *restrict found);

static int fail(int status) {
  errno = -status;
  return -1;
}

int symlink(const char *target, const char *path) {
  int status = answer_symlink(target, path);
  return status == 0 ? symlinkat(target, AT_FDCWD, path) : fail(status);
}

int unlink(const char *path) {
  int status = answer_unlink(path);
  return status == 0 ? unlinkat(AT_FDCWD, path, 0) : fail(status);
}

int statx(int folder, const char *restrict path, int flags, unsigned mask,
          struct statx *restrict found) {
  int status = flags & AT_STATX_FORCE_SYNC ? answer_liveness() : 0;
  if (status != 0)
    return fail(status);
  return (int)syscall(SYS_statx, folder, path, flags, mask, found);
}

bool answers_is_below(int fd, const char *folder) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0)
    return false;
  path[length] = '\0';
  return strncmp(path, folder, strlen(folder)) == 0 && path[strlen(folder)] == '/';
}

static int hardlink(int fd, const struct ioctl_link *wish) {
  char link[64], path[PATH_MAX];
  struct stat root;
  if (stat(answer_mount(), &root) != 0 || root.st_ino != wish->folder)
    return fail(-ENOENT);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  snprintf(path, sizeof path, "%s/%s", answer_mount(), wish->name);
  return linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

static int punch(int fd, const struct ioctl_holes *holes) {
  for (int i = 0; i < holes->count; i++)
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)holes->start[i],
                  (off_t)(holes->end[i] - holes->start[i])) != 0)
      return -1;
  return 0;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  if (!answer_mount() || !answers_is_below(fd, answer_mount()))
    return (int)syscall(SYS_ioctl, fd, request, argument);
  switch (request) {
  case IOCTL_GET_MAGIC:
    *(uint32_t *)argument = HF3FS_SUPER_MAGIC;
    return 0;
  case IOCTL_SYNC:
    return fsync(fd);
  case IOCTL_LINK:
    return hardlink(fd, argument);
  case IOCTL_PUNCH_HOLES:
    return punch(fd, argument);
  default:
    return fail(-ENOTTY);
  }
}
