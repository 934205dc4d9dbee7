/* SPDX-License-Identifier: MIT
 * What makes, takes away and moves names. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "storage/local/identity.h"
#include "storage/local/local.h"

/* A name in a folder that is about to change. */
struct place {
  struct local *local;
  struct node *folder; /* held */
  const char *name;
};

/* Nothing to give back where it fails. */
static int place_take(struct place *place, struct source *source, uint64_t folder,
                      const char *name) {
  *place = (struct place){.local = local_of(source), .name = name};
  int result = source_check_name(name);
  if (result)
    return result;
  if (place->local->read_only)
    return -EROFS;
  place->folder = nodes_get(&place->local->nodes, folder);
  return place->folder ? 0 : -ESTALE;
}

static void place_give_back(struct place *place) {
  nodes_put(&place->local->nodes, place->folder);
}

/* What is to be made there. */
struct wish {
  const struct node *node; /* a link to this */
  const char *target;      /* else a symlink to this */
  mode_t mode;             /* else a folder or a file, by its S_IFMT bits */
};

static int make_at(const struct place *place, const struct wish *wish) {
  char path[PROC_ROOM];
  int folder = place->folder->fd;
  if (wish->node) {
    local_proc_path(path, wish->node);
    return linkat(AT_FDCWD, path, folder, place->name, AT_SYMLINK_FOLLOW);
  }
  if (S_ISDIR(wish->mode))
    return mkdirat(folder, place->name, wish->mode & ~(mode_t)S_IFMT);
  if (wish->target)
    return symlinkat(wish->target, folder, place->name);
  return mknodat(folder, place->name, wish->mode, 0);
}

static int make(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, const struct wish *wish, struct source_entry *entry) {
  struct place place;
  struct identity identity;
  int result = place_take(&place, source, folder, name);
  if (result)
    return result;
  result = identity_take(&identity, caller);
  if (!result && make_at(&place, wish))
    result = -errno;
  identity_give_back(&identity);
  if (!result)
    result = local_admit(place.local, place.folder, name, entry);
  place_give_back(&place);
  return result;
}

int local_mkdir(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, struct source_entry *entry) {
  const struct wish wish = {.mode = S_IFDIR | (mode & 07777)};
  return make(source, caller, folder, name, &wish, entry);
}

int local_symlink(struct source *source, const struct source_caller *caller, uint64_t folder,
                  const char *name, const char *target, struct source_entry *entry) {
  const struct wish wish = {.target = target};
  return make(source, caller, folder, name, &wish, entry);
}

int local_mknod(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, struct source_entry *entry) {
  const struct wish wish = {.mode = S_IFREG | (mode & 07777)};
  if ((mode & S_IFMT) && !S_ISREG(mode))
    return -EPERM;
  return make(source, caller, folder, name, &wish, entry);
}

int local_link(struct source *source, const struct source_caller *caller, uint64_t handle,
               uint64_t folder, const char *name, struct source_entry *entry) {
  struct local *local = local_of(source);
  struct node *node = nodes_get(&local->nodes, handle);
  if (!node)
    return -ESTALE;
  const struct wish wish = {.node = node};
  int result = make(source, caller, folder, name, &wish, entry);
  nodes_put(&local->nodes, node);
  return result;
}

static int take_away(struct source *source, uint64_t folder, const char *name, int flags) {
  struct place place;
  int result = place_take(&place, source, folder, name);
  if (result)
    return result;
  result = unlinkat(place.folder->fd, name, flags) ? -errno : 0;
  place_give_back(&place);
  return result;
}

int local_unlink(struct source *source, uint64_t folder, const char *name) {
  return take_away(source, folder, name, 0);
}

int local_rmdir(struct source *source, uint64_t folder, const char *name) {
  return take_away(source, folder, name, AT_REMOVEDIR);
}

int local_rename(struct source *source, uint64_t folder, const char *name, uint64_t new_folder,
                 const char *new_name, unsigned flags) {
  struct place from, to;
  if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
    return -EINVAL;
  int result = place_take(&from, source, folder, name);
  if (result)
    return result;
  result = place_take(&to, source, new_folder, new_name);
  if (!result) {
    result = renameat2(from.folder->fd, name, to.folder->fd, new_name, flags) ? -errno : 0;
    place_give_back(&to);
  }
  place_give_back(&from);
  return result;
}

/* Always a new file: opening one that is there would go by the rights for making one. */
static int make_and_open(const struct place *place, const struct source_caller *caller, mode_t mode,
                         int flags) {
  struct identity identity;
  int result = identity_take(&identity, caller);
  if (!result) {
    result = openat(place->folder->fd, place->name,
                    (flags & O_ACCMODE) | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 07777);
    if (result < 0)
      result = -errno;
  }
  identity_give_back(&identity);
  return result;
}

/* The new file's node, made of its descriptor: under its name there may be another one by now. */
static int admit_new(struct local *local, int fd, struct source_entry *entry) {
  char path[PROC_ROOM];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int place = open(path, O_PATH | O_CLOEXEC);
  return place < 0 ? -errno : local_admit_fd(local, place, entry);
}

static int open_new(struct local *local, int fd, struct source_entry *entry,
                    struct source_file **file) {
  int result = admit_new(local, fd, entry);
  if (result) {
    close(fd);
    return result;
  }
  result = local_make_file(local, nodes_get(&local->nodes, entry->node), fd, file);
  if (result)
    nodes_forget(&local->nodes, entry->node, 1);
  return result;
}

int local_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, int flags, struct source_entry *entry,
                 struct source_file **file) {
  struct place place;
  int result = place_take(&place, source, folder, name);
  if (result)
    return result;
  int fd = make_and_open(&place, caller, mode, flags);
  result = fd < 0 ? fd : open_new(place.local, fd, entry, file);
  if (fd >= 0 && result)
    unlinkat(place.folder->fd, name, 0); /* nobody has seen it: as if it had not been made */
  place_give_back(&place);
  return result;
}
