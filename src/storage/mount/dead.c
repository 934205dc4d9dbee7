/* SPDX-License-Identifier: MIT
 * Removal of mounts whose daemon was killed. */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/mount/mount.h"

/* Numbers a mount in mountinfo. Without a request of the file system, which would fail. -1: this
 * kernel does not say. */
static int mount_number(int fd) {
  char path[48], line[64];
  int number = -1;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  FILE *info = fopen(path, "re");
  while (info && fgets(line, sizeof line, info) && sscanf(line, "mnt_id: %d", &number) != 1)
    ;
  if (info)
    fclose(info);
  return number;
}

/* Whether a mount is of the type that this command makes. */
static bool is_ours(int number) {
  FILE *mounts = fopen("/proc/self/mountinfo", "re");
  char *line = NULL;
  size_t room = 0;
  bool found = false;
  while (mounts && !found && getline(&line, &room, mounts) > 0)
    found = atoi(line) == number && strstr(line, " - fuse.hf3fs ");
  free(line);
  if (mounts)
    fclose(mounts);
  return found;
}

/* FORCE_SYNC: cached attributes outlive the daemon. */
static bool is_dead(int fd) {
  struct statx info;
  return statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_TYPE, &info) != 0 &&
         (errno == ENOTCONN || errno == ECONNABORTED);
}

/* By its path alone, so another mount of this user may take its place meanwhile. */
static int detach_as_user(const char *self) {
  char path[PATH_MAX];
  const char *const line[] = {"fusermount3", "-u", "-q", "-z", "--", path, NULL};
  pid_t child;
  int status = 0;
  ssize_t length = readlink(self, path, sizeof path - 1);
  if (length < 0)
    return -errno;
  path[length] = '\0';
  int code = posix_spawnp(&child, line[0], NULL, NULL, (char *const *)(uintptr_t)line, environ);
  if (code)
    return -code;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      return -errno;
  return status == 0 ? 0 : -EPERM;
}

/* Lazily: programs that have files of the mount open keep it busy. Names the mount by its
 * descriptor: its path may lead to another one by now. EINVAL: it is gone. */
static int detach(int fd) {
  char self[48];
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  if (umount2(self, MNT_DETACH) == 0 || errno == EINVAL)
    return 0;
  return errno == EPERM && geteuid() != 0 ? detach_as_user(self) : -errno;
}

int mount_remove_dead(const char *path) {
  int status = 0, fd = open(path, O_PATH | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  if (!is_ours(mount_number(fd)))
    status = -ENOTCONN;
  else if (is_dead(fd))
    status = detach(fd);
  close(fd);
  return status;
}
