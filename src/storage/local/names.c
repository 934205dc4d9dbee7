/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "storage/credentials.h"
#include "storage/local/local.h"

/* A name in a folder that is about to change. */
struct place {
  struct local *local;
  struct node *folder; /* a reference */
  const char *name;
};

/* Call place_put after success alone. */
static int place_get(struct place *place, struct source *source, uint64_t folder,
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

static void place_put(struct place *place) {
  nodes_put(&place->local->nodes, place->folder);
}

/* What to create. */
struct creation {
  const struct node *node; /* a hard link to this */
  const char *target;      /* else a symlink to this */
  mode_t mode;             /* else a folder or a file, by its S_IFMT bits */
};

static int create_at(const struct place *place, const struct creation *creation) {
  char path[PROC_ROOM];
  int folder = place->folder->fd;
  if (creation->node) {
    local_proc_path(path, creation->node->fd);
    return linkat(AT_FDCWD, path, folder, place->name, AT_SYMLINK_FOLLOW);
  }
  if (creation->target)
    return symlinkat(creation->target, folder, place->name);
  if (S_ISDIR(creation->mode))
    return mkdirat(folder, place->name, creation->mode & ~(mode_t)S_IFMT);
  return mknodat(folder, place->name, creation->mode, 0);
}

static int create_name(struct source *source, const struct source_caller *caller, uint64_t folder,
                       const char *name, const struct creation *creation,
                       struct source_entry *entry) {
  struct place place;
  struct credentials own;
  int result = place_get(&place, source, folder, name);
  if (result)
    return result;
  result = credentials_assume(&own, caller);
  if (!result && create_at(&place, creation))
    result = -errno;
  credentials_restore(&own);
  if (!result)
    result = local_add_name(place.local, place.folder, name, entry);
  place_put(&place);
  return result;
}

int local_mkdir(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, struct source_entry *entry) {
  const struct creation creation = {.mode = S_IFDIR | (mode & 07777)};
  return create_name(source, caller, folder, name, &creation, entry);
}

int local_symlink(struct source *source, const struct source_caller *caller, uint64_t folder,
                  const char *name, const char *target, struct source_entry *entry) {
  const struct creation creation = {.target = target};
  return create_name(source, caller, folder, name, &creation, entry);
}

int local_mknod(struct source *source, const struct source_caller *caller, uint64_t folder,
                const char *name, mode_t mode, struct source_entry *entry) {
  const struct creation creation = {.mode = S_IFREG | (mode & 07777)};
  if ((mode & S_IFMT) && !S_ISREG(mode))
    return -EPERM;
  return create_name(source, caller, folder, name, &creation, entry);
}

int local_link(struct source *source, const struct source_caller *caller, uint64_t handle,
               uint64_t folder, const char *name, struct source_entry *entry) {
  struct local *local = local_of(source);
  struct node *node = nodes_get(&local->nodes, handle);
  if (!node)
    return -ESTALE;
  const struct creation creation = {.node = node};
  int result = create_name(source, caller, folder, name, &creation, entry);
  nodes_put(&local->nodes, node);
  return result;
}

static int remove_name(struct source *source, uint64_t folder, const char *name, int flags) {
  struct place place;
  int result = place_get(&place, source, folder, name);
  if (result)
    return result;
  result = unlinkat(place.folder->fd, name, flags) ? -errno : 0;
  place_put(&place);
  return result;
}

int local_unlink(struct source *source, uint64_t folder, const char *name) {
  return remove_name(source, folder, name, 0);
}

int local_rmdir(struct source *source, uint64_t folder, const char *name) {
  return remove_name(source, folder, name, AT_REMOVEDIR);
}

int local_rename(struct source *source, uint64_t folder, const char *name, uint64_t new_folder,
                 const char *new_name, unsigned flags) {
  struct place from, to;
  if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
    return -EINVAL;
  int result = place_get(&from, source, folder, name);
  if (result)
    return result;
  result = place_get(&to, source, new_folder, new_name);
  if (!result) {
    result = renameat2(from.folder->fd, name, to.folder->fd, new_name, flags) ? -errno : 0;
    place_put(&to);
  }
  place_put(&from);
  return result;
}

/* Never opens an existing file: the caller was checked for the folder, not for that. */
static int create_and_open(const struct place *place, const struct source_caller *caller,
                           mode_t mode, int flags) {
  struct credentials own;
  int fd = credentials_assume(&own, caller);
  if (!fd) {
    fd = openat(place->folder->fd, place->name,
                (flags & O_ACCMODE) | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 07777);
    if (fd < 0)
      fd = -errno;
  }
  credentials_restore(&own);
  return fd;
}

/* Takes the descriptor. The node is made of it: its name may be another file's by now. */
static int add_new_file(struct local *local, int fd, struct source_entry *entry,
                        struct source_file **file) {
  char path[PROC_ROOM];
  local_proc_path(path, fd);
  int node = open(path, O_PATH | O_CLOEXEC);
  int result = node < 0 ? -errno : local_add_fd(local, node, entry);
  if (result) {
    close(fd);
    return result;
  }
  result = local_new_file(local, nodes_get(&local->nodes, entry->node), fd, file);
  if (result)
    nodes_forget(&local->nodes, entry->node, 1);
  return result;
}

int local_create(struct source *source, const struct source_caller *caller, uint64_t folder,
                 const char *name, mode_t mode, int flags, struct source_entry *entry,
                 struct source_file **file) {
  struct place place;
  int result = place_get(&place, source, folder, name);
  if (result)
    return result;
  int fd = create_and_open(&place, caller, mode, flags);
  result = fd < 0 ? fd : add_new_file(place.local, fd, entry, file);
  if (fd >= 0 && result)
    unlinkat(place.folder->fd, name, 0);
  place_put(&place);
  return result;
}
