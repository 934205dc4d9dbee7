/* SPDX-License-Identifier: MIT */
#include "storage/mount/point.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int point_refuse(struct haul_storage_error *error, int status, const char *hint, const char *format,
                 ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(error->text, sizeof error->text, format, list);
  va_end(list);
  snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
  return status;
}

static int check_source(const char *path, struct haul_storage_error *error) {
  struct stat stat_of;
  if (stat(path, &stat_of))
    return point_refuse(error, -errno, "give a folder, or haul://NODE/EXPORT for another node's",
                        "cannot use %s: %s", path, strerror(errno));
  if (!S_ISDIR(stat_of.st_mode))
    return point_refuse(error, -ENOTDIR, "give the folder it lies in", "%s is no folder", path);
  return 0;
}

static int refuse_stale(const char *target, struct haul_storage_error *error) {
  char hint[sizeof error->hint];
  snprintf(hint, sizeof hint, "take it away with `fusermount3 -u %.400s`%s", target,
           geteuid() == 0 ? ", or with umount" : "");
  return point_refuse(error, -ENOTCONN, hint,
                      "%s is a mount whose process is gone, and nobody answers there", target);
}

static int refuse_missing(const char *target, struct haul_storage_error *error) {
  char hint[sizeof error->hint];
  snprintf(hint, sizeof hint, "make it: `mkdir -p %.400s`", target);
  return point_refuse(error, -ENOENT, hint, "%s is not there", target);
}

/* A second mount over it would hide the first one, which looks empty if its source is. */
static int refuse_mounted(const char *target, struct haul_storage_error *error) {
  char hint[sizeof error->hint];
  snprintf(hint, sizeof hint, "unmount it first: `fusermount3 -u %.400s`", target);
  return point_refuse(error, -EBUSY, hint, "%s is mounted by haul, or by 3FS, already", target);
}

static bool is_mounted(const char *target) {
  char path[PATH_MAX];
  struct stat stat_of;
  return snprintf(path, sizeof path, "%s/" VIRTUAL_NAME, target) < (int)sizeof path &&
         stat(path, &stat_of) == 0;
}

/* -1: it cannot be read. */
static int count_names(const char *path) {
  int count = 0;
  DIR *folder = opendir(path);
  if (!folder)
    return -1;
  for (const struct dirent *entry; count == 0 && (entry = readdir(folder));)
    count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  closedir(folder);
  return count;
}

static int check_target(const char *path, struct haul_storage_error *error) {
  struct stat stat_of;
  if (stat(path, &stat_of)) {
    if (errno == ENOTCONN || errno == ECONNABORTED)
      return refuse_stale(path, error);
    if (errno == ENOENT)
      return refuse_missing(path, error);
    return point_refuse(error, -errno, NULL, "cannot mount at %s: %s", path, strerror(errno));
  }
  if (!S_ISDIR(stat_of.st_mode))
    return point_refuse(error, -ENOTDIR, "give an empty folder", "%s is no folder", path);
  if (is_mounted(path))
    return refuse_mounted(path, error);
  int names = count_names(path);
  if (names < 0)
    return point_refuse(error, -errno, NULL, "cannot read %s: %s", path, strerror(errno));
  if (names > 0)
    return point_refuse(error, -ENOTEMPTY,
                        "give an empty folder: what is in this one could not be reached",
                        "%s is not empty", path);
  return 0;
}

static bool same(const struct stat *one, const struct stat *other) {
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Whether a folder is another one, or lies in it. */
static bool lies_in(const char *path, const char *other) {
  struct stat outer, here, above;
  bool found = false;
  int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || stat(other, &outer) || fstat(fd, &here)) {
    if (fd >= 0)
      close(fd);
    return false;
  }
  for (int steps = 0; steps < PATH_MAX / 2 && !(found = same(&here, &outer)); steps++) {
    int up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    close(fd);
    fd = up;
    if (fd < 0 || fstat(fd, &above) || same(&here, &above))
      break;
    here = above;
  }
  if (fd >= 0)
    close(fd);
  return found;
}

static int check_device(struct haul_storage_error *error) {
  if (access("/dev/fuse", R_OK | W_OK) == 0)
    return 0;
  if (errno == ENOENT || errno == ENXIO || errno == ENODEV)
    return point_refuse(error, -ENODEV,
                        "`modprobe fuse`; a container needs `--device /dev/fuse` as well",
                        "there is no /dev/fuse");
  return point_refuse(error, -errno, "ask for the right to read and write it",
                      "cannot use /dev/fuse: %s", strerror(errno));
}

/* The kernel's table of mounts shows it. */
static int use_remote(const struct haul_storage_mount *mount, struct point *point,
                      struct haul_storage_error *error) {
  int length =
      snprintf(point->source, sizeof point->source, "%s/%s", mount->address, mount->export);
  if (length >= (int)sizeof point->source)
    return point_refuse(error, -ENAMETOOLONG, NULL, "%s is too long", mount->source);
  return 0;
}

/* Neither may show the other one. */
static int use_folder(const struct haul_storage_mount *mount, struct point *point,
                      struct haul_storage_error *error) {
  if (lies_in(mount->target, mount->source))
    return point_refuse(error, -ELOOP, "mount it at a folder outside",
                        "%s lies in %s, which would show itself without end", mount->target,
                        mount->source);
  if (!realpath(mount->source, point->source))
    return point_refuse(error, -errno, NULL, "cannot use %s: %s", mount->source, strerror(errno));
  return 0;
}

int point_check(const struct haul_storage_mount *mount, struct point *point,
                struct haul_storage_error *error) {
  int status = mount->address ? 0 : check_source(mount->source, error);
  if (!status)
    status = check_target(mount->target, error);
  if (!status)
    status = check_device(error);
  if (!status)
    status = mount->address ? use_remote(mount, point, error) : use_folder(mount, point, error);
  if (status)
    return status;
  if (!realpath(mount->target, point->target))
    return point_refuse(error, -errno, NULL, "cannot mount at %s: %s", mount->target,
                        strerror(errno));
  return 0;
}
