/* SPDX-License-Identifier: MIT
 * Checks before a mount, which explain failures. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "storage/mount/mount.h"
#include "storage/util.h"

static int check_source(const char *path, struct haul_storage_error *error) {
  struct stat info;
  if (stat(path, &info))
    return storage_fail(error, -errno, "give a folder, or haul://NODE/EXPORT of another node",
                        "cannot use %s: %s", path, strerror(errno));
  if (!S_ISDIR(info.st_mode))
    return storage_fail(error, -ENOTDIR, "give the folder that has this file", "%s is not a folder",
                        path);
  return 0;
}

/* Explains a failed stat(2) of the target. */
static int fail_target(const char *path, struct haul_storage_error *error) {
  const int code = errno;
  char hint[sizeof error->hint];
  if (code == ENOTCONN || code == ECONNABORTED) {
    snprintf(hint, sizeof hint, "`fusermount3 -uz %.400s`", path);
    return storage_fail(error, -ENOTCONN, hint, "%s is a mount whose process has died", path);
  }
  if (code == ENOENT) {
    snprintf(hint, sizeof hint, "`mkdir -p %.400s`", path);
    return storage_fail(error, -ENOENT, hint, "%s does not exist", path);
  }
  return storage_fail(error, -code, NULL, "cannot mount at %s: %s", path, strerror(code));
}

#define DEAD_MAX 64 /* mounts above each other */

/* As stat(2), after the removal of dead mounts. FORCE_SYNC: cached attributes outlive the daemon.
 */
static int stat_target(const char *path, struct statx *info) {
  int code = 0;
  for (int i = 0; i < DEAD_MAX; i++) {
    if (statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_TYPE, info) == 0)
      return 0;
    code = errno;
    if ((code != ENOTCONN && code != ECONNABORTED) || mount_remove_dead(path))
      break;
  }
  errno = code;
  return -1;
}

/* A second mount would hide the first one. An empty first one would pass is_empty. */
static bool is_mounted(const char *target) {
  char path[PATH_MAX];
  struct stat info;
  return snprintf(path, sizeof path, "%s/" CONTROL_DIR, target) < (int)sizeof path &&
         stat(path, &info) == 0;
}

/* 0, 1 or a negative errno value. */
static int is_empty(const char *path) {
  int empty = 1;
  DIR *folder = opendir(path);
  if (!folder)
    return -errno;
  for (const struct dirent *entry; empty && (entry = readdir(folder));)
    empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
  closedir(folder);
  return empty;
}

static int check_target(const char *path, struct haul_storage_error *error) {
  char hint[sizeof error->hint];
  struct statx info;
  if (stat_target(path, &info))
    return fail_target(path, error);
  if (!S_ISDIR(info.stx_mode))
    return storage_fail(error, -ENOTDIR, "give an empty folder", "%s is not a folder", path);
  if (is_mounted(path)) {
    snprintf(hint, sizeof hint, "`fusermount3 -u %.400s`", path);
    return storage_fail(error, -EBUSY, hint, "%s is already a mount of haul or 3FS", path);
  }
  int empty = is_empty(path);
  if (empty < 0)
    return storage_fail(error, empty, NULL, "cannot read %s: %s", path, strerror(-empty));
  if (!empty)
    return storage_fail(error, -ENOTEMPTY, "give an empty folder: the mount would hide its files",
                        "%s is not empty", path);
  return 0;
}

static bool is_same(const struct stat *one, const struct stat *other) {
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Whether a folder is another one, or is below it. */
static bool lies_in(const char *path, const char *other) {
  struct stat outer, here, above;
  int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  bool known = fd >= 0 && stat(other, &outer) == 0 && fstat(fd, &here) == 0, found = false;
  for (int i = 0; known && i < PATH_MAX / 2 && !(found = is_same(&here, &outer)); i++) {
    int up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    close(fd);
    fd = up;
    if (fd < 0 || fstat(fd, &above) || is_same(&here, &above))
      break;
    here = above;
  }
  if (fd >= 0)
    close(fd);
  return found;
}

static int check_fuse_device(struct haul_storage_error *error) {
  if (access("/dev/fuse", R_OK | W_OK) == 0)
    return 0;
  if (errno == ENOENT || errno == ENXIO || errno == ENODEV)
    return storage_fail(error, -ENODEV,
                        "`modprobe fuse`; for a container `docker run --device /dev/fuse`",
                        "/dev/fuse does not exist");
  return storage_fail(error, -errno, "give this user read and write access to it",
                      "cannot use /dev/fuse: %s", strerror(errno));
}

/* The source as mountinfo shows it. */
static int find_source_path(struct mount *mount, struct haul_storage_error *error) {
  const struct haul_storage_mount *config = mount->config;
  if (config->address) {
    if (snprintf(mount->source_path, sizeof mount->source_path, "%s/%s", config->address,
                 config->export) >= (int)sizeof mount->source_path)
      return storage_fail(error, -ENAMETOOLONG, NULL, "%s is too long", config->source);
    return 0;
  }
  if (lies_in(config->target, config->source))
    return storage_fail(error, -ELOOP, "mount it at a folder outside",
                        "%s lies in %s, and the tree would contain itself", config->target,
                        config->source);
  if (!realpath(config->source, mount->source_path))
    return storage_fail(error, -errno, NULL, "cannot use %s: %s", config->source, strerror(errno));
  return 0;
}

int mount_check(struct mount *mount, struct haul_storage_error *error) {
  const struct haul_storage_mount *config = mount->config;
  int status = config->address ? 0 : check_source(config->source, error);
  if (!status)
    status = check_target(config->target, error);
  if (!status)
    status = check_fuse_device(error);
  if (!status)
    status = find_source_path(mount, error);
  if (!status && !realpath(config->target, mount->target))
    status = storage_fail(error, -errno, NULL, "cannot mount at %s: %s", config->target,
                          strerror(errno));
  return status;
}
