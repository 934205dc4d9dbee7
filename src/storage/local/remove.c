/* SPDX-License-Identifier: MIT
 * Removing a name, and trees. Runs with the caller's rights, so that the kernel checks each step.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/credentials.h"
#include "storage/local/local.h"

#define LEVELS_MAX (PATH_MAX / 2) /* of folders in each other, as a path can name */

static int remove_name(int folder, const char *name, unsigned levels);

/* One pass. *removed: it removed something, so another pass may find what it missed. */
static int empty_folder(DIR *folder, unsigned levels, bool *removed) {
  *removed = false;
  rewinddir(folder);
  for (const struct dirent *entry; (errno = 0, entry = readdir(folder));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    int result = remove_name(dirfd(folder), entry->d_name, levels);
    if (result && result != -ENOENT)
      return result;
    *removed = true;
  }
  return -errno;
}

/* Enters no other file system: that of this very process could be mounted there. */
static DIR *open_folder(int folder, const char *name) {
  struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                         .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH};
  int fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
  DIR *opened = fd < 0 ? NULL : fdopendir(fd);
  if (!opened && fd >= 0)
    close(fd);
  return opened;
}

static bool is_not_empty(int error) {
  return error == ENOTEMPTY || error == EEXIST;
}

/* Others may add names at the same time. */
static int remove_folder(int parent, const char *name, unsigned levels) {
  DIR *folder = open_folder(parent, name);
  if (!folder)
    return -errno;
  bool removed;
  int result;
  do {
    result = empty_folder(folder, levels, &removed);
    if (!result && unlinkat(parent, name, AT_REMOVEDIR))
      result = -errno;
  } while (is_not_empty(-result) && removed);
  closedir(folder);
  return result;
}

/* `levels` of folders may be emptied. */
static int remove_name(int folder, const char *name, unsigned levels) {
  if (!unlinkat(folder, name, 0))
    return 0;
  if (errno != EISDIR)
    return -errno;
  if (!unlinkat(folder, name, AT_REMOVEDIR))
    return 0;
  return levels && is_not_empty(errno) ? remove_folder(folder, name, levels - 1) : -errno;
}

int local_remove(struct source *source, const struct source_caller *caller, uint64_t handle,
                 const char *name, bool recursive) {
  struct node *folder;
  struct credentials own;
  int result = local_get_folder(source, handle, name, &folder);
  if (result)
    return result;
  result = credentials_assume(&own, caller);
  if (!result)
    result = remove_name(folder->fd, name, recursive ? LEVELS_MAX : 0);
  credentials_restore(&own);
  nodes_put(&local_of(source)->nodes, folder);
  return result;
}
