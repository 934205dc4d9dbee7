/* SPDX-License-Identifier: MIT
 * Doing something as another user: for the calling thread alone, and only where the process is
 * root. Any other user's process does everything as itself, and nothing for others
 * whose rights nobody has checked. */
#ifndef HAUL_STORAGE_LOCAL_IDENTITY_H
#define HAUL_STORAGE_LOCAL_IDENTITY_H

#include <stdbool.h>
#include <sys/types.h>

struct source_caller;

struct identity {
  bool taken, groups_taken;
  gid_t *groups; /* the thread's own, where they were put aside */
  int group_count;
};

/* What is made from now on is the caller's. The rights are the process's own where the caller is
 * `checked`, else the caller's. Give it back also where it failed. EPERM, ENOMEM. */
int identity_take(struct identity *identity, const struct source_caller *caller);
/* errno stays. */
void identity_give_back(struct identity *identity);

#endif
