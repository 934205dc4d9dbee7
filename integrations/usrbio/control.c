/* SPDX-License-Identifier: MIT
 * What 3FS's files do beyond those of other file systems: links and holes by ioctl. */

#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

/* The folder of `path`, and its last part; a positive errno value for failure. */
static int split(const char *path, char folder[PATH_MAX], const char **name) {
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

static int link_to(int file, const char *folder, const char *name) {
  struct ioctl_link wish = {0};
  struct stat here, there;
  if (fstat(file, &here) != 0 || stat(folder, &there) != 0)
    return errno;
  if (here.st_dev != there.st_dev) /* the number would be another folder's */
    return EXDEV;
  wish.folder = there.st_ino;
  memcpy(wish.name, name, strlen(name) + 1);
  return ioctl(file, IOCTL_LINK, &wish) == 0 ? 0 : errno;
}

int hf3fs_hardlink(const char *target, const char *link_name) {
  char folder[PATH_MAX];
  const char *name;
  if (!target || !link_name)
    return EINVAL;
  int status = split(link_name, folder, &name);
  if (status != 0)
    return status;
  int file = open(target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return errno;
  status = link_to(file, folder, name);
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
