/* SPDX-License-Identifier: MIT
 * Calls on file systems and files: mount points, hard links and holes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "client.h"

bool hf3fs_is_hf3fs(int fd) {
  uint32_t magic = 0;
  return ioctl(fd, IOCTL_GET_MAGIC, &magic) == 0 && magic == HF3FS_SUPER_MAGIC;
}

/* proc(5): space, tab, newline and backslash are three octal digits after a backslash. */
static void decode_escapes(char *text) {
  char *to = text;
  while (*text) {
    if (text[0] == '\\' && strspn(text + 1, "01234567") >= 3) {
      *to++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
      text += 4;
    } else {
      *to++ = *text++;
    }
  }
  *to = '\0';
}

/* The next field of a line, with a zero byte; NULL: there is none. */
static char *next_field(char **line) {
  char *found;
  do
    found = strsep(line, " \n");
  while (found && !*found);
  return found;
}

/* The mount point of a line of mountinfo; NULL: its type is another. The mount point is the fifth
 * field, and the type follows a hyphen, which ends a list of any length. */
static char *mount_point_of(char *line, bool any_type) {
  char *place = NULL, *type;
  for (int i = 0; i < 5; i++)
    place = next_field(&line);
  do
    type = next_field(&line);
  while (type && strcmp(type, "-") != 0);
  type = next_field(&line);
  if (!place || !type || (!any_type && strcmp(type, "fuse.hf3fs") != 0))
    return NULL;
  decode_escapes(place);
  char *last = strrchr(place, '/');
  if (last && strcmp(last + 1, CONTROL_DIR) == 0) /* mounted by itself: its parent counts */
    last[last == place] = '\0';
  return place;
}

static bool is_below(const char *path, const char *place) {
  size_t length = strlen(place);
  if (length == 1) /* the root */
    return true;
  return strncmp(path, place, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

static bool has_control_dir(const char *place) {
  char folder[PATH_MAX];
  int length = snprintf(folder, sizeof folder, "%s/" CONTROL_DIR, place);
  return length < (int)sizeof folder && access(folder, F_OK) == 0;
}

/* The innermost mount point above the path, and its length; 0: none. Other mounts are not accessed:
 * a dead one could block. */
static size_t find_mount_point(FILE *mounts, const char *path, char best[PATH_MAX]) {
  const char *setting = getenv("HF3FS_USRBIO_DONT_CHECKFS_FOR_MP");
  bool any_type = setting && strcmp(setting, "yes") == 0;
  char *line = NULL;
  size_t room = 0, length = 0;
  while (getline(&line, &room, mounts) > 0) {
    const char *place = mount_point_of(line, any_type);
    size_t candidate = place ? strlen(place) : 0;
    if (candidate <= length || candidate >= PATH_MAX || !is_below(path, place) ||
        !has_control_dir(place))
      continue;
    memcpy(best, place, candidate + 1);
    length = candidate;
  }
  free(line);
  return length;
}

int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path) {
  char whole[PATH_MAX], best[PATH_MAX];
  if (!path || !realpath(path, whole))
    return -1;
  FILE *mounts = fopen("/proc/self/mountinfo", "re");
  if (!mounts)
    return -1;
  size_t length = find_mount_point(mounts, whole, best);
  fclose(mounts);
  if (length == 0)
    return -1;
  if (hf3fs_mount_point && (int)length < size)
    memcpy(hf3fs_mount_point, best, length + 1);
  return (int)length + 1;
}

/* Splits a path into its folder and its last component; 0 or a positive errno value. */
static int split_path(const char *path, char folder[PATH_MAX], const char **name) {
  size_t length = strlen(path);
  if (length >= PATH_MAX)
    return ENAMETOOLONG;
  const char *slash = strrchr(path, '/');
  *name = slash ? slash + 1 : path;
  if (!**name)
    return length > 0 ? EINVAL : ENOENT;
  if (strlen(*name) >= NAME_MAX)
    return ENAMETOOLONG;
  if (!slash) {
    memcpy(folder, ".", sizeof ".");
    return 0;
  }
  length = slash == path ? 1 : (size_t)(slash - path);
  memcpy(folder, path, length);
  folder[length] = '\0';
  return 0;
}

static int link_file(int file, const char *folder, const char *name) {
  struct ioctl_link link = {0};
  struct stat here, there;
  if (fstat(file, &here) != 0 || stat(folder, &there) != 0)
    return errno;
  if (here.st_dev != there.st_dev) /* the inode number would mean another folder */
    return EXDEV;
  link.folder = there.st_ino;
  memcpy(link.name, name, strlen(name) + 1);
  return ioctl(file, IOCTL_LINK, &link) == 0 ? 0 : errno;
}

int hf3fs_hardlink(const char *target, const char *link_name) {
  char folder[PATH_MAX];
  const char *name;
  if (!target || !link_name)
    return EINVAL;
  int status = split_path(link_name, folder, &name);
  if (status != 0)
    return status;
  int file = open(target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return errno;
  status = link_file(file, folder, name);
  close(file);
  return status;
}

int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags) {
  struct ioctl_holes holes = {.count = n, .flags = flags};
  if (n < 0 || n > IOCTL_HOLES || (n > 0 && (!start || !end)))
    return EINVAL;
  for (int i = 0; i < n; i++) {
    if (start[i] > end[i])
      return EINVAL;
    holes.start[i] = start[i];
    holes.end[i] = end[i];
  }
  return ioctl(fd, IOCTL_PUNCH_HOLES, &holes) == 0 ? 0 : errno;
}
