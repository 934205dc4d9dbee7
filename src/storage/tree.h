/* SPDX-License-Identifier: MIT
 * Files that another node exports, for the command, without a mount. One const table is the
 * module's symbol for it. Paths are relative to the export's root, ""; no symlink is followed. */
#ifndef HAUL_STORAGE_TREE_H
#define HAUL_STORAGE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <haul/haul.h>

#include "storage/mount.h" /* struct haul_storage_error */

#define HAUL_STORAGE_TREE_SYMBOL "haul_storage_tree"

struct haul_storage_reach {
  size_t size; /* sizeof this: the module of another build refuses */
  const char *address;
  const char *export; /* "": for the list of exports alone */
  int64_t timeout_ns; /* of each thing that is waited for; 0: 30 seconds */
};

struct haul_storage_name {
  const char *name;
  mode_t mode; /* of an export: whether it may be written to */
  uint64_t size;
};

/* Who moves bytes, and hears how each part of them went: `pages` of its bytes were the file's own
 * pages, the server copied the others. */
struct haul_storage_mover {
  /* get: how many are to come, then they; false ends it with -ECANCELED. */
  bool (*begin)(void *user, uint64_t length);
  bool (*take)(void *user, const void *bytes, size_t length);
  /* put: 0 is the end, a negative value ends it with -ECANCELED. */
  ssize_t (*give)(void *user, void *bytes, size_t room);
  void (*told)(void *user, const struct haul_report *report, uint64_t pages);
  void *user;
};

struct tree;

/* All return 0 or a negative errno value and *error. */
struct haul_storage_tree {
  int (*open)(const struct haul_storage_reach *reach, struct tree **tree,
              struct haul_storage_error *error);
  void (*close)(struct tree *tree);
  /* What is in a folder, or the one file; exports, where none was asked for. */
  int (*list)(struct tree *tree, const char *path,
              void (*each)(void *user, const struct haul_storage_name *name), void *user,
              struct haul_storage_error *error);
  /* `length` bytes from `offset` on, 0: all there are, in order. */
  int (*get)(struct tree *tree, const char *path, uint64_t offset, uint64_t length,
             const struct haul_storage_mover *mover, struct haul_storage_error *error);
  /* A file of what is given. What was under the name before is replaced once all of it is there. */
  int (*put)(struct tree *tree, const char *path, const struct haul_storage_mover *mover,
             struct haul_storage_error *error);
};

#endif
