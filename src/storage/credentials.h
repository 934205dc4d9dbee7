/* SPDX-License-Identifier: MIT
 * Credentials of the calling thread alone. */
#ifndef HAUL_STORAGE_CREDENTIALS_H
#define HAUL_STORAGE_CREDENTIALS_H

#include <stdbool.h>
#include <sys/types.h>

struct source_caller;

/* State for credentials_restore. */
struct credentials {
  bool ids_changed, groups_changed;
  gid_t *groups;
  int group_count;
};

/* Gives files that the thread creates to the caller. If the caller is `checked` the thread keeps
 * root's access to folders, else it has the caller's rights alone. Without root: no change, and
 * EPERM for another caller that is not checked. Also ENOMEM. Call credentials_restore afterwards,
 * also after a failure. */
int credentials_assume(struct credentials *saved, const struct source_caller *caller);
/* Keeps errno. */
void credentials_restore(struct credentials *saved);

/* Whether writes keep the file's set-user-ID and set-group-ID bits, as root's do. A thread that
 * writes for others must not keep them: otherwise a user with write access could run code as the
 * file's owner. A change gives the thread credentials of its own: the kernel lets it register no
 * memory with NICs that another thread has opened (ib_safe_file_access in the kernel). */
void credentials_keep_set_ids(bool keep);

#endif
