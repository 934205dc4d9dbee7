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

/* Lazily: programs that have files of the mount open keep it busy. */
static int detach(const char *path) {
  const char *const line[] = {"fusermount3", "-u", "-q", "-z", "--", path, NULL};
  pid_t child;
  int status = 0;
  if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
    return 0;
  int code = posix_spawnp(&child, line[0], NULL, NULL, (char *const *)(uintptr_t)line, environ);
  if (code)
    return -code;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      return -errno;
  return status == 0 ? 0 : -EPERM;
}

int mount_remove_dead(const char *path) {
  char self[48], whole[PATH_MAX];
  int fd = open(path, O_PATH | O_CLOEXEC);
  if (fd < 0)
    return -errno;
  bool ours = is_ours(mount_number(fd));
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(self, whole, sizeof whole - 1);
  close(fd);
  if (!ours || length < 0)
    return -ENOTCONN;
  whole[length] = '\0';
  return detach(whole);
}
