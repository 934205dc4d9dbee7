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
#define PASSES_MAX 64u            /* over a folder to which others add names */

/* A folder that was entered. */
struct level {
  dev_t device;
  ino_t number;
  long entry; /* its name that was entered next; see telldir */
  unsigned passes;
};

/* One folder is open at a time, and the one above is found by its "..": otherwise a deep tree would
 * take the descriptors of all users. */
struct tree {
  DIR *folder; /* NULL: none */
  unsigned depth;
  const atomic_bool *stop;
  struct level levels[LEVELS_MAX];
};

static bool is_not_empty(int result) {
  return result == -ENOTEMPTY || result == -EEXIST;
}

static bool is_level(const struct level *level, const struct stat *stat) {
  return level->device == stat->st_dev && level->number == stat->st_ino;
}

/* Removes a file or an empty folder. */
static int remove_one(int folder, const char *name) {
  if (!unlinkat(folder, name, 0) || (errno == EISDIR && !unlinkat(folder, name, AT_REMOVEDIR)))
    return 0;
  return -errno;
}

/* Opens no other file system: that of this very process could be mounted there. */
static int open_folder(int folder, const char *name, DIR **opened, struct stat *stat) {
  struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                         .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS};
  int fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
  *opened = fd < 0 || fstat(fd, stat) ? NULL : fdopendir(fd);
  int result = *opened ? 0 : -errno;
  if (result && fd >= 0)
    close(fd);
  return result;
}

static void replace_folder(struct tree *tree, DIR *folder) {
  if (tree->folder)
    closedir(tree->folder);
  tree->folder = folder;
}

static int enter(struct tree *tree, int folder, const char *name) {
  struct stat stat = {0};
  DIR *inner;
  if (tree->depth == LEVELS_MAX)
    return -ENAMETOOLONG;
  int result = open_folder(folder, name, &inner, &stat);
  if (result)
    return result;
  struct level *level = &tree->levels[tree->depth++];
  replace_folder(tree, inner);
  if (!is_level(level, &stat))
    *level = (struct level){.device = stat.st_dev, .number = stat.st_ino};
  return level->passes++ < PASSES_MAX ? 0 : -EBUSY;
}

/* Goes back to the name that was entered, which is to be removed now. */
static int leave(struct tree *tree) {
  struct stat stat = {0};
  DIR *outer = NULL;
  int result = --tree->depth ? open_folder(dirfd(tree->folder), "..", &outer, &stat) : 0;
  replace_folder(tree, outer);
  if (!outer)
    return result;
  const struct level *level = &tree->levels[tree->depth - 1];
  seekdir(outer, level->entry);
  return is_level(level, &stat) ? 0 : -ESTALE; /* others have moved the inner folder */
}

/* Removes or enters the next name. */
static int remove_next(struct tree *tree) {
  tree->levels[tree->depth - 1].entry = telldir(tree->folder);
  errno = 0;
  const struct dirent *entry = readdir(tree->folder);
  if (!entry)
    return errno ? -errno : leave(tree);
  if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
    return 0;
  int result = remove_one(dirfd(tree->folder), entry->d_name);
  if (is_not_empty(result))
    result = enter(tree, dirfd(tree->folder), entry->d_name);
  return result == -ENOENT ? 0 : result;
}

/* Others may add, move and remove names at the same time. */
static int remove_tree(int folder, const char *name, const atomic_bool *stop) {
  struct tree *tree = calloc(1, sizeof *tree);
  int result;
  if (!tree)
    return -ENOMEM;
  do {
    result = enter(tree, folder, name);
    while (!result && tree->folder)
      result = atomic_load(stop) ? -ECANCELED : remove_next(tree);
    if (!result)
      result = remove_one(folder, name);
  } while (is_not_empty(result));
  replace_folder(tree, NULL);
  free(tree);
  return result;
}

int local_remove(struct source *source, const struct source_caller *caller, uint64_t handle,
                 const char *name, bool recursive, const atomic_bool *stop) {
  struct node *folder;
  struct credentials own;
  int result = local_get_folder(source, handle, name, &folder);
  if (result)
    return result;
  result = credentials_assume(&own, caller);
  if (!result)
    result = remove_one(folder->fd, name);
  if (recursive && is_not_empty(result))
    result = remove_tree(folder->fd, name, stop);
  credentials_restore(&own);
  nodes_put(&local_of(source)->nodes, folder);
  return result;
}
