/* SPDX-License-Identifier: MIT
 * 3fs-virt: two folders, and in the inner one, `iovs`, what virt.h has. It is found by its name and
 * not listed, so that whoever copies or searches the tree does not come across it. */
#ifndef HAUL_STORAGE_MOUNT_VIRTUAL_H
#define HAUL_STORAGE_MOUNT_VIRTUAL_H

#include "storage/mount/mount.h"

static inline bool virtual_node(uint64_t node) {
  return node >= SOURCE_HANDLES;
}

/* Whether the name is one of 3fs-virt's, and not the source's. */
bool virtual_name(uint64_t folder, const char *name);

int virtual_lookup(fuse_req_t request, uint64_t folder, const char *name,
                   struct source_entry *entry);
int virtual_stat(struct mount *mount, uint64_t node, struct stat *stat);
int virtual_readlink(struct mount *mount, uint64_t node, char *target, size_t size);
int virtual_symlink(fuse_req_t request, uint64_t folder, const char *name, const char *target,
                    struct source_entry *entry);
int virtual_unlink(fuse_req_t request, uint64_t folder, const char *name);
/* A handle on `iovs` is what keeps a process's entries. */
int virtual_opendir(fuse_req_t request, uint64_t node, struct handle *handle);
void virtual_releasedir(struct mount *mount, struct handle *handle);
/* As a source's readdir. */
int virtual_readdir(fuse_req_t request, uint64_t node, struct handle *handle, off_t offset,
                    bool (*each)(void *user, const struct source_name *name), void *user);

#endif
