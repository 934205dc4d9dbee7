/* SPDX-License-Identifier: MIT
 * The credentials of the calling thread; other threads keep theirs. */
#ifndef HAUL_STORAGE_CREDENTIALS_H
#define HAUL_STORAGE_CREDENTIALS_H

#include <stdbool.h>
#include <sys/types.h>

struct source_caller;

/* What credentials_restore puts back. */
struct credentials {
  bool ids_changed, groups_changed;
  gid_t *groups;
  int group_count;
};

/* What the thread creates from now on belongs to the caller. Where the caller is `checked` the
 * thread keeps root's access to folders, else it has the caller's rights alone. A process that is
 * not root stays itself: EPERM for another caller who is not checked. Also ENOMEM. Must be followed
 * by credentials_restore, after a failure, too. */
int credentials_assume(struct credentials *saved, const struct source_caller *caller);
/* Keeps errno. */
void credentials_restore(struct credentials *saved);

/* Whether writes keep the file's set-user-ID and set-group-ID bits, as root's do. A thread that
 * writes for others must not keep them: otherwise a user with write access could run code as the
 * file's owner. */
void credentials_keep_set_ids(bool keep);

#endif
