/* SPDX-License-Identifier: MIT */
#include "storage/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

pid_t shared_process(pid_t thread) {
  char path[48], text[512];
  snprintf(path, sizeof path, "/proc/%d/status", thread);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return thread;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  const char *line = strstr(text, "\nTgid:");
  long process = line ? strtol(line + 6, NULL, 10) : 0;
  return process > 0 ? (pid_t)process : thread;
}

/* The root of the file system as the caller sees it; ours where that is not to be had. */
static int open_root(pid_t thread) {
  char path[48];
  snprintf(path, sizeof path, "/proc/%d/root", thread);
  int fd = thread > 0 ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  return fd >= 0 ? fd : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* No symlink leads out of that root. What is not a tmpfs may be a file system of the caller's own,
 * which could keep us for as long as it likes. */
static int open_folder(pid_t thread) {
  struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};
  struct statfs what;
  int root = open_root(thread);
  if (root < 0)
    return -errno;
  int fd = (int)syscall(SYS_openat2, root, SHARED_FOLDER, &how, sizeof how);
  int code = fd < 0 ? -errno : 0;
  close(root);
  if (code == 0 && fstatfs(fd, &what) != 0)
    code = -errno;
  else if (code == 0 && what.f_type != TMPFS_MAGIC)
    code = -EPERM;
  if (code && fd >= 0)
    close(fd);
  return code ? code : fd;
}

/* One component, and no special one. */
static const char *name_in_folder(const char *path) {
  const char *name = path + strlen(SHARED_FOLDER);
  if (strncmp(path, SHARED_FOLDER, strlen(SHARED_FOLDER)) != 0)
    return NULL;
  name += strspn(name, "/"); /* 3FS's clients write one too many */
  bool special = !*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
  return special || strchr(name, '/') ? NULL : name;
}

static int check_file(int fd, const struct virt_caller *caller, struct shared *shared) {
  struct stat stat;
  if (fstat(fd, &stat) != 0)
    return -errno;
  if (!S_ISREG(stat.st_mode) || (stat.st_uid != caller->uid && caller->uid != 0))
    return -EPERM;
  shared->length = (size_t)stat.st_size;
  shared->device = stat.st_dev;
  shared->inode = stat.st_ino;
  return stat.st_size > 0 ? 0 : -EINVAL;
}

static int map_file(int fd, const struct virt_caller *caller, struct shared *shared) {
  int code = check_file(fd, caller, shared);
  if (code)
    return code;
  shared->memory = mmap(NULL, shared->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return shared->memory == MAP_FAILED ? -errno : 0;
}

int shared_map(const struct virt_caller *caller, const char *path, struct shared *shared) {
  const char *name = name_in_folder(path);
  if (!name)
    return -EINVAL;
  int folder = open_folder(caller->thread);
  if (folder < 0)
    return folder;
  int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  int code = fd < 0 ? -errno : map_file(fd, caller, shared);
  if (fd >= 0)
    close(fd);
  close(folder);
  return code == -ELOOP || code == -EACCES ? -EPERM : code;
}

void shared_forget(const char *path, dev_t device, ino_t inode) {
  static const char own[] = "hf3fs-iov-";
  const char *name = name_in_folder(path);
  struct stat stat;
  int folder = name && strncmp(name, own, sizeof own - 1) == 0 ? open_folder(0) : -1;
  if (folder < 0)
    return;
  if (fstatat(folder, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && stat.st_dev == device &&
      stat.st_ino == inode)
    unlinkat(folder, name, 0);
  close(folder);
}
