/* SPDX-License-Identifier: MIT
 * Files that another node exports, for the command, without a mount. One const table is the
 * module's symbol for it. Paths are relative to the export's root, ""; no symlink is followed. */
#ifndef HAUL_STORAGE_TREE_H
#define HAUL_STORAGE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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
  /* `length` bytes from `offset` on, 0: all there are, in order. `begin` is told how many there
   * are to come, then `take` gets them; false ends it with -ECANCELED. */
  int (*get)(struct tree *tree, const char *path, uint64_t offset, uint64_t length,
             bool (*begin)(void *user, uint64_t length),
             bool (*take)(void *user, const void *bytes, size_t length), void *user,
             struct haul_storage_error *error);
  /* A file of what `give` gives until it gives 0 bytes; a negative value ends it with -ECANCELED.
   * What was under the name before is overwritten. */
  int (*put)(struct tree *tree, const char *path,
             ssize_t (*give)(void *user, void *bytes, size_t room), void *user,
             struct haul_storage_error *error);
};

#endif
